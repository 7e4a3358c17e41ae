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

// The pause between probes is 1/8 of the time since the first probe, within these bounds. So
// the delay until readiness is noticed is at most 12.5% of that time, or firstPause.
const (
	firstPause   = 2 * time.Millisecond
	longestPause = 200 * time.Millisecond
	probeTimeout = 2 * time.Second // time limit of one answer: a function may accept connections and not answer while it loads
)

// WaitReady waits until the function at address (host:port) is ready and returns its
// contract, which is never auto. If alive, which may be nil, returns an error because the
// instance has ended, WaitReady returns that error. If ctx ends, WaitReady returns an error
// with the function's last answer.
func WaitReady(ctx context.Context, address, contract string, alive func(context.Context) error) (string, error) {
	candidates, err := find(contract)
	if err != nil {
		return "", err
	}
	// Use one connection per probe: if the function closed an idle connection meanwhile,
	// that would appear as a failure.
	transport := newTransport()
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport, CheckRedirect: noRedirect}
	started := time.Now()
	var last error
	for {
		resolved, reason := probe(ctx, client, address, candidates)
		if resolved != "" {
			return resolved, nil
		}
		if last == nil || ctx.Err() == nil { // otherwise the end of ctx interrupted the probe
			last = reason
		}
		if alive != nil && ctx.Err() == nil {
			if err := alive(ctx); err != nil {
				return "", err
			}
		}
		timer := time.NewTimer(pauseAfter(time.Since(started)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return "", fmt.Errorf("not ready (%w): %w", last, ctx.Err())
		case <-timer.C:
		}
	}
}

func pauseAfter(elapsed time.Duration) time.Duration {
	return min(max(elapsed/8, firstPause), longestPause)
}

// probe requests the paths of all candidate contracts once. It returns the contract under
// which the function is ready, or an error with the reason.
func probe(ctx context.Context, client *http.Client, address string, candidates []convention) (string, error) {
	reason := errors.New("no answer")
	unknown := 0 // number of paths that the function does not know
	paths := 0
	for _, c := range candidates {
		for _, path := range c.ready {
			paths++
			status, excerpt, err := getStatus(ctx, client, "http://"+address+path)
			switch {
			case err != nil:
				return "", err
			case status < 400:
				return c.name, nil
			case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented:
				unknown++
				reason = fmt.Errorf("GET %s: status %d", path, status)
			default:
				return "", fmt.Errorf("GET %s: status %d%s", path, status, excerpt)
			}
		}
	}
	if unknown == paths && candidates[0].name == HTTP {
		return HTTP, nil
	}
	return "", reason
}

// getStatus returns the status of a GET and an excerpt of the answer for the end of a message.
func getStatus(ctx context.Context, client *http.Client, url string) (status int, excerpt string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errors.New("no answer in time"))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		// Do not wrap the error: if the time limit of the probe has ended it, callers would
		// mistake it for the end of their own context.
		return 0, "", errors.New(err.Error())
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	return response.StatusCode, reason(text), nil
}

// maxReason is the length limit of an excerpt, in characters.
const maxReason = 200

// reason returns an answer as one line, or "" for an HTML page.
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
	if runes := []rune(line); len(runes) > maxReason {
		line = string(runes[:maxReason]) + "…"
	}
	return ": " + line
}
