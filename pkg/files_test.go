package pkg_test

import (
	"encoding/json"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/events"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/trace"
)

// readers lists the reader of each format in docs/files.md.
var readers = map[string]func(io.Reader, string) error{
	"yaml function": only(function.Parse),
	"csv profile":   only(profile.Read),
	"csv trials":    only(profile.ReadTrials),
	"csv demand":    only(plan.ReadDemand),
	"csv inventory": only(plan.ReadInventory),
	"json plan":     only(plan.Read),
	"csv items":     only(plan.ReadItems),
	"csv costs":     only(trace.ReadFunctionsOn("")),
	"csv events":    only(events.Read),
	"csv series":    only(trace.ReadSeries),
	"text keys":     only(grant.ReadTrust),
	"json grant":    readGrant,
	"csv trace": func(r io.Reader, name string) error {
		_, _, err := trace.ReadAll(r, name, trace.NewNames(), 0)
		return err
	},
}

// readGrant signs and verifies the document of a grant.
func readGrant(r io.Reader, _ string) error {
	var g grant.Grant
	if err := json.NewDecoder(r).Decode(&g); err != nil {
		return err
	}
	key := grant.GenerateKey()
	text, err := key.Sign(g)
	if err == nil {
		_, err = grant.TrustOf(key.Public()).Verify(text)
	}
	return err
}

func only[T any](read func(io.Reader, string) (T, error)) func(io.Reader, string) error {
	return func(r io.Reader, name string) error {
		_, err := read(r, name)
		return err
	}
}

// TestFormats: docs/files.md has a valid example of each format and names every column of
// a profile.
func TestFormats(t *testing.T) {
	text, err := os.ReadFile("../docs/files.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	var shown []string
	for _, block := range regexp.MustCompile("(?ms)^```(\\w+ \\w+)\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		kind, example := block[1], block[2]
		shown = append(shown, kind)
		read, known := readers[kind]
		if !known {
			t.Errorf("no reader of %q", kind)
			continue
		}
		if err := read(strings.NewReader(example), kind); err != nil {
			t.Error(err)
		}
	}
	for kind := range readers {
		if !slices.Contains(shown, kind) {
			t.Errorf("no example of %q", kind)
		}
	}
	for _, column := range profile.Whole.Header() {
		if !regexp.MustCompile(`\b` + column + `\b`).MatchString(page) {
			t.Errorf("the column %s is not described", column)
		}
	}
}
