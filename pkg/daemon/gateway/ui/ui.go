// Package ui contains the gateway's web page. The page is one file without external
// resources. It displays the status that it receives from /system/events.
// pkg/daemon/gateway/api serves it at /ui/.
package ui

import (
	"crypto/rand"
	_ "embed"
	"net/http"
	"strings"
)

//go:embed page.html
var page string

// Page holds the values that one gateway inserts into the page.
type Page struct {
	Token string // sent by the page with each request for management
	Calls bool   // functions can be called at the page's address
}

// Serve answers with the page. Its security headers restrict the browser: only the page's
// own script runs and it connects only to the gateway, no site can show the page in a frame,
// and pages of other origins that open it get no reference to its window.
func (p Page) Serve(w http.ResponseWriter) {
	nonce := rand.Text()
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+
		"'; style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	hidden := "hidden"
	if p.Calls {
		hidden = ""
	}
	_, _ = strings.NewReplacer("{{nonce}}", nonce, "{{token}}", p.Token, "{{calls}}", hidden).WriteString(w, page) // the caller may have closed its connection
}
