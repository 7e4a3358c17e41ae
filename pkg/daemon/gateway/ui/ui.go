// Package ui is the gateway's page: one file that brings all it needs, and is fed
// by /system/events.
package ui

import (
	"crypto/rand"
	_ "embed"
	"net/http"
	"strings"
)

//go:embed page.html
var page string

// Page is the page of one gateway.
type Page struct {
	Token string // what the page sends with each request for management
	Calls bool   // whether functions can be called at the page's address
}

// Serve answers with the page. The browser runs no script but the page's own, and
// speaks to nobody but the gateway. Pages of other origins cannot hold on to it.
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
	_, _ = strings.NewReplacer("{{nonce}}", nonce, "{{token}}", p.Token, "{{calls}}", hidden).WriteString(w, page) // nobody is there to be told
}
