package api

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/proxy"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// Origins lists the origins of web pages that may call functions and read the answers (CORS). The
// element AnyOrigin admits all pages, but only without credentials. An empty list leaves the
// decision to the functions.
type Origins []string

// AnyOrigin stands for all origins.
const AnyOrigin = "*"

// ParseOrigin returns an origin as browsers write it in the header Origin: a scheme and a host in
// lower case, and a port unless it is the scheme's. AnyOrigin is returned unchanged.
func ParseOrigin(text string) (string, error) {
	if text == AnyOrigin {
		return text, nil
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found || rest == "" || !proxy.Visible(text) {
		return "", errors.New("expected an origin like https://chat.example.com, or *")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", errors.New("expected an origin like https://chat.example.com, or *")
	case u.User != nil, u.Path != "", strings.ContainsAny(rest, "/?#@\\%*,;"):
		return "", errors.New("expected only a scheme, a host and a port, without a path")
	case u.Hostname() == "" || strings.HasSuffix(u.Host, ":"):
		return "", errors.New("the host or the port is missing")
	}
	scheme = strings.ToLower(scheme)
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.String()
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return "", errors.New("the port is out of range, expected 0 to 65535")
		}
		port = strconv.FormatUint(n, 10)
	}
	if port != "" && port != map[string]string{"http": "80", "https": "443"}[scheme] {
		host += ":" + port
	}
	return scheme + "://" + host, nil
}

// admits returns the value of Access-Control-Allow-Origin for the requests of a page, or "". It
// returns AnyOrigin only for an origin that is not listed itself.
func (o Origins) admits(origin string) string {
	switch {
	case origin == "":
		return ""
	case slices.Contains(o, origin):
		return origin
	case slices.Contains(o, AnyOrigin):
		return AnyOrigin
	}
	return ""
}

// share returns a handler for requests to functions that tells browsers which pages may read the
// answers. It answers preflight requests itself, before next requires a password, because browsers
// send none with them.
func (o Origins) share(a *API, w http.ResponseWriter, r *http.Request, next http.Handler) {
	origin, _ := single(r.Header, "Origin")
	s := &sharing{origins: o, allowed: o.admits(origin)}
	w = &inbound.HeadWriter{ResponseWriter: w, Preparer: s}
	method, asks := single(r.Header, "Access-Control-Request-Method")
	if r.Method != http.MethodOptions || !asks || origin == "" {
		next.ServeHTTP(w, r)
		return
	}
	if s.allowed == "" {
		e := &refusal.Error{Status: http.StatusForbidden, Code: refusal.Auth, Message: "pages of the origin " + strconv.Quote(origin[:min(len(origin), 200)]) + " may not call functions",
			Hint: "allow the origin with gfaas serve --cors ORIGIN"}
		a.refuse(w, r, e)
		return
	}
	h := w.Header()
	a.cfg.Proxy.NewCall(r, nil, "").Label(h, queue.Reason{Code: refusal.Preflight})
	h.Set("Access-Control-Allow-Methods", method)
	if names := r.Header["Access-Control-Request-Headers"]; len(names) > 0 {
		h.Set("Access-Control-Allow-Headers", strings.Join(names, ", "))
	}
	h.Set("Access-Control-Max-Age", preflightAge)
	if r.Header.Get("Access-Control-Request-Private-Network") == "true" && s.allowed != AnyOrigin {
		h.Set("Access-Control-Allow-Private-Network", "true")
	}
	h["Vary"] = []string{"Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network"}
	s.own = true
	w.WriteHeader(http.StatusNoContent)
}

// preflightAge is how long a browser may use the answer to a preflight request, in seconds. It is
// short, because the origins may change with a reload.
const preflightAge = "600"

// exposed lists the headers of the gateway that pages may read.
const exposed = "X-Call-Id, X-Start-Time, X-Request-Id, Request-Id, Retry-After, Retry-After-Ms, X-Should-Retry, " +
	"Gfaas-Queue-Ms, Gfaas-Start-Ms, Gfaas-Start, Gfaas-Instance, Gfaas-Batch, Gfaas-Attempts, Gfaas-Reason"

// sharing sets the headers with which a browser decides whether a page may read an answer. They
// replace those of a function, so that the answer has each of them once and --cors alone decides.
type sharing struct {
	origins Origins
	allowed string // value of Access-Control-Allow-Origin; empty: none
	own     bool   // the answer has headers of a preflight request, which remain
}

// Prepare sets the headers.
func (s *sharing) Prepare(h http.Header) {
	visible := h["Access-Control-Expose-Headers"]
	if !s.own {
		for name := range h {
			if strings.HasPrefix(name, "Access-Control-") {
				delete(h, name)
			}
		}
	}
	if !slices.Equal(s.origins, Origins{AnyOrigin}) { // the answer depends on the origin
		addVary(h, "Origin")
	}
	if s.allowed == "" {
		return
	}
	h.Set("Access-Control-Allow-Origin", s.allowed)
	if s.allowed != AnyOrigin {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if !s.own {
		h.Set("Access-Control-Expose-Headers", strings.Join(append([]string{exposed}, visible...), ", "))
	}
}

// addVary adds a name to Vary, unless it is there.
func addVary(h http.Header, name string) {
	for _, value := range h["Vary"] {
		for part := range strings.SplitSeq(value, ",") {
			if part = strings.TrimSpace(part); strings.EqualFold(part, name) || part == "*" {
				return
			}
		}
	}
	h.Add("Vary", name)
}
