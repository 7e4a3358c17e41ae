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

	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// peer is the user at the other end of a test's connections.
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

// TestAdmission sends requests to each entrance, as several users and as browsers, to
// gateways with each kind of --auth.
func TestAdmission(t *testing.T) {
	t.Parallel()
	const password = "Authorization: Basic dTpw"
	crossSite := []string{"Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"}
	sameOrigin := []string{"Origin: http://HOST", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"}
	fetched := []string{"Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"} // a GET of a page's script has no Origin
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
	// The kinds of --auth: a file with a password, an empty value, or "none", which
	// admits all users.
	const file, nothing, everybody = "a file", "empty", "none"
	var from atomic.Pointer[peer] // the user that sends the next request
	worlds := map[string]*world{}
	for auth, change := range map[string]func(*Config){
		nothing: func(*Config) {}, file: func(c *Config) { c.Auth = api.NewCredentials("u", "p") }, everybody: func(c *Config) { c.Open = true },
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
		at      api.Entrance
		auth    string
		from    peer
		request string
		headers []string // HOST stands for the address, TOKEN for the token of the page
		status  int
	}{
		// Clients other than browsers.
		{"own user", api.CallAddress, nothing, ownUser, functions, nil, 200},
		{"own user scales", api.CallAddress, nothing, ownUser, scale, nil, 202},
		{"root", api.CallAddress, nothing, rootUser, scale, nil, 202},
		{"password", api.CallAddress, file, otherUser, scale, []string{password}, 202},
		{"no password", api.CallAddress, file, ownUser, functions, nil, 401},
		{"wrong password", api.CallAddress, file, ownUser, functions, []string{"Authorization: Basic dTpx"}, 401},
		{"any user of an open gateway", api.CallAddress, everybody, otherUser, scale, nil, 202},
		{"unknown user of an open gateway", api.CallAddress, everybody, unknownUser, scale, nil, 202},

		// Other users of the host.
		{"another user", api.CallAddress, nothing, otherUser, functions, nil, 401},
		{"an unknown user", api.CallAddress, nothing, unknownUser, functions, nil, 401},
		{"another user scales", api.CallAddress, nothing, otherUser, scale, nil, 401},
		{"another user deploys", api.CallAddress, nothing, otherUser, "POST /system/functions", nil, 401},
		{"another user removes", api.CallAddress, nothing, otherUser, "DELETE /system/functions", nil, 401},
		{"another user reads logs", api.CallAddress, nothing, otherUser, "GET /system/logs?name=f", nil, 401},
		{"another user reads an answer", api.CallAddress, nothing, otherUser, "GET /system/async/x", nil, 401},
		{"another user follows events", api.CallAddress, nothing, otherUser, "GET /system/events", nil, 401},
		{"another user opens the page", api.CallAddress, nothing, otherUser, "GET /ui/", typed, 401},
		{"another user opens ui", api.CallAddress, nothing, otherUser, "GET /ui", nil, 401},
		{"another user opens the root", api.CallAddress, nothing, otherUser, "GET /", nil, 401},
		{"another user at the page's address", api.UIAddress, nothing, otherUser, functions, nil, 401},
		{"another user with an absolute target", api.CallAddress, nothing, otherUser, "GET http://HOST/system/functions", nil, 401},
		{"another user, path encoded", api.CallAddress, nothing, otherUser, "GET /%73ystem/functions", nil, 401},
		{"another user, slash encoded", api.CallAddress, nothing, otherUser, "GET /system%2Ffunctions", nil, 401},
		{"another user, path to be cleaned", api.CallAddress, nothing, otherUser, "GET /system//functions", nil, 401},
		{"another user, path with ..", api.CallAddress, nothing, otherUser, "GET /system/../system/functions", nil, 401},
		{"another user, options", api.CallAddress, nothing, otherUser, "OPTIONS /system/functions", nil, 401},
		{"another user, connect", api.CallAddress, nothing, otherUser, "CONNECT /system/functions", nil, 401},
		// These paths do not lead to management.
		{"another user, two slashes", api.CallAddress, nothing, otherUser, "GET //system/functions", nil, 404},
		{"another user, upper case", api.CallAddress, nothing, otherUser, "GET /SYSTEM/functions", nil, 404},
		{"another user, .. after /function", api.CallAddress, nothing, otherUser, "GET /function/../system/functions", nil, 404},
		{"another user, .. after a call path", api.CallAddress, nothing, otherUser, "POST /function/f/../../system/functions", nil, 200},
		{"another user, no slash", api.CallAddress, nothing, otherUser, "GET /system", nil, 404},
		// Paths that are open to all users.
		{"another user calls", api.CallAddress, nothing, otherUser, "POST /function/f", nil, 200},
		{"another user lists models", api.CallAddress, nothing, otherUser, "GET /v1/models", nil, 200},
		{"another user reads metrics", api.CallAddress, nothing, otherUser, "GET /metrics", nil, 200},
		{"another user checks health", api.CallAddress, nothing, otherUser, "GET /healthz", nil, 200},
		{"another user checks readiness", api.CallAddress, nothing, otherUser, "GET /readyz", nil, 200},
		{"a page calls", api.CallAddress, nothing, otherUser, "POST /function/f", crossSite, 200},

		// Pages of other sites.
		{"a page of another site", api.CallAddress, nothing, ownUser, scale, crossSite, 403},
		{"a page of another site, with the password", api.CallAddress, file, ownUser, scale, with(crossSite, password), 403},
		{"a page of another site, open gateway", api.CallAddress, everybody, ownUser, scale, crossSite, 403},
		{"a page of another site reads", api.CallAddress, file, ownUser, functions, with(crossSite, password), 403},
		{"a page of another site sends a preflight", api.CallAddress, file, ownUser, "OPTIONS /system/functions", with(crossSite, "Access-Control-Request-Method: DELETE"), 403},
		{"a page of another site at the page's address", api.UIAddress, file, ownUser, scale, with(crossSite, password), 403},
		{"a page of another port at the page's address", api.UIAddress, file, ownUser, scale, []string{password, "Origin: http://127.0.0.1:1", "Sec-Fetch-Site: same-site"}, 403},
		{"a page of another site, by the control socket", api.ControlSocket, nothing, ownUser, scale, crossSite, 403},
		{"a page of another site, with the token", api.CallAddress, nothing, ownUser, "GET /system/status", with(crossSite, "Gfaas-Token: TOKEN"), 403},
		{"a page without an origin", api.CallAddress, nothing, ownUser, scale, []string{"Origin: null"}, 403},
		{"a page with an empty origin", api.CallAddress, nothing, ownUser, scale, []string{"Origin: "}, 403},
		{"a browser that sends Origin alone", api.CallAddress, file, ownUser, scale, []string{password, "Origin: http://evil.example"}, 403},
		{"a browser that sends Sec-Fetch-Mode alone", api.CallAddress, file, ownUser, functions, []string{password, "Sec-Fetch-Mode: no-cors"}, 403},
		{"a browser that sends an unknown Sec-Fetch header", api.UIAddress, nothing, ownUser, functions, []string{"sec-fetch-later: x"}, 403},
		{"a link of another site", api.CallAddress, nothing, ownUser, "GET /ui/", fromElsewhere, 403},
		{"a form of another site", api.UIAddress, nothing, ownUser, scale, with(fromElsewhere, "Origin: http://evil.example"), 403},
		{"a socket of another site", api.CallAddress, file, ownUser, "GET /system/events", []string{password, "Origin: http://evil.example", "Connection: Upgrade", "Upgrade: websocket"}, 403},
		{"two sites", api.UIAddress, nothing, ownUser, functions, []string{"Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"}, 403},
		{"two origins", api.UIAddress, nothing, ownUser, scale, []string{"Origin: http://HOST", "Origin: http://evil.example"}, 403},

		// Pages of functions, which share the gateway's origin.
		{"a function's page", api.CallAddress, nothing, ownUser, scale, sameOrigin, 403},
		{"a function's page with the password", api.CallAddress, file, ownUser, scale, with(sameOrigin, password), 403},
		{"a function's page with the token", api.CallAddress, nothing, ownUser, scale, with(sameOrigin, "Gfaas-Token: TOKEN"), 403},
		{"a function's page reads logs with the token", api.CallAddress, nothing, ownUser, "GET /system/logs?name=f", with(fetched, "Gfaas-Token: TOKEN"), 403},
		{"a function's page reads functions with the token", api.CallAddress, nothing, ownUser, functions, with(fetched, "Gfaas-Token: TOKEN"), 403},
		{"a function's page reads the status", api.CallAddress, nothing, ownUser, "GET /system/status", fetched, 403},
		{"a function's page guesses the token", api.CallAddress, nothing, ownUser, "GET /system/status", with(fetched, "Gfaas-Token: x"), 403},
		{"a function's page fetches the page", api.CallAddress, file, ownUser, "GET /ui/", with(fetched, password), 403},
		{"a function's page frames the page", api.CallAddress, file, ownUser, "GET /ui/", with(framed, password), 403},
		{"a function's page opens logs", api.CallAddress, file, ownUser, "GET /system/logs?name=f", with(followed, password), 403},
		{"a function's page reads metrics", api.CallAddress, file, ownUser, "GET /metrics", with(fetched, password), 403},
		{"a function's page opens metrics", api.CallAddress, file, ownUser, "GET /metrics", with(followed, password), 403},

		// The page at /ui/ and its user.
		{"the page is opened", api.CallAddress, nothing, ownUser, "GET /ui/", typed, 200},
		{"the root is opened", api.CallAddress, nothing, ownUser, "GET /", typed, 302},
		{"the page is loaded again", api.CallAddress, file, ownUser, "GET /ui/", with(followed, password), 200},
		{"the page is opened without the password", api.CallAddress, file, ownUser, "GET /ui/", typed, 401},
		{"a form posts to the page", api.CallAddress, nothing, ownUser, "POST /ui/", typed, 403},
		{"the page reads the status", api.CallAddress, nothing, ownUser, "GET /system/status", with(fetched, "Gfaas-Token: TOKEN"), 200},
		{"the page reads the status with the password", api.CallAddress, file, ownUser, "GET /system/status", with(fetched, "Gfaas-Token: TOKEN", password), 200},
		{"the page reads the status without the password", api.CallAddress, file, ownUser, "GET /system/status", with(fetched, "Gfaas-Token: TOKEN"), 401},
		{"another user has the token", api.CallAddress, nothing, otherUser, "GET /system/status", with(fetched, "Gfaas-Token: TOKEN"), 401},
		{"metrics are opened", api.CallAddress, nothing, ownUser, "GET /metrics", typed, 200},
		{"the page is opened at its address", api.UIAddress, nothing, ownUser, "GET /ui/", typed, 200},
		{"a link of another site, to the page's address", api.UIAddress, nothing, ownUser, "GET /ui/", fromElsewhere, 200},
		{"a link of another site, to logs", api.UIAddress, nothing, ownUser, "GET /system/logs?name=f", fromElsewhere, 403},
		{"the page reads the status at its address", api.UIAddress, nothing, ownUser, "GET /system/status", fetched, 200},
		{"functions are opened at the page's address", api.UIAddress, nothing, ownUser, functions, typed, 200},
		{"the page scales at its address", api.UIAddress, nothing, ownUser, scale, sameOrigin, 202},
		{"the page scales at its address with the password", api.UIAddress, file, otherUser, scale, with(sameOrigin, password), 202},
		{"the page scales at its address without the password", api.UIAddress, file, ownUser, scale, sameOrigin, 401},
		{"a browser without Sec-Fetch at the page's address", api.UIAddress, nothing, ownUser, scale, []string{"Origin: http://HOST"}, 202},

		// The address of the page serves no functions.
		{"a call at the page's address", api.UIAddress, nothing, ownUser, "POST /function/f", nil, 404},
		{"an asynchronous call at the page's address", api.UIAddress, nothing, ownUser, "POST /async-function/f", nil, 404},
		{"models at the page's address", api.UIAddress, nothing, ownUser, "GET /v1/models", nil, 404},
		{"a tunnel at the page's address", api.UIAddress, nothing, ownUser, "CONNECT 192.0.2.7:443", nil, 405},
		{"a tunnel to a function at the page's address", api.UIAddress, nothing, ownUser, "CONNECT /function/f", nil, 405},
		{"a tunnel to management at the page's address", api.UIAddress, nothing, ownUser, "CONNECT /system/functions", nil, 405},
		{"a tunnel", api.CallAddress, nothing, ownUser, "CONNECT 192.0.2.7:443", nil, 405},
		{"a program at the page's address", api.UIAddress, nothing, ownUser, scale, nil, 202},
		{"metrics at the page's address", api.UIAddress, file, ownUser, "GET /metrics", nil, 401},
		{"health at the page's address", api.UIAddress, file, otherUser, "GET /healthz", nil, 200},

		// The gateway has checked the peer when it accepts a connection on the control
		// socket.
		{"the control socket", api.ControlSocket, file, unknownUser, scale, nil, 202},
		{"the control socket, whatever the host", api.ControlSocket, file, unknownUser, functions, []string{"Host: gateway"}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			from.Store(&c.from)
			a := worlds[c.auth].ask(t, c.at, c.request, c.headers...)
			if a.status != c.status {
				t.Fatalf("%s: got %d %.200s, want %d", c.request, a.status, a.body, c.status)
			}
			switch {
			case a.status == 403:
				checkRefusal(t, a, 403, refusal.Auth)
			case a.status == 401 && c.auth == nothing:
				if checkRefusal(t, a, 401, refusal.Auth); !strings.Contains(a.body, "--auth") || a.header.Get("WWW-Authenticate") == "" {
					t.Errorf("refusal: got %s with the header %v, want a message that names --auth, and a challenge", a.body, a.header)
				}
			case a.status == 401:
				if checkRefusal(t, a, 401, refusal.Auth); a.header.Get("WWW-Authenticate") != `Basic realm="gfaas"` {
					t.Errorf(`challenge %q, want Basic realm="gfaas"`, a.header.Get("WWW-Authenticate"))
				}
			}
		})
	}
}

// token returns the token of the page at /ui/.
func (w *world) token() string {
	w.t.Helper()
	control := http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", w.cfg.Socket) }}
	r, err := http.NewRequest("GET", "http://gateway/ui/", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	answer, err := control.RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), `"Gfaas-Token": "`)
	token, _, found := strings.Cut(after, `"`)
	if !found || token == "" {
		w.t.Fatalf("page of the gateway: got no token, want one, in %s", page)
	}
	return token
}

// ask sends a request to an entrance over a new connection. Unless the headers include
// Host, it sends the address of the entrance as the host.
func (w *world) ask(t *testing.T, at api.Entrance, request string, headers ...string) answer {
	t.Helper()
	network, address := "tcp", w.WebAddr().String()
	switch at {
	case api.ControlSocket:
		network, address = "unix", w.cfg.Socket
	case api.UIAddress:
		address = w.UIAddr().String()
	case api.CallAddress:
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
	head = strings.NewReplacer("HOST", address, "TOKEN", w.token()).Replace(head)
	if _, err := io.WriteString(conn, head+"\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	return readAnswer(t, conn)
}

// TestHostOfManagement checks that only calls are accepted with a host name that another
// site could resolve to the gateway's address.
func TestHostOfManagement(t *testing.T) {
	t.Parallel()
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
			at      api.Entrance
			request string
			status  int // for an allowed host
		}{
			{api.CallAddress, "GET /system/functions", 200}, {api.CallAddress, "GET /system/logs?name=f", 200}, {api.CallAddress, "GET /metrics", 200}, {api.CallAddress, "GET /ui/", 200},
			{api.CallAddress, "GET /", 302}, {api.CallAddress, "POST /system/scale-function/f", 202}, {api.UIAddress, "GET /system/status", 200}, {api.UIAddress, "GET /metrics", 200},
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
			if a := w.ask(t, api.CallAddress, request, "Host: "+host); a.status != 200 {
				t.Errorf("Host %q, %s: got %d %s, want 200", host, request, a.status, a.body)
			}
		}
	}
	// An absolute target overrides the Host header, and HTTP/1.0 requires no Host header.
	for request, status := range map[string]int{
		"GET http://evil.example/system/functions": 403, "GET http://localhost/system/functions": 200, "GET http://evil.example/function/f": 200,
	} {
		if a := w.ask(t, api.CallAddress, request); a.status != status {
			t.Errorf("%s: got %d %s, want %d", request, a.status, a.body, status)
		}
	}
	for head, status := range map[string]int{"": 200, "Host: evil.example\r\n": 403, "X-Forwarded-Host: localhost\r\nHost: evil.example\r\n": 403} {
		if a := readAnswer(t, w.dial("GET /system/functions HTTP/1.0\r\n"+head+"\r\n")); a.status != status {
			t.Errorf("HTTP/1.0 with %q: got %d %s, want %d", head, a.status, a.body, status)
		}
	}
}

// TestAllowedHostsAreReadAgain checks that a reload of the settings also updates the
// allowed hosts.
func TestAllowedHostsAreReadAgain(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	checkRefusal(t, w.ask(t, api.CallAddress, "GET /system/functions", "Host: new.example"), 403, refusal.Auth)
	w.Gateway.cfg.Reload = func() (Settings, error) {
		return Settings{Access: api.Access{AllowedHosts: []string{"new.example"}}}, nil
	}
	if err := w.reload(); err != nil {
		t.Fatal(err)
	}
	if a := w.ask(t, api.CallAddress, "GET /system/functions", "Host: new.example"); a.status != 200 {
		t.Errorf("got %d %s, want 200", a.status, a.body)
	}
}

// TestRealPeers looks up the users of real connections in the kernel. The gateway admits
// the test's own connections, even if the client has closed its sending side. It does not
// admit a connection that the client has closed, for which the kernel may report root.
func TestRealPeers(t *testing.T) {
	lookups, closed, results := make(chan struct{}, 9), make(chan struct{}), make(chan error, 9)
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
		c.peerUser = func(ctx context.Context) (int, error) {
			lookups <- struct{}{}
			<-closed
			uid, err := api.ConnectionUser(ctx)
			results <- err
			return uid, err
		}
	})
	wait := func(what string, came <-chan struct{}) {
		t.Helper()
		select {
		case <-came:
		case <-time.After(patience):
			t.Fatalf("the gateway did not look up the user of %s within %v, want a lookup", what, patience)
		}
	}
	const request = "GET /system/functions HTTP/1.1\r\nHost: localhost\r\n\r\n"
	closing := w.dial(request)
	wait("a connection", lookups)
	_ = closing.Close()
	close(closed)
	if err := <-results; !errors.Is(err, api.ErrNotHeld) {
		t.Errorf("closed: got %v, want %v", err, api.ErrNotHeld)
	}
	if a := readAnswer(t, w.dial(request)); a.status != 200 {
		t.Errorf("open: got %d %s, want 200", a.status, a.body)
	}
	half := w.dial(request)
	if err := half.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if a := readAnswer(t, half); a.status != 200 {
		t.Errorf("half closed: got %d %s, want 200", a.status, a.body)
	}
}
