package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// wording is a phrase that texts for users do not contain.
type wording struct {
	phrase  string // a pattern
	except  string // a pattern of good English around the phrase; may be empty
	example string // a text with the phrase
	instead string
}

// wordings lists phrases that a reader has to decipher. Each one hides the actor, the thing or the condition.
var wordings = []wording{
	{`\b[Ww]ho(?:ever)?\b`,
		`(?i)\b(?:people|persons?|users?|members?|readers?|developers?|everyone|anyone|someone|others|those) who\b|\bwho (?:may|is trusted|are you|can you)\b`,
		"whoever holds the lease waits", "the actor: the daemon, the caller, a client"},
	{`\b(?i:for|to|by|of) whom\b|\bwhose (?:it|they) (?:is|are|were)\b`, ``, "the header names for whom", "the actor: the client, the owner"},
	{`\b(?i:no|some|any|every)body\b`, ``, "nobody waits for it", "no client, another process, all users"},
	{`\b(?i:says?) (?:whether|which|what|how|nothing)\b`, `\b[Ss]ays? how to\b`, "the log says which", "reports whether, names, describes"},
	{`\b(?:is|are|was|were|been) said\b`, `said to be`, "that is said once", "is printed, is reported"},
	{`\b[Ww]hat (?:there (?:is|are|was)|(?:is|are|was) there|waits?|comes?|came|goes|went|remains?|(?:is|was) left|runs)\b`, ``,
		"show what waits", "a noun: the queued calls, the remaining budget, the running instances"},
	{`\b(?:of|less|beside|than|by) what (?:it|they|each|others|is|was|has|had|a|an|the)\b`, ``,
		"a fraction of what it does alone", "a noun: of its speed when it runs alone"},
	{`\bha(?:s|ve|d|ving) (?:it|them|itself|themselves|calls|requests|instances|programs|(?:the|its|their|all|each|a|an) \w+(?: of \w+)?) ` +
		`(?:wait|go|come|look|know|give|keep|follow|die|ask|do|be|lie|take|leave|need|hold)\b`, ``,
		"it has the calls wait", "makes the calls wait, lets it run"},
	{`\b(?:told|tells?|telling|spoken|speaks?|hears?|heard) of\b`, ``, "clients are told of it", "is reported to, gets a note about"},
	{`\bbeside\b`, ``, "memory beside the limit", "next to, together with, in addition to"},
	{`, else\b`, ``, "the flag, else the file", "or, otherwise, if that is not set"},
	{`\b(?:after|for|wait) so (?:long|many|much)\b|\bso many times\b|\bhold so many\b`, ``, "end after so long", "this time, this number"},
	{`\bthe most there (?:can|may) be\b`, ``, "64 processes, the most there can be", "which is the limit"},
	{`\bhowever (?:many|much|long|often)\b|\bbe it (?:a|an|the|by|in|on)\b`, ``, "however many wait", "regardless of, for any number of"},
	{`(?:^|[.;:]\s)Of (?:a|an|what|those|each|several|its|such|exported)\b`, ``, "Of several instances the lines are sorted", "the subject first"},
	{`\b(?:is|are|was|were) no (?:folder|directory|key|name|number|file|size|text|process|GPU|action|client|weight|socket|list|model|program|function|JSON|option|object|value)\b`,
		`\b[Tt]here (?:is|are|was|were) no \w+`, "the path is no folder", "is not a"},
	{`\b(?:go|goes|going|went) on\b`, `\bgoes? on (?:GPU|an?y? GPU|the GPU|one GPU|node|the node)\b`, "programs go on", "continue"},
	{`\bthe ones? before\b`, `the ones? before (?:it|them|the|or|and)\b`, "above the one before", "the previous"},
	{`\bhow (?:it|they|things|the \w+) stands?\b`, ``, "show how the daemon stands", "the state of"},
	{`\b(?:is|are) there (?:twice|already|again)\b`, ``, "the key is there twice", "is given twice, exists"},
	{`\basked back\b|\basks? (?:it|them|(?:a|the) leases?) back\b`, ``, "the lease is asked back", "revoke"},
	{`(?:^|[.;:]\s+)Should (?:it|a|an|the|one|such|they|this|that)\b`, ``, "Should it be killed, it stops.", "if"},
	{`\blook(?:s|ed)? whether\b|\b(?:is|are) looked (?:at|for)\b`, ``, "the daemon looks whether it runs", "checks whether"},
	{`\bgo(?:es)? by\b`, ``, "go by the profile", "use, follow"},
	{`\bends? in the middle\b`, ``, "the text ends in the middle", "is incomplete"},
	{`\bdeeds?\b`, ``, "deeds of the policy", "actions"},
}

// wordingException is a place where a phrase is right.
type wordingException struct{ where, phrase, reason string }

var wordingExceptions = []wordingException{
	{"docs/glossary.md", "what is left", "the page lists the words that are not used"},
}

// compiledWording is a wording with compiled patterns.
type compiledWording struct {
	wording
	find, good *regexp.Regexp
}

func compileWordings() (all []compiledWording) {
	for _, w := range wordings {
		c := compiledWording{w, regexp.MustCompile(w.phrase), nil}
		if w.except != "" {
			c.good = regexp.MustCompile(w.except)
		}
		all = append(all, c)
	}
	return all
}

// match is a phrase in a text.
type match struct {
	offset          int
	phrase, instead string
}

// matches returns the phrases in a text. Line breaks count as blanks.
func matches(all []compiledWording, text string) (found []match) {
	text = oneLine(text)
	for _, w := range all {
		if !w.find.MatchString(text) {
			continue
		}
		masked := text
		if w.good != nil {
			masked = w.good.ReplaceAllStringFunc(text, mask)
		}
		for _, at := range w.find.FindAllStringIndex(masked, -1) {
			phrase := strings.TrimLeft(text[at[0]:at[1]], ".;: ")
			found = append(found, match{at[1] - len(phrase), phrase, w.instead})
		}
	}
	return found
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", " ") }

// mask replaces all bytes of a text except line breaks.
func mask(text string) string {
	masked := []byte(text)
	for i := range masked {
		if masked[i] != '\n' {
			masked[i] = '_'
		}
	}
	return string(masked)
}

// checkedText is a text for users, and the place where it is.
type checkedText struct {
	where string // path, or command, below the top folder
	line  int    // first line; 0 if the text has no line
	text  string
}

// TestWording checks that texts for users contain none of the phrases in wordings: the documentation, the help of all
// commands, messages in Go and messages in C. A string in Go or C counts as a message if it contains at least three
// blanks.
func TestWording(t *testing.T) {
	if testing.Short() {
		t.Skip("runs in one goroutine, and make race checks goroutines")
	}
	texts := append(goTexts(t), cTexts(t)...)
	known := map[string]bool{}
	for _, text := range texts {
		known[oneLine(text.text)] = true
	}
	for _, text := range helpTexts(t) {
		if !known[oneLine(text.text)] { // it is assembled from several strings, or short
			texts = append(texts, text)
		}
	}
	texts = append(texts, pages(t)...)
	if len(texts) < 1000 {
		t.Errorf("checked texts: got %d, want at least 1000", len(texts))
	}
	all, used := compileWordings(), map[string]bool{}
	for _, text := range texts {
		for _, m := range matches(all, text.text) {
			at := slices.IndexFunc(wordingExceptions, func(e wordingException) bool {
				return strings.HasPrefix(text.where, e.where) && e.phrase == m.phrase
			})
			switch {
			case at >= 0:
				used[wordingExceptions[at].where+wordingExceptions[at].phrase] = true
			case text.line == 0:
				t.Errorf("%s: %q: write instead %s", text.where, m.phrase, m.instead)
			default:
				t.Errorf("%s:%d: %q: write instead %s", text.where, text.line+strings.Count(text.text[:m.offset], "\n"), m.phrase, m.instead)
			}
		}
	}
	for _, e := range wordingExceptions {
		if !used[e.where+e.phrase] {
			t.Errorf("%s does not contain %q: remove the exception", e.where, e.phrase)
		}
	}
}

// TestWordings checks that each pattern finds its example, and that good English passes.
func TestWordings(t *testing.T) {
	for _, w := range compileWordings() {
		if len(matches([]compiledWording{w}, w.example)) == 0 {
			t.Errorf("matches of %s in its example %q: got none, want at least one", w.phrase, w.example)
		}
	}
	for _, good := range []string{
		"The error message names the next step and what to do.", "This table shows what happens when the daemon ends.",
		"Users who share a GPU need a quota.", "There is no file at this path.", "The name of this file is unknown.",
		"Place the instance next to its siblings.", "The container starts as long as the GPU has memory.",
		"SECURITY.md says how to report a vulnerability.", "The function goes on GPU 0.", "turn 2 begins before the one before it ends",
		"Two clients run side by side.", "A request needs at least as much memory as its body.", "Choose what you need.",
	} {
		for _, m := range matches(compileWordings(), good) {
			t.Errorf("matches in good English: got %q in %q, want none", m.phrase, good)
		}
	}
}

const top = "../../../"

// goTexts returns the strings in Go files other than tests and their helpers.
func goTexts(t *testing.T) (texts []checkedText) {
	t.Helper()
	files := token.NewFileSet()
	for _, path := range filesBelow(t, ".go", "pkg", "cmd") {
		file, err := parser.ParseFile(files, top+path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if field, is := n.(*ast.Field); is {
				field.Tag = nil
			}
			literal, is := n.(*ast.BasicLit)
			if !is || literal.Kind != token.STRING || strings.Count(literal.Value, " ") < 3 {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			if literal.Value[0] == '"' {
				text = oneLine(text) // the literal is on one line
			}
			texts = append(texts, checkedText{path, files.Position(literal.Pos()).Line, text})
			return true
		})
	}
	return texts
}

// cToken matches comments, characters and strings in C. Adjacent strings are one string.
var cToken = regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])+'|"(?:\\.|[^"\\])*"(?:\s*"(?:\\.|[^"\\])*")*`)

// cTexts returns the strings in C files of the libraries.
func cTexts(t *testing.T) (texts []checkedText) {
	t.Helper()
	for _, extension := range []string{".c", ".h"} {
		for _, path := range filesBelow(t, extension, "hook") {
			source := read(t, path)
			for _, at := range cToken.FindAllStringIndex(source, -1) {
				literal := source[at[0]:at[1]]
				if literal[0] == '"' && strings.Count(literal, " ") >= 3 {
					text := strings.NewReplacer(`\n`, "  ", `\"`, `''`, `"`, "").Replace(literal)
					texts = append(texts, checkedText{path, 1 + strings.Count(source[:at[0]], "\n"), text})
				}
			}
		}
	}
	return texts
}

// helpTexts returns the help of all commands.
func helpTexts(t *testing.T) (texts []checkedText) {
	t.Helper()
	for name, build := range trees {
		cli.Walk((&cli.Env{Prog: name, Out: t.Output(), Err: t.Output()}).Tree(build), func(cmd *cobra.Command) {
			add := func(what, text string) {
				texts = append(texts, checkedText{fmt.Sprintf("pkg/command/%s (%s)", cmd.CommandPath(), what), 0, text})
			}
			add("summary", cmd.Short)
			add("description", cmd.Long)
			add("examples", cmd.Example)
			for _, note := range cli.NotesOf(cmd) {
				add(note.Title, note.Text)
			}
			cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { add("--"+f.Name, f.Usage) })
		})
	}
	return texts
}

// code matches code in Markdown: fenced and indented blocks, and code within lines.
var code = regexp.MustCompile("(?ms)^ *```.*?^ *```|^(?: {4}|\t) *[^-*0-9 \t\n][^\n]*$|`[^`]*`")

// pages returns the pages of the documentation without code.
func pages(t *testing.T) (texts []checkedText) {
	t.Helper()
	paths := append(filesBelow(t, ".md", "docs", "examples", "hook"), "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md")
	for _, path := range paths {
		text := read(t, path)
		if path == "CHANGELOG.md" {
			_, after, found := strings.Cut(text, "\n## [Unreleased]")
			if !found {
				continue
			}
			section, _, _ := strings.Cut(after, "\n## ")
			text = strings.Repeat("\n", strings.Count(text[:len(text)-len(after)], "\n")) + section
		}
		texts = append(texts, checkedText{path, 1, code.ReplaceAllStringFunc(text, mask)})
	}
	return texts
}

// filesBelow returns the files with an extension in folders, without tests, their helpers and templates.
func filesBelow(t *testing.T, extension string, folders ...string) (paths []string) {
	t.Helper()
	for _, folder := range folders {
		err := filepath.WalkDir(top+folder, func(path string, entry fs.DirEntry, err error) error {
			name := entry.Name()
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (strings.HasSuffix(name, "test") || slices.Contains([]string{"testdata", "check", "gpucheck", "templates"}, name)):
				return filepath.SkipDir
			case !entry.IsDir() && filepath.Ext(name) == extension && !strings.HasSuffix(name, "_test.go"):
				paths = append(paths, strings.TrimPrefix(filepath.ToSlash(path), top))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(top + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
