package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// peer is whose connections a test's requests come over.
type peer struct {
	uid int
	err error
}

var (
	ownUser     = peer{uid: os.Geteuid()}
	rootUser    = peer{uid: 0}
	otherUser   = peer{uid: 4711}
	unknownUser = peer{uid: 0, err: errors.New("closed")} // the kernel reports uid 0 for a closed socket
)

// TestAdmission sends requests to each entrance, as each user and as browsers send
// them, to gateways with each kind of --auth.
func TestAdmission(t *testing.T) {
	const password = "Authorization: Basic dTpw"
	crossSite := []string{"Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"}
	sameOrigin := []string{"Origin: http://HOST", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"}
	fetched := []string{"Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"} // a page's GET has no Origin
	typed := []string{"Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document", "Sec-Fetch-User: ?1"}
	followed := []string{"Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}
	fromElsewhere := []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}
	framed := []string{"Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}
	with := func(headers []string, more ...string) []string {
		return append(headers[:len(headers):len(headers)], more...)
	}
	const (
		functions = "GET /system/functions"
		scale     = "POST /system/scale-function/f"
	)
	// What --auth is: a password, empty, or none, which lets everybody in.
	const file, nothing, everybody = "a file", "empty", "none"
	var from atomic.Pointer[peer] // the next request
	worlds := map[string]*world{}
	for auth, change := range map[string]func(*Config){
		nothing: func(*Config) {}, file: func(c *Config) { c.Auth = NewCredentials("u", "p") }, everybody: func(c *Config) { c.Open = true },
	} {
		w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
			c.UIListen = "127.0.0.1:0"
			c.peerUser = func(context.Context) (int, error) { p := from.Load(); return p.uid, p.err }
			change(c)
		})
		w.apply(fn("f"))
		worlds[auth] = w
	}
	for _, c := range []struct {
		name    string
		at      entrance
		auth    string
		from    peer
		request string
		headers []string // HOST is the address, TOKEN the page's
		status  int
	}{
		// Programs that are not browsers.
		{"own user", callAddress, nothing, ownUser, functions, nil, 200},
		{"own user changes", callAddress, nothing, ownUser, scale, nil, 202},
		{"root", callAddress, nothing, rootUser, scale, nil, 202},
		{"password", callAddress, file, otherUser, scale, []string{password}, 202},
		{"no password", callAddress, file, ownUser, functions, nil, 401},
		{"wrong password", callAddress, file, ownUser, functions, []string{"Authorization: Basic dTpx"}, 401},
		{"everybody", callAddress, everybody, otherUser, scale, nil, 202},
		{"everybody, from elsewhere", callAddress, everybody, unknownUser, scale, nil, 202},

		// Other users of the machine.
		{"another user", callAddress, nothing, otherUser, functions, nil, 401},
		{"an unknown user", callAddress, nothing, unknownUser, functions, nil, 401},
		{"another user changes", callAddress, nothing, otherUser, scale, nil, 401},
		{"another user deploys", callAddress, nothing, otherUser, "POST /system/functions", nil, 401},
		{"another user removes", callAddress, nothing, otherUser, "DELETE /system/functions", nil, 401},
		{"another user reads logs", callAddress, nothing, otherUser, "GET /system/logs?name=f", nil, 401},
		{"another user reads an answer", callAddress, nothing, otherUser, "GET /system/async/x", nil, 401},
		{"another user looks", callAddress, nothing, otherUser, "GET /system/events", nil, 401},
		{"another user opens the page", callAddress, nothing, otherUser, "GET /ui/", typed, 401},
		{"another user opens ui", callAddress, nothing, otherUser, "GET /ui", nil, 401},
		{"another user opens the root", callAddress, nothing, otherUser, "GET /", nil, 401},
		{"another user at the page's address", uiAddress, nothing, otherUser, functions, nil, 401},
		{"another user with an absolute target", callAddress, nothing, otherUser, "GET http://HOST/system/functions", nil, 401},
		{"another user, path encoded", callAddress, nothing, otherUser, "GET /%73ystem/functions", nil, 401},
		{"another user, slash encoded", callAddress, nothing, otherUser, "GET /system%2Ffunctions", nil, 401},
		{"another user, path to be cleaned", callAddress, nothing, otherUser, "GET /system//functions", nil, 401},
		{"another user, path that leaves", callAddress, nothing, otherUser, "GET /system/../system/functions", nil, 401},
		{"another user, options", callAddress, nothing, otherUser, "OPTIONS /system/functions", nil, 401},
		{"another user, connect", callAddress, nothing, otherUser, "CONNECT /system/functions", nil, 401},
		// None of these is management.
		{"another user, two slashes", callAddress, nothing, otherUser, "GET //system/functions", nil, 404},
		{"another user, upper case", callAddress, nothing, otherUser, "GET /SYSTEM/functions", nil, 404},
		{"another user, from a function", callAddress, nothing, otherUser, "GET /function/../system/functions", nil, 404},
		{"another user, from a call", callAddress, nothing, otherUser, "POST /function/f/../../system/functions", nil, 200},
		{"another user, no slash", callAddress, nothing, otherUser, "GET /system", nil, 404},
		// What stays open.
		{"another user calls", callAddress, nothing, otherUser, "POST /function/f", nil, 200},
		{"another user lists models", callAddress, nothing, otherUser, "GET /v1/models", nil, 200},
		{"another user measures", callAddress, nothing, otherUser, "GET /metrics", nil, 200},
		{"another user asks whether it lives", callAddress, nothing, otherUser, "GET /healthz", nil, 200},
		{"another user asks whether it is ready", callAddress, nothing, otherUser, "GET /readyz", nil, 200},
		{"a page calls", callAddress, nothing, otherUser, "POST /function/f", crossSite, 200},

		// Other sites.
		{"a page of another site", callAddress, nothing, ownUser, scale, crossSite, 403},
		{"a page of another site, with the password", callAddress, file, ownUser, scale, with(crossSite, password), 403},
		{"a page of another site, everybody", callAddress, everybody, ownUser, scale, crossSite, 403},
		{"a page of another site reads", callAddress, file, ownUser, functions, with(crossSite, password), 403},
		{"a page of another site asks first", callAddress, file, ownUser, "OPTIONS /system/functions", with(crossSite, "Access-Control-Request-Method: DELETE"), 403},
		{"a page of another site at the page's address", uiAddress, file, ownUser, scale, with(crossSite, password), 403},
		{"a page of another port at the page's address", uiAddress, file, ownUser, scale, []string{password, "Origin: http://127.0.0.1:1", "Sec-Fetch-Site: same-site"}, 403},
		{"a page of another site, by the control socket", controlSocket, nothing, ownUser, scale, crossSite, 403},
		{"a page of another site, with the token", callAddress, nothing, ownUser, "GET /system/status", with(crossSite, "Gfaas-Token: TOKEN"), 403},
		{"a page without an origin", callAddress, nothing, ownUser, scale, []string{"Origin: null"}, 403},
		{"a page with an empty origin", callAddress, nothing, ownUser, scale, []string{"Origin: "}, 403},
		{"a browser that sends Origin alone", callAddress, file, ownUser, scale, []string{password, "Origin: http://evil.example"}, 403},
		{"a browser that sends Sec-Fetch-Mode alone", callAddress, file, ownUser, functions, []string{password, "Sec-Fetch-Mode: no-cors"}, 403},
		{"a browser that sends an unknown Sec-Fetch header", uiAddress, nothing, ownUser, functions, []string{"sec-fetch-later: x"}, 403},
		{"a link of another site", callAddress, nothing, ownUser, "GET /ui/", fromElsewhere, 403},
		{"a form of another site", uiAddress, nothing, ownUser, scale, with(fromElsewhere, "Origin: http://evil.example"), 403},
		{"a socket of another site", callAddress, file, ownUser, "GET /system/events", []string{password, "Origin: http://evil.example", "Connection: Upgrade", "Upgrade: websocket"}, 403},
		{"two sites", uiAddress, nothing, ownUser, functions, []string{"Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"}, 403},
		{"two origins", uiAddress, nothing, ownUser, scale, []string{"Origin: http://HOST", "Origin: http://evil.example"}, 403},

		// Pages of functions, which are on the gateway's origin.
		{"a function's page", callAddress, nothing, ownUser, scale, sameOrigin, 403},
		{"a function's page with the password", callAddress, file, ownUser, scale, with(sameOrigin, password), 403},
		{"a function's page with the token", callAddress, nothing, ownUser, scale, with(sameOrigin, "Gfaas-Token: TOKEN"), 403},
		{"a function's page reads logs with the token", callAddress, nothing, ownUser, "GET /system/logs?name=f", with(fetched, "Gfaas-Token: TOKEN"), 403},
		{"a function's page reads functions with the token", callAddress, nothing, ownUser, functions, with(fetched, "Gfaas-Token: TOKEN"), 403},
		{"a function's page looks", callAddress, nothing, ownUser, "GET /system/status", fetched, 403},
		{"a function's page guesses", callAddress, nothing, ownUser, "GET /system/status", with(fetched, "Gfaas-Token: x"), 403},
		{"a function's page fetches the page", callAddress, file, ownUser, "GET /ui/", with(fetched, password), 403},
		{"a function's page frames the page", callAddress, file, ownUser, "GET /ui/", with(framed, password), 403},
		{"a function's page opens logs", callAddress, file, ownUser, "GET /system/logs?name=f", with(followed, password), 403},
		{"a function's page reads metrics", callAddress, file, ownUser, "GET /metrics", with(fetched, password), 403},
		{"a function's page opens metrics", callAddress, file, ownUser, "GET /metrics", with(followed, password), 403},

		// The page at /ui/, and its user.
		{"the page is opened", callAddress, nothing, ownUser, "GET /ui/", typed, 200},
		{"the root is opened", callAddress, nothing, ownUser, "GET /", typed, 302},
		{"the page is loaded again", callAddress, file, ownUser, "GET /ui/", with(followed, password), 200},
		{"the page is opened without the password", callAddress, file, ownUser, "GET /ui/", typed, 401},
		{"a form posts to the page", callAddress, nothing, ownUser, "POST /ui/", typed, 403},
		{"the page looks", callAddress, nothing, ownUser, "GET /system/status", with(fetched, "Gfaas-Token: TOKEN"), 200},
		{"the page looks with the password", callAddress, file, ownUser, "GET /system/status", with(fetched, "Gfaas-Token: TOKEN", password), 200},
		{"the page looks without the password", callAddress, file, ownUser, "GET /system/status", with(fetched, "Gfaas-Token: TOKEN"), 401},
		{"another user has the token", callAddress, nothing, otherUser, "GET /system/status", with(fetched, "Gfaas-Token: TOKEN"), 401},
		{"metrics are opened", callAddress, nothing, ownUser, "GET /metrics", typed, 200},
		{"the page is opened at its address", uiAddress, nothing, ownUser, "GET /ui/", typed, 200},
		{"a link of another site, to the page's address", uiAddress, nothing, ownUser, "GET /ui/", fromElsewhere, 200},
		{"a link of another site, to logs", uiAddress, nothing, ownUser, "GET /system/logs?name=f", fromElsewhere, 403},
		{"the page looks at its address", uiAddress, nothing, ownUser, "GET /system/status", fetched, 200},
		{"functions are opened at the page's address", uiAddress, nothing, ownUser, functions, typed, 200},
		{"the page changes at its address", uiAddress, nothing, ownUser, scale, sameOrigin, 202},
		{"the page changes at its address with the password", uiAddress, file, otherUser, scale, with(sameOrigin, password), 202},
		{"the page changes at its address without the password", uiAddress, file, ownUser, scale, sameOrigin, 401},
		{"a browser without Sec-Fetch at the page's address", uiAddress, nothing, ownUser, scale, []string{"Origin: http://HOST"}, 202},

		// The page's address has no functions.
		{"a call at the page's address", uiAddress, nothing, ownUser, "POST /function/f", nil, 404},
		{"an asynchronous call at the page's address", uiAddress, nothing, ownUser, "POST /async-function/f", nil, 404},
		{"models at the page's address", uiAddress, nothing, ownUser, "GET /v1/models", nil, 404},
		{"a tunnel at the page's address", uiAddress, nothing, ownUser, "CONNECT 192.0.2.7:443", nil, 405},
		{"a tunnel to a function at the page's address", uiAddress, nothing, ownUser, "CONNECT /function/f", nil, 405},
		{"a tunnel to management at the page's address", uiAddress, nothing, ownUser, "CONNECT /system/functions", nil, 405},
		{"a tunnel", callAddress, nothing, ownUser, "CONNECT 192.0.2.7:443", nil, 405},
		{"a program at the page's address", uiAddress, nothing, ownUser, scale, nil, 202},
		{"metrics at the page's address", uiAddress, file, ownUser, "GET /metrics", nil, 401},
		{"health at the page's address", uiAddress, file, otherUser, "GET /healthz", nil, 200},

		// The control socket has checked its peer.
		{"the control socket", controlSocket, file, unknownUser, scale, nil, 202},
		{"the control socket, whatever the host", controlSocket, file, unknownUser, functions, []string{"Host: gateway"}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			from.Store(&c.from)
			a := worlds[c.auth].ask(t, c.at, c.request, c.headers...)
			if a.status != c.status {
				t.Fatalf("%s: got %d %.200s, want %d", c.request, a.status, a.body, c.status)
			}
			switch {
			case a.status == 403:
				own(t, a, 403, codeAuth)
			case a.status == 401 && c.auth == nothing:
				if own(t, a, 401, codeAuth); !strings.Contains(a.body, "--auth") || a.header.Get("WWW-Authenticate") == "" {
					t.Errorf("%s %v: the message does not name --auth, or there is no challenge", a.body, a.header)
				}
			case a.status == 401:
				if own(t, a, 401, codeAuth); a.header.Get("WWW-Authenticate") != `Basic realm="gfaas"` {
					t.Errorf("challenge %q", a.header.Get("WWW-Authenticate"))
				}
			}
		})
	}
}

// ask sends a request to an entrance, over a connection of its own. Without a Host
// header among them it gets the address as its host.
func (w *world) ask(t *testing.T, at entrance, request string, headers ...string) answer {
	t.Helper()
	network, address := "tcp", w.WebAddr().String()
	switch at {
	case controlSocket:
		network, address = "unix", w.cfg.Socket
	case uiAddress:
		address = w.UIAddr().String()
	case callAddress:
	}
	conn, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	body := ""
	if strings.Contains(request, "scale-function") {
		body = `{"replicas":0}`
	}
	if network == "unix" {
		address = "gateway"
	}
	head := request + " HTTP/1.1\r\n" + strings.Join(append(headers, "Connection: close", fmt.Sprintf("Content-Length: %d", len(body))), "\r\n")
	if !strings.Contains("\r\n"+head, "\r\nHost: ") {
		head += "\r\nHost: HOST"
	}
	head = strings.NewReplacer("HOST", address, "TOKEN", w.token).Replace(head)
	if _, err := io.WriteString(conn, head+"\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	return said(t, conn)
}

// TestHostOfManagement: a name that another site could resolve to the gateway's
// address is refused, but for calls.
func TestHostOfManagement(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
		c.Listen, c.UIListen = "localhost:0", "127.0.0.1:0"
		c.AllowedHosts = []string{"Gateway.example.com", "rooted.example."}
	})
	w.apply(fn("f"))
	for host, allowed := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:8080": true, "192.0.2.7": true, "[::1]": true, "[::1]:8080": true, "[fe80::1%25eth0]:80": true, "::1": true,
		"localhost": true, "localhost:1": true, "LocalHost": true, "localhost.": true, "localhost.:8080": true, "localhost:": true, "": true,
		"gateway.example.com": true, "GATEWAY.example.com.:80": true, "rooted.example": true, "rooted.example.": true,
		"evil.example": false, "evil.example:8080": false, "evil.example.": false, "localhost.evil.example": false, "evil.localhost": false,
		"localhost..": false, "127.0.0.1.evil.example": false, "evil.example:127.0.0.1": false, "gateway.example.com.evil.example": false,
		"x.gateway.example.com": false, "[localhost]": false, "[::1].evil.example": false, "[::1": false, ":8080": false, ".": false, "2130706433": false,
	} {
		for _, c := range []struct {
			at      entrance
			request string
			status  int // where the host is allowed
		}{
			{callAddress, "GET /system/functions", 200}, {callAddress, "GET /system/logs?name=f", 200}, {callAddress, "GET /metrics", 200}, {callAddress, "GET /ui/", 200},
			{callAddress, "GET /", 302}, {callAddress, "POST /system/scale-function/f", 202}, {uiAddress, "GET /system/status", 200}, {uiAddress, "GET /metrics", 200},
		} {
			want := c.status
			if !allowed {
				want = 403
			}
			if a := w.ask(t, c.at, c.request, "Host: "+host); a.status != want {
				t.Errorf("Host %q, %s: got %d %.200s, want %d", host, c.request, a.status, a.body, want)
			}
		}
		for _, request := range []string{"POST /function/f", "GET /healthz", "GET /v1/models"} {
			if a := w.ask(t, callAddress, request, "Host: "+host); a.status != 200 {
				t.Errorf("Host %q, %s: got %d %s, want 200", host, request, a.status, a.body)
			}
		}
	}
	// The target of a request names the host that counts, and HTTP/1.0 needs none.
	for request, status := range map[string]int{
		"GET http://evil.example/system/functions": 403, "GET http://localhost/system/functions": 200, "GET http://evil.example/function/f": 200,
	} {
		if a := w.ask(t, callAddress, request); a.status != status {
			t.Errorf("%s: got %d %s, want %d", request, a.status, a.body, status)
		}
	}
	for head, status := range map[string]int{"": 200, "Host: evil.example\r\n": 403, "X-Forwarded-Host: localhost\r\nHost: evil.example\r\n": 403} {
		if a := said(t, w.dial("GET /system/functions HTTP/1.0\r\n"+head+"\r\n")); a.status != status {
			t.Errorf("HTTP/1.0 with %q: got %d %s, want %d", head, a.status, a.body, status)
		}
	}
}

// TestAllowedHostsAreReadAgain with the other settings.
func TestAllowedHostsAreReadAgain(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	own(t, w.ask(t, callAddress, "GET /system/functions", "Host: new.example"), 403, codeAuth)
	w.Gateway.cfg.Reload = func() (Settings, error) { return Settings{AllowedHosts: []string{"new.example"}}, nil }
	if err := w.reload(); err != nil {
		t.Fatal(err)
	}
	if a := w.ask(t, callAddress, "GET /system/functions", "Host: new.example"); a.status != 200 {
		t.Errorf("got %d %s, want 200", a.status, a.body)
	}
}

// TestRealPeers asks the kernel: the test's own connections are admitted, also one on
// which the client has said all, and one that the client has closed is not, though
// the kernel may report that it is root's.
func TestRealPeers(t *testing.T) {
	looks, closed, looked := make(chan struct{}, 9), make(chan struct{}), make(chan error, 9)
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
		c.peerUser = func(ctx context.Context) (int, error) {
			looks <- struct{}{}
			<-closed
			uid, err := connectionUser(ctx)
			looked <- err
			return uid, err
		}
	})
	wait := func(what string, came <-chan struct{}) {
		t.Helper()
		select {
		case <-came:
		case <-time.After(patience):
			t.Fatalf("the user is not looked up of %s", what)
		}
	}
	const request = "GET /system/functions HTTP/1.1\r\nHost: localhost\r\n\r\n"
	gone := w.dial(request)
	wait("a connection", looks)
	_ = gone.Close()
	close(closed)
	if err := <-looked; !errors.Is(err, errNotHeld) {
		t.Errorf("closed: got %v, want %v", err, errNotHeld)
	}
	if a := said(t, w.dial(request)); a.status != 200 {
		t.Errorf("open: got %d %s, want 200", a.status, a.body)
	}
	half := w.dial(request)
	if err := half.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if a := said(t, half); a.status != 200 {
		t.Errorf("half closed: got %d %s, want 200", a.status, a.body)
	}
}
