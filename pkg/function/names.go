package function

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"golang.org/x/text/unicode/norm"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// MaxModelName is the longest name of a model in a call, and so of an alias, in bytes.
const MaxModelName = 256

const maxAliases = 64

// unlisted is a bool that is written as the value of the key listed. false is never written.
type unlisted bool

func (unlisted) MarshalYAML() (any, error) { return false, nil }

// loadingComments is a bool that is written as the value of the key loading. false is never written.
type loadingComments bool

const (
	loadingNone    = "none"
	loadingComment = "comment"
)

func (loadingComments) MarshalYAML() (any, error) { return loadingComment, nil }

// CanonicalName returns a name in the form in which names are compared: Unicode normal form C. Two
// names that look the same because they differ only in the normal form are the same name. Case
// matters.
func CanonicalName(name string) string { return norm.NFC.String(name) }

// Names returns the function's name and its aliases.
func (fn *Function) Names() []string { return append([]string{fn.Name}, fn.Aliases...) }

// ClashError reports that a name or alias of one function is a name or alias of another.
type ClashError struct {
	Name, Function string // the later function, and its name or alias
	Other          string // the earlier function
	otherName      string // its name or alias
}

func (e *ClashError) Error() string {
	text := fmt.Sprintf("alias %s of function %s", csvfile.Quote(e.Name), e.Function)
	if e.Name == e.Function {
		text = "name of function " + e.Function
	}
	kind := "an alias"
	if e.otherName == e.Other {
		kind = "the name"
	}
	text += fmt.Sprintf(" is already %s of function %s", kind, e.Other)
	if e.Function == e.Other {
		text = fmt.Sprintf("function %s has the name %s twice", e.Function, csvfile.Quote(e.Name))
	}
	if e.Name != e.otherName {
		text += " (in another Unicode normal form)"
	}
	return text
}

// Hint returns the next step for the user.
func (e *ClashError) Hint() string {
	return "give each name and alias to one function; if an alias moves to another function, apply both functions together"
}

// nameSet holds the names and aliases of functions, in their canonical form.
type nameSet map[string]ClashError

// add adds the names of a function. It returns a *ClashError if one of them is in the set.
func (s nameSet) add(fn *Function) error {
	for _, name := range fn.Names() {
		canonical := CanonicalName(name)
		if first, taken := s[canonical]; taken {
			return &ClashError{Name: name, Function: fn.Name, Other: first.Function, otherName: first.Name}
		}
		s[canonical] = ClashError{Name: name, Function: fn.Name}
	}
	return nil
}

// CheckNames returns a *ClashError unless all names and aliases of the functions are different.
func CheckNames(functions []Function) error {
	names := nameSet{}
	for i := range functions {
		if err := names.add(&functions[i]); err != nil {
			return err
		}
	}
	return nil
}

// modelName returns a name as clients send it: any printable text without space at its ends.
func (p *parser) modelName(n *yaml.Node, key string) string {
	return p.accept(n, key, modelNameForm, isModelName)
}

const modelNameForm = "at most 256 bytes of printable text like Qwen/Qwen3-8B"

func isModelName(text string) bool {
	return text != "" && len(text) <= MaxModelName && utf8.ValidString(text) && strings.TrimSpace(text) == text && !strings.ContainsFunc(text, unprintable)
}

func (p *parser) aliases(n *yaml.Node, key string) []string {
	names := p.list(n, key, "a list of names like [Qwen/Qwen3-8B]", modelNameForm, maxAliases, isModelName)
	if len(names) == 0 {
		return nil
	}
	return names
}
