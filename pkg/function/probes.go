package function

import (
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// Probes are requests that query a function without using it: GET requests for one of Paths, and requests
// with one of Methods. A gateway passes them to a ready instance; they neither start an instance nor keep
// one loaded. A nil list means the default (DefaultProbes), an empty list none.
type Probes struct {
	Paths   []string // escaped; each begins with a slash
	Methods []string // of probeMethods
}

// IsZero reports whether both lists are nil, so that Format leaves them out.
func (p Probes) IsZero() bool { return p.Paths == nil && p.Methods == nil }

// MarshalYAML uses pointers, because an empty list differs from a missing one.
func (p Probes) MarshalYAML() (any, error) {
	var out struct {
		Paths   *[]string `yaml:"paths,omitempty,flow"`
		Methods *[]string `yaml:"methods,omitempty,flow"`
	}
	if p.Paths != nil {
		out.Paths = &p.Paths
	}
	if p.Methods != nil {
		out.Methods = &p.Methods
	}
	return out, nil
}

// probeMethods are the methods that a probe can have: the safe ones (RFC 9110, section 9.2.1).
var probeMethods = []string{"GET", "HEAD", "OPTIONS", "TRACE"}

const maxProbePaths = 64

// Probed returns the function's probes, with the defaults of its contract for missing lists. The lists are
// not nil.
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

// DefaultProbes returns the probes of a function with that contract that defines none.
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

// Match reports whether a request is a probe. The path is escaped; a trailing slash is ignored.
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

// trimSlash removes a trailing slash, except from the root.
func trimSlash(path string) string {
	if len(path) > 1 {
		return strings.TrimSuffix(path, "/")
	}
	return path
}

func (p *parser) probes(n *yaml.Node, key string) (out Probes) {
	p.mapping(n, key+".", map[string]setter{
		"paths": func(key string, v *yaml.Node) {
			out.Paths = p.list(v, key, "a list of paths like [/health]", "a path like /health, without a query", maxProbePaths, isPath)
		},
		"methods": func(key string, v *yaml.Node) {
			out.Methods = p.list(v, key, "a list of methods like [HEAD]", "one of "+strings.Join(probeMethods, ", "), len(probeMethods), isProbeMethod)
		},
	})
	return out
}

func isProbeMethod(text string) bool { return slices.Contains(probeMethods, text) }

// isPath reports whether a text is an escaped path without a query or a fragment.
func isPath(text string) bool {
	return strings.HasPrefix(text, "/") && len(text) <= 1024 && !strings.ContainsFunc(text, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsGraphic(r) || r == ' ' || r == '?' || r == '#'
	})
}

func (p *parser) ready(n *yaml.Node, key string) (r Ready) {
	lines := p.mapping(n, key+".", map[string]setter{
		"path": func(key string, v *yaml.Node) {
			r.Path = p.accept(v, key, "a path like /ping", func(text string) bool {
				path, _, _ := strings.Cut(text, "?")
				return isPath(path) && isPath(strings.ReplaceAll(text, "?", ""))
			})
		},
		"status": func(key string, v *yaml.Node) { r.Status = p.whole(v, key, 200, 599) },
	})
	if lines["path"] == 0 {
		p.fail(n, key+".path", "missing, expected a path like /ping")
	}
	return r
}

// list returns a list, never nil, of at most that many distinct texts. expected describes the list, and
// entry one text.
func (p *parser) list(n *yaml.Node, key, expected, entry string, most int, is func(string) bool) []string {
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
		text := p.accept(v, key, entry, is)
		if slices.Contains(texts, text) {
			p.fail(v, key, "%s is in the list already, expected each once", csvfile.Quote(text))
		}
		texts = append(texts, text)
	}
	return texts
}
