// Apiclients calls a gateway through the official Go clients of OpenAI, Anthropic and Ollama, and checks the answers
// and the errors that the clients show. It is a module of its own, so that gfaas does not depend on them.
//
// Usage: apiclients URL. The gateway must serve the function chat, whose server is standin.py, and the function
// broken, which cannot be started.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

const (
	model  = "chat"
	broken = "broken"
	tool   = "look_up" // the tool that the stand-in calls
)

// check is a call of a client.
type check struct {
	name string
	run  func(context.Context) error
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: apiclients URL")
		os.Exit(2)
	}
	base, err := url.Parse(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	failed := false
	for _, checks := range [][]check{openAI(base), anthropicChecks(base), ollama(base)} {
		for _, c := range checks {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			began := time.Now()
			err := c.run(ctx)
			cancel()
			fmt.Printf("%-40s %8s %s\n", c.name, time.Since(began).Round(time.Millisecond), result(err))
			failed = failed || err != nil
		}
	}
	if failed {
		os.Exit(1)
	}
}

func result(err error) string {
	if err == nil {
		return "ok"
	}
	return "FAIL: " + err.Error()
}

// counted counts the requests that a client sends, repetitions included.
type counted struct{ n int }

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n++
	return http.DefaultTransport.RoundTrip(r)
}

// want returns an error unless the condition holds.
func want(ok bool, format string, got ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("got "+format, got...)
}

// words reports whether a text has n words, as the stand-in answers.
func words(text string, n int) error {
	return want(len(strings.Fields(text)) == n, "%q, want %d words", text, n)
}

// shows checks the text of an error that a client shows.
func shows(err error, texts ...string) error {
	if err == nil {
		return errors.New("got no error")
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			return fmt.Errorf("got the error %q, want one with %q", err, text)
		}
	}
	return nil
}
