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

// Serve answers with the page. The browser runs no script but the page's own, and
// speaks to nobody but the gateway.
func Serve(w http.ResponseWriter, _ *http.Request) {
	nonce := rand.Text()
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+
		"'; style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	_, _ = strings.NewReplacer("{{nonce}}", nonce).WriteString(w, page) // nobody is there to be told
}
