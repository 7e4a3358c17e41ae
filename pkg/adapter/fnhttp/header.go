package fnhttp

import (
	"fmt"
	"net/http"
	"strings"
)

// ParseHeaders parses header lines of the form "Name: value".
func ParseHeaders(lines []string) (http.Header, error) {
	header := http.Header{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !validToken(name) || strings.ContainsAny(value, "\r\n\x00") {
			return nil, fmt.Errorf("%q: expected 'Name: value'", line)
		}
		header.Add(name, strings.TrimSpace(value))
	}
	return header, nil
}

// validToken reports whether name is a valid header name (RFC 9110, section 5.6.2).
func validToken(name string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	odd := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune(marks, r)
	}
	return name != "" && !strings.ContainsFunc(name, odd)
}
