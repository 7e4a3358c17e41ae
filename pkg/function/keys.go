package function

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// parser converts nodes to a Function and stores the first fault.
type parser struct {
	file  string
	fault error
}

func (p *parser) fail(n *yaml.Node, key, format string, args ...any) {
	p.failAt(n.Line, key, format, args...)
}

func (p *parser) failAt(line int, key, format string, args ...any) {
	if p.fault == nil {
		p.fault = &textfile.Fault{File: p.file, Line: line, Where: key, What: fmt.Sprintf(format, args...)}
	}
}

// setter stores the value of one key.
type setter func(key string, value *yaml.Node)

// mapping calls the setter of each key of a mapping. It fails on an unknown or repeated key. Messages show
// the keys with path as a prefix. It returns the line of each key.
func (p *parser) mapping(n *yaml.Node, path string, setters map[string]setter) map[string]int {
	lines := map[string]int{}
	n = follow(n)
	if n.Kind != yaml.MappingNode {
		p.fail(n, strings.TrimSuffix(path, "."), "%s, expected a mapping with some of the keys %s", describe(n), keysOf(setters))
		return lines
	}
	for i := 0; i+1 < len(n.Content) && p.fault == nil; i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if first, twice := lines[k.Value]; twice {
			p.fail(k, path+k.Value, "the key is on line %d already, expected once", first)
			continue
		}
		lines[k.Value] = k.Line
		set, known := setters[k.Value]
		if !known || k.Kind != yaml.ScalarNode {
			p.fail(k, path+shorten(k.Value), "unknown key, expected one of %s%s", keysOf(setters), meant(k.Value, setters))
			continue
		}
		set(path+k.Value, follow(v))
	}
	return lines
}

// follow resolves an alias.
func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// text returns the value of a scalar that is not null, as it is written.
func (p *parser) text(n *yaml.Node, key, expected string) (string, bool) {
	n = follow(n)
	switch n.ShortTag() {
	case "!!str", "!!int", "!!float", "!!bool", "!!timestamp":
		if n.Kind == yaml.ScalarNode {
			return n.Value, true
		}
	}
	p.fail(n, key, "%s, expected %s", describe(n), expected)
	return "", false
}

// describe describes a node in place of which something else was expected.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode && len(n.Content) == 0:
		return "an empty list"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		return "no value"
	}
	return csvfile.Quote(n.Value)
}

func shorten(key string) string {
	if quoted := csvfile.Quote(key); quoted != `"`+key+`"` || key == "" {
		return quoted
	}
	return key
}

func keysOf(setters map[string]setter) string {
	return strings.Join(slices.Sorted(maps.Keys(setters)), ", ")
}

// meant suggests a known key that is similar to an unknown one.
func meant(what string, setters map[string]setter) string {
	if near := textfile.Near(what, slices.Sorted(maps.Keys(setters))); near != "" {
		return " (did you mean " + near + "?)"
	}
	return ""
}
