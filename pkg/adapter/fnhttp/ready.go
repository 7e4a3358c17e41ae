package fnhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// A function is asked again after an eighth of the time that it has taken so far,
// so that this is by how much it is seen to be ready too late.
const (
	firstPause   = 2 * time.Millisecond
	longestPause = 200 * time.Millisecond
	probeTimeout = 2 * time.Second // for one answer: a function that loads may accept and not answer
)

// WaitReady waits until the function at address (host:port) is ready and
// returns its contract, which is never auto. It gives up with alive's error
// when alive, which may be nil, reports that the instance is gone, and when
// ctx ends; the error then says what the function answered last.
func WaitReady(ctx context.Context, address, contract string, alive func(context.Context) error) (string, error) {
	candidates, err := find(contract)
	if err != nil {
		return "", err
	}
	// A connection of its own for each question: an idle one that the
	// function closes meanwhile would look like a failure.
	transport := newTransport()
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport, CheckRedirect: noRedirect}
	begin := time.Now()
	var last error
	for {
		resolved, why := probe(ctx, client, address, candidates)
		if resolved != "" {
			return resolved, nil
		}
		if last == nil || ctx.Err() == nil { // else it is our own end that cut the question short
			last = why
		}
		if alive != nil && ctx.Err() == nil {
			if err := alive(ctx); err != nil {
				return "", err
			}
		}
		timer := time.NewTimer(pauseAfter(time.Since(begin)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return "", fmt.Errorf("not ready (%w): %w", last, ctx.Err())
		case <-timer.C:
		}
	}
}

func pauseAfter(took time.Duration) time.Duration {
	return min(max(took/8, firstPause), longestPause)
}

// probe asks once for each contract that may apply. Empty is not ready, and
// the error says why.
func probe(ctx context.Context, client *http.Client, address string, candidates []convention) (string, error) {
	why := errors.New("no answer")
	strange := 0 // paths that the program does not know
	paths := 0
	for _, c := range candidates {
		for _, path := range c.ready {
			paths++
			status, said, err := ask(ctx, client, "http://"+address+path)
			switch {
			case err != nil:
				return "", err
			case status < 400:
				return c.name, nil
			case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented:
				strange++
				why = fmt.Errorf("GET %s: status %d", path, status)
			default:
				return "", fmt.Errorf("GET %s: status %d%s", path, status, said)
			}
		}
	}
	if strange == paths && candidates[0].name == HTTP {
		return HTTP, nil
	}
	return "", why
}

// ask returns the status of a GET, and what the answer says, for the end of a message.
func ask(ctx context.Context, client *http.Client, url string) (status int, said string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errors.New("no answer in time"))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		// Without the error itself: its deadline is this question's, and
		// would pass for the caller's.
		return 0, "", errors.New(err.Error())
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	return response.StatusCode, reason(text), nil
}

// mostReason is how many characters of an answer a message gives.
const mostReason = 200

// reason is what an answer says, on one line; nothing of a page.
func reason(body []byte) string {
	line := strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, string(body))), " ")
	if line == "" || strings.HasPrefix(line, "<") {
		return ""
	}
	if runes := []rune(line); len(runes) > mostReason {
		line = string(runes[:mostReason]) + "…"
	}
	return ": " + line
}
