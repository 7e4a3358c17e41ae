package fnhttp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Request is one invocation.
type Request struct {
	Header http.Header // sent as it is; Host and Content-Length are taken from it too
	Body   io.Reader   // streamed; nil is empty
}

// shared keeps connections open between invocations.
var shared = &http.Client{Transport: newTransport(), CheckRedirect: noRedirect}

func newTransport() *http.Transport {
	const manyClients = 1024
	return &http.Transport{
		// No proxy: instances are on this machine or addressed directly.
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		MaxIdleConns:        0,
		MaxIdleConnsPerHost: manyClients,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
	}
}

// noRedirect hands the caller what the function answered.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Invoke sends one invocation to the function at address (host:port) and
// returns its answer, whatever the status, as soon as its head is there. The
// caller closes the body. An auto or empty contract is http.
func Invoke(ctx context.Context, address, contract, function string, r Request) (*http.Response, error) {
	found, err := find(contract)
	if err != nil {
		return nil, err
	}
	path := found[0].invoke(function)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, r.Body)
	if err != nil {
		return nil, err
	}
	for name, values := range r.Header {
		request.Header[http.CanonicalHeaderKey(name)] = values
	}
	if host := request.Header.Get("Host"); host != "" {
		request.Host = host
	}
	request.Header.Del("Host")
	if text := request.Header.Get("Content-Length"); text != "" {
		length, err := strconv.ParseInt(text, 10, 64)
		if err != nil || length < 0 {
			return nil, fmt.Errorf("Content-Length %q is not a length", text)
		}
		request.ContentLength = length
		request.Header.Del("Content-Length")
	}
	if request.Header.Get("Content-Type") == "" && (found[0].name == KServeV2 || found[0].name == OpenAI) {
		request.Header.Set("Content-Type", "application/json")
	}
	return shared.Do(request)
}
