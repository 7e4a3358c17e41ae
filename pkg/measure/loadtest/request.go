package loadtest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// Request is the request that a load test repeats.
type Request struct {
	Method string
	Header http.Header
	Body   []byte
}

// connectTimeout is the longest time to connect.
const connectTimeout = 10 * time.Second

// CheckListens returns an error if nothing accepts connections at an address
// (host:port).
func CheckListens(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// Address returns the host and port of a URL of the scheme http or https.
func Address(u *url.URL) string {
	standard := map[string]string{"http": "80", "https": "443"}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), standard[u.Scheme]))
}

// ToURL returns a target that sends requests to a URL, without a proxy and without
// following redirects. Credentials in the URL become basic authentication, unless the
// request has a header for it. The caller calls closeIdle after the load.
func ToURL(u *url.URL, r Request) (send load.Sender, closeIdle func()) {
	const maxIdle = 1 << 12 // connections that stay open between requests
	header, to := r.Header.Clone(), *u
	if header == nil {
		header = http.Header{}
	}
	if to.User != nil && header.Get("Authorization") == "" {
		password, _ := to.User.Password()
		credentials := http.Request{Header: header}
		credentials.SetBasicAuth(to.User.Username(), password)
	}
	to.User, to.Fragment = nil, ""
	address := to.String()
	transport := &http.Transport{
		DialContext: (&net.Dialer{Timeout: connectTimeout}).DialContext, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: maxIdle, DisableCompression: true,
	}
	send = func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, r.Method, address, bytes.NewReader(r.Body))
		if err != nil {
			return err
		}
		request.Header, request.Host = header, cmp.Or(header.Get("Host"), to.Host)
		answer, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		return ReadAnswer(answer)
	}
	return send, transport.CloseIdleConnections
}

// ToInstances returns a target that distributes requests over instances in proportion to
// their weights. A request that no instance has received yet is repeated with another
// instance.
func ToInstances(invoker ports.Invoker, ready []launch.Candidate, r Request, seed uint64) load.Sender {
	var mu sync.Mutex
	random := splitmix.Source(seed)
	caller := &launch.Caller{Invoker: invoker, Random: func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Unit()
	}}
	body := func() io.Reader { return bytes.NewReader(r.Body) }
	return func(ctx context.Context) error {
		answer, err := caller.Call(ctx, ready, ports.Call{Method: r.Method, Header: r.Header}, body)
		if err != nil {
			return err
		}
		return ReadAnswer(answer.Response)
	}
}

const (
	maxQuoted    = 200     // bytes of a failed answer that an error quotes
	maxDiscarded = 1 << 20 // bytes of a failed answer that are read after them
)

// ReadAnswer reads an answer to its end and closes it. A status other than 2xx is an
// error. Such an answer is read as well, so that its connection can be used again.
func ReadAnswer(answer *http.Response) error {
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxQuoted))
		_, _ = io.CopyN(io.Discard, answer.Body, maxDiscarded)
		return fmt.Errorf("status %s: %s", answer.Status, strings.TrimSpace(string(text)))
	}
	_, err := io.Copy(io.Discard, answer.Body)
	return err
}
