package gateway

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// entrance is an address at which the gateway answers.
type entrance uint8

const (
	controlSocket entrance = iota // it accepts only connections of the gateway's user and of root
	callAddress                   // Config.Listen
	uiAddress                     // Config.UIListen, which answers no calls
)

// TokenHeader carries the token of the page at /ui/.
const TokenHeader = "Gfaas-Token"

// managed reports whether a path is for managing the gateway. The guard and the
// router both decide by this function and by the decoded path, so a request that is
// routed to management has always been checked as such.
func managed(path string) bool {
	return path == "/" || path == "/ui" || strings.HasPrefix(path, "/ui/") || strings.HasPrefix(path, "/system/")
}

// open reports whether a path is for everybody, with or without a password.
func open(path string) bool { return path == "/healthz" || path == "/readyz" }

// guard checks the requests that come in at an entrance.
func (g *Gateway) guard(at entrance, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := g.admit(at, r); fault != nil {
			g.refuse(w, r, fault)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// admit returns why a request is refused, or nil. Calls of functions are refused only
// if they need a password. Management and /metrics are also refused to other hosts and
// to browsers, and management without a password to other users of the machine.
func (g *Gateway) admit(at entrance, r *http.Request) *Error {
	s, path := g.settings.Load(), r.URL.Path
	management := managed(path)
	guarded := management || path == "/metrics"
	// Also where no password is needed: a browser sends it to a function that asks for it
	// in the name of the gateway.
	authenticated := s.Auth != nil && s.Auth.strip(r)
	switch {
	case open(path), !guarded && !s.AuthFunctions:
		return nil
	case guarded && at != controlSocket && !g.namesGateway(r.Host):
		return &Error{Status: http.StatusForbidden, Code: codeAuth, Message: fmt.Sprintf("%s is not available under the host name %.100q", path, r.Host),
			Hint: "use an IP address or localhost; gfaas serve --allowed-host NAME allows a name"}
	case guarded && fromBrowser(r.Header) && !g.admitsBrowser(at, r):
		return &Error{Status: http.StatusForbidden, Code: codeAuth, Message: "web pages cannot use " + path + " at this address",
			Hint: "open /ui/, at the address of gfaas serve --ui-listen if it has one, or use a client that is not a browser"}
	case at == controlSocket:
		return nil
	case s.Auth != nil && !authenticated:
		return &Error{Status: http.StatusUnauthorized, Code: codeAuth, Message: "user and password are missing or wrong", Challenge: `Basic realm="gfaas"`}
	case s.Auth == nil && management && !s.Open:
		return g.checkUser(r.Context())
	}
	return nil
}

// strip reports whether a request has the credentials, and removes them from it: no
// function may see them. Clients may send several fields, or blanks within one.
func (c *Credentials) strip(r *http.Request) bool {
	for _, value := range r.Header["Authorization"] {
		one := http.Request{Header: http.Header{"Authorization": {strings.Join(strings.Fields(value), " ")}}}
		if c.allows(&one) {
			r.Header.Del("Authorization")
			return true
		}
	}
	return false
}

// namesGateway reports whether a Host header cannot be the name of another site that
// resolves to the gateway's address (DNS rebinding): it is an IP address, localhost,
// or a name that the gateway was configured with. Browsers always send the header,
// so a request without it passes.
func (g *Gateway) namesGateway(host string) bool {
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
	return slices.ContainsFunc(g.settings.Load().AllowedHosts, same) ||
		slices.ContainsFunc([]string{g.cfg.Listen, g.cfg.UIListen}, func(address string) bool {
			listens, _, err := net.SplitHostPort(address)
			return err == nil && same(listens)
		})
}

// hostName returns the host in a Host header in lower case, without the port and the
// dot at the end of a rooted name. It fails if there is no host, or the rest is not a
// port.
func hostName(host string) (name string, ok bool) {
	name = host
	port := ""
	if inner, bracketed := strings.CutPrefix(host, "["); bracketed {
		if name, port, ok = strings.Cut(inner, "]"); !ok || !strings.Contains(name, ":") {
			return "", false
		}
	} else if strings.Count(host, ":") == 1 { // more make an IPv6 address
		at := strings.IndexByte(host, ':')
		name, port = host[:at], host[at:]
	}
	if port != "" && (port[0] != ':' || strings.Trim(port[1:], "0123456789") != "") {
		return "", false
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name, name != ""
}

// fromBrowser reports whether a request has a header that browsers add and pages
// cannot remove or change.
func fromBrowser(h http.Header) bool {
	for name := range h {
		if name == "Origin" || strings.HasPrefix(name, "Sec-Fetch-") {
			return true
		}
	}
	return false
}

// admitsBrowser reports whether a browser's request for a management path or /metrics
// is one of the user, and not of a page that uses the credentials that the browser
// sends by itself. Functions serve pages on the origin of Config.Listen, so there even
// a page of the same origin may only look: it gets what /ui/ shows, if it has the
// token of /ui/.
func (g *Gateway) admitsBrowser(at entrance, r *http.Request) bool {
	path := r.URL.Path
	page := path == "/" || path == "/ui" || path == "/ui/"
	if opened, site := navigation(r); opened {
		switch {
		case at == uiAddress:
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
	look := r.Method == http.MethodGet && (path == "/system/events" || path == "/system/status")
	return at == uiAddress || look && subtle.ConstantTimeCompare([]byte(r.Header.Get(TokenHeader)), []byte(g.token)) == 1
}

// navigation reports whether a browser loads a page into a tab of its own, as when the
// user follows a link, and returns what had it loaded (Sec-Fetch-Site): none is the
// user.
func navigation(r *http.Request) (ok bool, site string) {
	site, known := single(r.Header, "Sec-Fetch-Site")
	mode, _ := single(r.Header, "Sec-Fetch-Mode")
	dest, _ := single(r.Header, "Sec-Fetch-Dest")
	_, origin := r.Header["Origin"]
	look := r.Method == http.MethodGet || r.Method == http.MethodHead
	return known && !origin && look && mode == "navigate" && dest == "document", site
}

// sameOrigin reports whether a browser sends a request for a page of the origin that
// the request is for.
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

// single returns the value of a header that a request has once.
func single(h http.Header, name string) (value string, ok bool) {
	values := h[name]
	if len(values) != 1 {
		return "", false
	}
	return values[0], true
}

// checkUser returns why a request without a password is refused: another user of the
// machine sent it, or nothing shows who did.
func (g *Gateway) checkUser(ctx context.Context) *Error {
	own := os.Geteuid()
	uid, err := g.cfg.peerUser(ctx)
	if err == nil && (uid == own || uid == 0) {
		return nil
	}
	whose := fmt.Sprintf("this connection belongs to uid %d", uid)
	if err != nil {
		whose = "cannot determine the user of this connection: " + err.Error()
	}
	return &Error{Status: http.StatusUnauthorized, Code: codeAuth, Challenge: `Local-User realm="gfaas"`,
		Message: fmt.Sprintf("without --auth, only user %d and root may manage this gateway; %s", own, whose),
		Hint:    "set a password with gfaas serve --auth FILE"}
}

var (
	errNoSocket = errors.New("it is not a TCP connection")
	errNotHeld  = errors.New("no process on this machine holds its other end")
)

// connectionUser returns the user whose process holds the other end of the connection
// that a request's context names.
func connectionUser(ctx context.Context) (uid int, err error) {
	conn, ok := ctx.Value(connectionKey{}).(*callerConn)
	if !ok {
		return 0, errNoSocket
	}
	here, ok := conn.LocalAddr().(*net.TCPAddr)
	there, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return 0, errNoSocket
	}
	uid, found, err := procfs.ConnectionUser(there.AddrPort(), here.AddrPort())
	if err != nil {
		return 0, err
	}
	// While this end is open, its addresses cannot belong to a new connection of another
	// user, so what was found is its other end.
	if alive, err := isOpen(conn); err != nil {
		return 0, err
	} else if !found || !alive {
		return 0, errNotHeld
	}
	return uid, nil
}

// isOpen reports whether this end of a connection is still open. The other end may have
// stopped sending.
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
