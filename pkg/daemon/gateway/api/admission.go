package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// Entrance is an address at which the gateway answers.
type Entrance uint8

// The entrances.
const (
	ControlSocket Entrance = iota // accepts only connections of the gateway's user and of root
	CallAddress                   // Config.Listen
	UIAddress                     // Config.UIListen, where functions cannot be called
)

// Access defines access to the gateway. It may change while the gateway runs.
type Access struct {
	Auth          *Credentials // if nil, only the gateway's user and root may manage it, unless Open is set
	AuthFunctions bool         // calls require the password as well
	Open          bool         // without Auth, all users may manage the gateway
	AllowedHosts  []string     // further host names for management, besides those of Listen and UIListen
	Origins       Origins      // web pages that may call functions
}

// guard decides which requests are admitted.
type guard struct {
	access   atomic.Pointer[Access]
	token    string   // token of the page at /ui/
	listens  []string // addresses that the gateway listens on, as the user gave them
	peerUser func(context.Context) (uid int, err error)
}

// Credentials are the hashes of a user name and a password.
type Credentials struct{ user, password [sha256.Size]byte }

// NewCredentials returns the credentials of a user.
func NewCredentials(user, password string) *Credentials {
	return &Credentials{sha256.Sum256([]byte(user)), sha256.Sum256([]byte(password))}
}

// allows checks in constant time whether a request has the credentials.
func (c *Credentials) allows(r *http.Request) bool {
	user, password, given := r.BasicAuth()
	u, p := sha256.Sum256([]byte(user)), sha256.Sum256([]byte(password))
	same := subtle.ConstantTimeCompare(u[:], c.user[:]) & subtle.ConstantTimeCompare(p[:], c.password[:])
	return given && same == 1
}

// TokenHeader carries the token of the page at /ui/.
const TokenHeader = "Gfaas-Token"

// managed reports whether a path is for management. The guard and the router both use this
// function on the decoded path. A request that is routed to management has therefore always
// been checked as such.
func managed(path string) bool {
	return path == "/" || path == "/ui" || path == "/models/load" || path == "/models/unload" || strings.HasPrefix(path, "/ui/") || strings.HasPrefix(path, "/system/")
}

// guarded reports whether a path is for management or monitoring, which web pages of other sites
// cannot use.
func guarded(path string) bool { return managed(path) || path == "/metrics" }

// open reports whether all clients may request a path without a password.
func open(path string) bool { return path == "/healthz" || path == "/readyz" || path == "/health" }

// Guard returns a handler that passes admitted requests to next and refuses others.
// Handlers may answer before they have read the body (inbound.Intake.Framed).
func (a *API) Guard(at Entrance, next http.Handler) http.Handler {
	admitted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/") {
			r = a.guard.withManager(at, r)
		}
		if fault := a.guard.admit(at, r); fault != nil {
			a.refuse(w, r, fault)
			return
		}
		next.ServeHTTP(w, r)
	})
	return a.cfg.Intake.Framed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if origins := a.guard.access.Load().Origins; len(origins) > 0 && at == CallAddress && !guarded(r.URL.Path) {
			origins.share(a, w, r, admitted)
			return
		}
		admitted.ServeHTTP(w, r)
	}))
}

// managerKey is the key of the function in a request's context that managerFault calls.
type managerKey struct{}

// managerFault returns the reason why the sender of a request must not manage the gateway, or nil. It knows only
// senders of requests that withManager returned.
func managerFault(r *http.Request) *refusal.Error {
	if fault, ok := r.Context().Value(managerKey{}).(func() *refusal.Error); ok {
		return fault()
	}
	return &refusal.Error{Code: refusal.Auth, Message: "the gateway does not know the sender of the request"}
}

// withManager returns the request for use with managerFault. It must be called before admit, which removes the
// credentials.
func (g *guard) withManager(at Entrance, r *http.Request) *http.Request {
	header := r.Header.Clone()
	return r.WithContext(context.WithValue(r.Context(), managerKey{}, func() *refusal.Error {
		m := (&http.Request{Method: r.Method, URL: &url.URL{Path: "/system/"}, Host: r.Host, Header: header.Clone()}).WithContext(r.Context())
		return g.admit(at, m)
	}))
}

// admit returns the reason for refusing a request, or nil. A call of a function is refused
// only if calls require a password. Management and /metrics are also refused under a
// foreign host name and to web pages; management without a password is refused to other
// local users.
func (g *guard) admit(at Entrance, r *http.Request) *refusal.Error {
	s, path := g.access.Load(), r.URL.Path
	management, guarded := managed(path), guarded(path)
	// Strip the credentials even if no password is required: a browser sends them to a
	// function that answers 401 on the gateway's origin.
	authenticated := s.Auth != nil && s.Auth.strip(r)
	switch {
	case open(path), heartbeat(r), !guarded && !s.AuthFunctions:
		return nil
	case guarded && at != ControlSocket && !g.namesGateway(r.Host):
		return &refusal.Error{Status: http.StatusForbidden, Code: refusal.Auth, Message: fmt.Sprintf("%s is not available under the host name %.100q", path, r.Host),
			Hint: "use an IP address or localhost, or allow the name with gfaas serve --allowed-host NAME"}
	case guarded && fromBrowser(r.Header) && !g.admitsBrowser(at, r):
		return &refusal.Error{Status: http.StatusForbidden, Code: refusal.Auth, Message: "web pages cannot use " + path + " at this address",
			Hint: "open /ui/ (at the address of gfaas serve --ui-listen, if set), or use a client that is not a browser"}
	case at == ControlSocket:
		return nil
	case s.Auth != nil && !authenticated:
		return &refusal.Error{Code: refusal.Auth, Message: "missing or wrong user and password", Challenge: `Basic realm="gfaas"`}
	case s.Auth == nil && management && !s.Open:
		return g.checkUser(r.Context())
	}
	return nil
}

// strip reports whether a request has the credentials, and removes them, because functions
// must not see them. Clients may send several Authorization fields, or extra blanks in a
// field.
func (c *Credentials) strip(r *http.Request) bool {
	for _, value := range r.Header["Authorization"] {
		request := http.Request{Header: http.Header{"Authorization": {strings.Join(strings.Fields(value), " ")}}}
		if c.allows(&request) {
			r.Header.Del("Authorization")
			return true
		}
	}
	return false
}

// namesGateway reports whether a Host header names the gateway: it is an IP address,
// localhost or a configured name. Another name may belong to a site that made its name
// resolve to the gateway's address (DNS rebinding). A request without the header passes,
// because browsers always send it.
func (g *guard) namesGateway(host string) bool {
	name, ok := hostName(host)
	switch {
	case host == "":
		return true
	case !ok:
		return false
	}
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" {
		return true
	}
	same := func(allowed string) bool { return strings.EqualFold(strings.TrimSuffix(allowed, "."), name) }
	return slices.ContainsFunc(g.access.Load().AllowedHosts, same) ||
		slices.ContainsFunc(g.listens, func(address string) bool {
			listens, _, err := net.SplitHostPort(address)
			return err == nil && same(listens)
		})
}

// hostName returns the host of a Host header in lower case, without port and without the
// dot at the end of a rooted name. It returns false if the host is empty or the port is
// malformed.
func hostName(host string) (name string, ok bool) {
	name = host
	port := ""
	if inner, bracketed := strings.CutPrefix(host, "["); bracketed {
		if name, port, ok = strings.Cut(inner, "]"); !ok || !strings.Contains(name, ":") {
			return "", false
		}
	} else if strings.Count(host, ":") == 1 { // several colons mean an IPv6 address
		at := strings.IndexByte(host, ':')
		name, port = host[:at], host[at:]
	}
	if port != "" && (port[0] != ':' || strings.Trim(port[1:], "0123456789") != "") {
		return "", false
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name, name != ""
}

// fromBrowser reports whether a request has a header that browsers add and that pages can
// neither remove nor change.
func fromBrowser(h http.Header) bool {
	for name := range h {
		if name == "Origin" || strings.HasPrefix(name, "Sec-Fetch-") {
			return true
		}
	}
	return false
}

// admitsBrowser reports whether a browser's request for management or /metrics may pass. It
// must come from the user, not from a foreign page that exploits the credentials that the
// browser sends on its own. Functions serve pages on the origin of Config.Listen. There,
// even a page of the same origin only gets the data that /ui/ shows, and only with the
// token of /ui/.
func (g *guard) admitsBrowser(at Entrance, r *http.Request) bool {
	path := r.URL.Path
	page := path == "/" || path == "/ui" || path == "/ui/"
	if opened, site := navigation(r); opened {
		switch {
		case at == UIAddress:
			return page || site == "same-origin" || site == "none"
		case page:
			return site == "same-origin" || site == "none"
		default:
			return path == "/metrics" && site == "none"
		}
	}
	if !sameOrigin(r) {
		return false
	}
	display := r.Method == http.MethodGet && (path == "/system/events" || path == "/system/status")
	return at == UIAddress || display && subtle.ConstantTimeCompare([]byte(r.Header.Get(TokenHeader)), []byte(g.token)) == 1
}

// navigation reports whether a browser loads a page into a tab, for example because the
// user follows a link. It returns the origin of the navigation as in Sec-Fetch-Site; "none"
// means that the user started it.
func navigation(r *http.Request) (ok bool, site string) {
	site, known := single(r.Header, "Sec-Fetch-Site")
	mode, _ := single(r.Header, "Sec-Fetch-Mode")
	dest, _ := single(r.Header, "Sec-Fetch-Dest")
	_, origin := r.Header["Origin"]
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	return known && !origin && reads && mode == "navigate" && dest == "document", site
}

// sameOrigin reports whether a page of the gateway's own origin caused a browser's request.
func sameOrigin(r *http.Request) bool {
	site, known := single(r.Header, "Sec-Fetch-Site")
	origin, named := single(r.Header, "Origin")
	if !known && r.Header["Sec-Fetch-Site"] != nil || !named && r.Header["Origin"] != nil {
		return false
	}
	scheme, host, _ := strings.Cut(origin, "://")
	if named && (scheme != "http" && scheme != "https" || !strings.EqualFold(host, r.Host)) {
		return false
	}
	return known && site == "same-origin" || !known && named
}

// single returns the value of a header field that occurs exactly once.
func single(h http.Header, name string) (value string, ok bool) {
	values := h[name]
	if len(values) != 1 {
		return "", false
	}
	return values[0], true
}

// checkUser refuses a request without a password if another local user sent it, or if the
// user cannot be determined.
func (g *guard) checkUser(ctx context.Context) *refusal.Error {
	own := os.Geteuid()
	uid, err := g.peerUser(ctx)
	if err == nil && (uid == own || uid == 0) {
		return nil
	}
	owner := fmt.Sprintf("this connection belongs to uid %d", uid)
	if err != nil {
		owner = "cannot determine the user of this connection: " + err.Error()
	}
	return &refusal.Error{Code: refusal.Auth, Challenge: `Local-User realm="gfaas"`,
		Message: fmt.Sprintf("without --auth, only user %d and root may manage this gateway; %s", own, owner),
		Hint:    "set a password with gfaas serve --auth FILE"}
}

// ErrNotHeld is the error of ConnectionUser for a connection that its caller has closed.
var ErrNotHeld = errors.New("no process on this machine holds its other end")

var errNoSocket = errors.New("it is not a TCP connection")

// ConnectionUser returns the local user whose process holds the other end of a request's
// connection. ctx is the request's context.
func ConnectionUser(ctx context.Context) (uid int, err error) {
	conn := inbound.ConnOf(ctx)
	if conn == nil {
		return 0, errNoSocket
	}
	local, ok := conn.LocalAddr().(*net.TCPAddr)
	remote, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return 0, errNoSocket
	}
	uid, found, err := procfs.ConnectionUser(remote.AddrPort(), local.AddrPort())
	if err != nil {
		return 0, err
	}
	// While this end is open, no connection of another user can have the same addresses, so
	// the user that was found holds its other end.
	if alive, err := isOpen(conn); err != nil {
		return 0, err
	} else if !found || !alive {
		return 0, ErrNotHeld
	}
	return uid, nil
}

// isOpen reports whether this end of a connection is open. The other end may have stopped
// sending.
func isOpen(conn syscall.Conn) (bool, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, err
	}
	var info *unix.TCPInfo
	var failed error
	if err := raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); err != nil {
		return false, err
	}
	if failed != nil {
		return false, failed
	}
	return info.State == unix.BPF_TCP_ESTABLISHED || info.State == unix.BPF_TCP_CLOSE_WAIT, nil
}
