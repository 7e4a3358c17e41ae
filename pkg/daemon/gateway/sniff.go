package gateway

import "net/http"

// noSniff is the value of X-Content-Type-Options: a browser believes the Content-Type
// and does not guess from the body that an answer is a page or a script.
const noSniff = "nosniff"

// keepType keeps the server from adding a Content-Type, guessed from the body, to an
// instance's answer that has none. What a function returns may be a caller's input,
// and as text/html it would run scripts on the gateway's origin.
func keepType(h http.Header) {
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil
	}
}
