package proxy

import (
	"net/http"
	"strings"

	"github.com/gfaas/gfaas/pkg/function"
)

// AffinityCookie is the name of the cookie that keeps the calls of a browser on one instance. Its value is the ID of
// the instance.
const AffinityCookie = "gfaas-instance"

// maxAffinity is the first invalid length of a value that selects an instance, in bytes.
const maxAffinity = 257

// affinityOf returns the value in the headers of a call that selects its instance, or "". Longer values than
// maxAffinity select none.
func affinityOf(by function.Affinity, h http.Header) (value string) {
	switch name := by.Header(); {
	case by == function.AffinityCookie:
		value = cookieIn(h)
	case name != "":
		value = h.Get(name)
	}
	if len(value) >= maxAffinity {
		return ""
	}
	return value
}

// cookieIn returns the value of the cookie AffinityCookie, or "". If it occurs several times, the first one counts:
// browsers send the cookie with the longest path first.
func cookieIn(h http.Header) string {
	for _, line := range h["Cookie"] {
		for part := range strings.SplitSeq(line, ";") {
			if name, value, found := strings.Cut(strings.Trim(part, " \t"), "="); found && name == AffinityCookie {
				return value
			}
		}
	}
	return ""
}

// cookiePath returns the path of the function in the path of a request, such as /function/NAME, or "" if the
// function was not called by its path.
func cookiePath(path string) string {
	rest, found := strings.CutPrefix(path, "/function/")
	name, _, _ := strings.Cut(rest, "/")
	if !found || name == "" {
		return ""
	}
	return path[:len("/function/")+len(name)]
}

// setCookie makes a browser send the ID of the call's instance with its next calls, unless it does so already.
func (c *Call) setCookie(h http.Header) {
	if c.function == nil || c.cookiePath == "" || c.probe || c.function.Calls().Affinity != function.AffinityCookie || c.affinity == c.turn.Record.ID {
		return
	}
	cookie := http.Cookie{Name: AffinityCookie, Value: c.turn.Record.ID, Path: c.cookiePath, HttpOnly: true, SameSite: http.SameSiteLaxMode}
	h.Add("Set-Cookie", cookie.String())
}
