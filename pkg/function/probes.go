package function

import (
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// Probes are the requests that ask about a function without using it: GET requests for
// one of Paths, and requests with one of Methods. A gateway passes them to an instance
// that is ready; they neither start an instance nor keep one loaded. Where a list is nil,
// the default applies (DefaultProbes). An empty list admits nothing.
type Probes struct {
	Paths   []string // escaped, each begins with a slash
	Methods []string // of probeMethods
}

// probeMethods are the methods that a probe can have: those that change nothing
// (RFC 9110, section 9.2.1).
var probeMethods = []string{"GET", "HEAD", "OPTIONS", "TRACE"}

const maxProbePaths = 64

// Probed returns the function's probes, with the defaults of its contract where it has
// none of its own. The lists are not nil.
func (fn *Function) Probed() Probes {
	p := DefaultProbes(fn.Contract)
	if fn.Probes.Paths != nil {
		p.Paths = fn.Probes.Paths
	}
	if fn.Probes.Methods != nil {
		p.Methods = fn.Probes.Methods
	}
	return p
}

// DefaultProbes returns the probes of a function of that contract that gives none.
func DefaultProbes(contract string) Probes {
	p := Probes{Paths: []string{"/health", "/healthz", "/ready", "/metrics", "/v1/models"}, Methods: []string{"HEAD", "OPTIONS"}}
	if contract == "openfaas" || contract == DefaultContract {
		p.Paths = append(p.Paths, "/_/health", "/_/ready")
	}
	if contract == "kserve-v2" || contract == DefaultContract {
		p.Paths = append(p.Paths, "/v2/health/live", "/v2/health/ready")
	}
	return p
}

// Match reports whether a request is a probe. The path is escaped; a slash at its end
// makes no difference.
func (p *Probes) Match(method, path string) bool {
	if slices.Contains(p.Methods, method) {
		return true
	}
	if method != "GET" {
		return false
	}
	path = trimSlash(path)
	return slices.ContainsFunc(p.Paths, func(probe string) bool { return trimSlash(probe) == path })
}

// trimSlash returns a path without the slash at its end, unless it is the root.
func trimSlash(path string) string {
	if len(path) > 1 {
		return strings.TrimSuffix(path, "/")
	}
	return path
}

func (p *parser) probes(n *yaml.Node, key string) (out Probes) {
	p.mapping(n, key+".", map[string]setter{
		"paths": func(p *parser, key string, v *yaml.Node) {
			out.Paths = p.list(v, key, "a list of paths like [/health]", maxProbePaths, isPath)
		},
		"methods": func(p *parser, key string, v *yaml.Node) {
			out.Methods = p.list(v, key, "a list of "+strings.Join(probeMethods, ", "), len(probeMethods), isProbeMethod)
		},
	})
	return out
}

func isProbeMethod(text string) bool { return slices.Contains(probeMethods, text) }

// isPath reports whether a text is an escaped path: without a query or a fragment.
func isPath(text string) bool {
	return strings.HasPrefix(text, "/") && len(text) <= 1024 && !strings.ContainsFunc(text, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsGraphic(r) || r == ' ' || r == '?' || r == '#'
	})
}

// list returns a list of at most that many texts, each once, which is not nil.
func (p *parser) list(n *yaml.Node, key, expected string, most int, is func(string) bool) []string {
	if n.Kind != yaml.SequenceNode {
		p.fail(n, key, "%s, expected %s", describe(n), expected)
		return nil
	}
	if len(n.Content) > most {
		p.fail(n, key, "%d entries, expected at most %d", len(n.Content), most)
		return nil
	}
	texts := []string{}
	for _, v := range n.Content {
		text, ok := p.text(v, key, expected)
		switch {
		case !ok:
			return nil
		case !is(text):
			p.fail(v, key, "%s, expected %s", csvfile.Quote(text), expected)
		case slices.Contains(texts, text):
			p.fail(v, key, "%s is in the list already, expected each once", csvfile.Quote(text))
		}
		texts = append(texts, text)
	}
	return texts
}
