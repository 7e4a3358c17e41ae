package yamlfile

import (
	"strings"
	"testing"
)

// TestFaultsHaveTheirLine checks that a fault names the line of the error, not the line on
// which the enclosing construct began, and not the first line.
func TestFaultsHaveTheirLine(t *testing.T) {
	long := "a:\n" + strings.Repeat("  - [b,\n    c]\n", 40) + "d: [e,\n  f,\n  g]\n"
	for what, c := range map[string]struct{ text, want string }{
		"anchor":               {"# c\nname: x\nimage: y\nenv:\n  A: 1\n  B: *c\nport: 1\n", "f.yaml:6: unknown anchor 'c' referenced, expected YAML"},
		"deeper":               {"name: x\nimage: y\nenv:\n  A: 1\n  B: 2\n   C: 3\nport: 1\n", "f.yaml:6: mapping values are not allowed"},
		"less deep":            {"name: x\nimage: y\nenv:\n  A: 1\n  B: 2\n C: 3\nport: 1\n", "f.yaml:6: did not find expected key"},
		"control character":    {"name: x\nimage: y\nenv:\n  A: \x01\nport: 1\n", "f.yaml:4: control characters are not allowed"},
		"open list":            {"name: x\ncommand: [\"./a\"\nkind: inference\n", "f.yaml:2: did not find expected ',' or ']'"},
		"open quote":           {"name: x\nimage: \"y\nport: 1\n", "f.yaml:2: found unexpected end of stream"},
		"tab":                  {"name: x\n\timage: y\n", "f.yaml:2: found a tab character"},
		"no colon":             {"name: x\nfoo\nimage: y\n", "f.yaml:2: could not find expected ':'"},
		"item among keys":      {"name: x\nimage: y\n- a\n", "f.yaml:3: did not find expected key"},
		"second document":      {"a: 1\n---\nb: 1\nc: {d\ne: 1\n", "f.yaml:4: did not find expected ',' or '}'"},
		"behind closed lists":  {long + "h: [i\nj: 1\n", "f.yaml:85: did not find expected ',' or ']'"},
		"without a line's end": {"a: 1\nb: ]", "f.yaml:2: did not find expected node content"},
		"one line":             {"a: [b\n", "f.yaml:1: did not find expected ',' or ']'"},
	} {
		t.Run(what, func(t *testing.T) {
			err := Check([]byte(c.text), "f.yaml")
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	if err := Check([]byte(long), "f.yaml"); err != nil {
		t.Errorf("a file without a fault: %v", err)
	}
	large := strings.Repeat("a: 1\n---\n", maxSearched/9) + "b: [c\nd: 1\n"
	if err := Check([]byte(large), "f.yaml"); err == nil || !strings.Contains(err.Error(), "did not find expected ',' or ']'") {
		t.Errorf("a large file: %v", err)
	}
}
