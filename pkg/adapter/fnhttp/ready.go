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

	"github.com/gfaas/gfaas/pkg/function"
)

// The pause between two probes is 1/8 of the time since the first probe, but at least firstPause and
// at most longestPause. For example, if an instance becomes ready after 800 ms, the next probe starts
// at most 100 ms later.
const (
	firstPause   = 2 * time.Millisecond
	longestPause = 200 * time.Millisecond
	probeTimeout = 2 * time.Second // time limit of a probe: a function may accept connections and not answer while it loads
)

// WaitReady waits until the instance of fn at address (host:port) is ready, and returns its contract.
// If fn.Contract is auto or empty, WaitReady finds the contract; if fn has its own health check
// (function.Ready), the contract is then http. WaitReady returns an error in these cases:
//
//   - alive, which may be nil, returns an error because the instance has ended. WaitReady returns the
//     same error.
//   - ctx ends. The error contains the reason why the last probe failed.
//   - fn's own health check, or that of the contract openai, answers with status 401 or 403, because
//     it needs a key (unless fn.Ready.Status is this status). Under the other contracts, WaitReady
//     continues to wait.
func WaitReady(ctx context.Context, address string, fn function.Function, alive func(context.Context) error) (string, error) {
	candidates, err := find(fn.Contract)
	if err != nil {
		return "", err
	}
	check := func(ctx context.Context, client *http.Client) (string, error) {
		return probe(ctx, client, address, candidates)
	}
	if fn.Ready.Path != "" {
		check = func(ctx context.Context, client *http.Client) (string, error) {
			return candidates[0].name, probeOwn(ctx, client, address, fn.Ready)
		}
	}
	// Use one connection per probe: if the function closed an idle connection meanwhile,
	// that would appear as a failure.
	transport := newTransport()
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: transport, CheckRedirect: noRedirect}
	started := time.Now()
	var last error
	for {
		resolved, reason := check(ctx, client)
		if reason == nil {
			return resolved, nil
		}
		if denied, ok := errors.AsType[*deniedError](reason); ok {
			return "", denied
		}
		if last == nil || ctx.Err() == nil { // otherwise ctx ended during the probe: keep the earlier reason
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

// pauseAfter returns the pause before the next probe.
func pauseAfter(elapsed time.Duration) time.Duration {
	return min(max(elapsed/8, firstPause), longestPause)
}

// probe requests the health checks of the candidate contracts, until an answer is decisive. It returns
// the contract under which the function is ready, or the reason why it is not ready. A function that
// knows none of the paths needs no health check under the contract http: it is ready.
func probe(ctx context.Context, client *http.Client, address string, candidates []convention) (string, error) {
	var reason error // the last path that the function does not know
	for _, c := range candidates {
		for _, path := range c.ready {
			status, excerpt, err := getStatus(ctx, client, "http://"+address+path)
			switch {
			case err != nil:
				return "", err
			case status < 300, status < 400 && !c.strict:
				return c.name, nil
			case denies(status) && c.strict:
				return "", &deniedError{path, status}
			case denies(status):
				return "", errors.New((&deniedError{path, status}).Error()) // not a deniedError, which would end WaitReady
			case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented:
				reason = fmt.Errorf("GET %s: status %d", path, status)
			default:
				return "", fmt.Errorf("GET %s: status %d%s", path, status, excerpt)
			}
		}
	}
	if candidates[0].name == HTTP { // it knows none of the paths
		return HTTP, nil
	}
	return "", reason
}

// probeOwn requests a function's own health check once. It returns nil if the function is ready, and
// otherwise the reason.
func probeOwn(ctx context.Context, client *http.Client, address string, own function.Ready) error {
	status, excerpt, err := getStatus(ctx, client, "http://"+address+own.Path)
	switch {
	case err != nil:
		return err
	case status == own.Status, own.Status == 0 && status < 300:
		return nil
	case denies(status):
		return &deniedError{own.Path, status}
	}
	return fmt.Errorf("GET %s: status %d%s", own.Path, status, excerpt)
}

// denies reports whether a status means that the request needs a key.
func denies(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// deniedError reports a health check that needs a key.
type deniedError struct {
	path   string
	status int
}

func (e *deniedError) Error() string {
	return fmt.Sprintf("GET %s: status %d: the health check needs a key; set \"ready\" in function.yaml to a path that needs none", e.path, e.status)
}

// getStatus sends a GET request. It returns the status, and an excerpt of the answer's body to append
// to a message (excerptOf).
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
	return response.StatusCode, excerptOf(text), nil
}

// maxExcerpt is the length limit of an excerpt, in characters.
const maxExcerpt = 200

// excerptOf returns a colon and the body of an answer as one line. It returns "" for an empty body and
// for an HTML page.
func excerptOf(body []byte) string {
	line := strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, string(body))), " ")
	if line == "" || strings.HasPrefix(line, "<") {
		return ""
	}
	if runes := []rune(line); len(runes) > maxExcerpt {
		line = string(runes[:maxExcerpt]) + "…"
	}
	return ": " + line
}
