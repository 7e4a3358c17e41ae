package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSettingsPrecedence(t *testing.T) {
	dir := isolate(t)
	check := func(want float64, args ...string) {
		t.Helper()
		var p program
		status, _, stderr := p.execute(t, 0, append([]string{"work"}, args...)...)
		if status != 0 || p.rps != want {
			t.Errorf("status %d, %q, max-rps %v; want %v", status, stderr, p.rps, want)
		}
	}
	check(7)
	config := filepath.Join(dir, "gfaas", "config.yaml")
	write(t, config, "max-rps: 8\n")
	check(8)
	second := filepath.Join(dir, "other.yaml")
	write(t, second, "max-rps: 9\n")
	check(9, "--config", second)
	t.Setenv("GFAAS_CONFIG", second)
	check(9)
	t.Setenv("GFAAS_MAX_RPS", "10")
	check(10)
	check(11, "--max-rps", "11")
	t.Setenv("GFAAS_MAX_RPS", "many")
	var p program
	if status, _, stderr := p.execute(t, 0, "work"); status != ExitUsage || !strings.Contains(stderr, "error: GFAAS_MAX_RPS: setting max-rps: ") {
		t.Errorf("setting that is not a number: got status %d and %q, want %d and an error that names GFAAS_MAX_RPS", status, stderr, ExitUsage)
	}
}

func TestSettingsForAllCommands(t *testing.T) {
	isolate(t)
	t.Setenv("GFAAS_OUTPUT", "csv")
	for args, want := range map[string]string{"work": "csv", "show": "yaml", "plain": "table", "work -o json": "json"} {
		var p program
		if status, _, stderr := p.execute(t, 0, strings.Fields(args)...); status != 0 || p.form != want {
			t.Errorf("%s: status %d, form %q, %s; want %q", args, status, p.form, stderr, want)
		}
	}
	t.Setenv("GFAAS_OUTPUT", "cvs")
	var p program
	if status, _, _ := p.execute(t, 0, "work"); status != ExitUsage {
		t.Errorf("setting of an unknown output form: got status %d, want %v", status, ExitUsage)
	}
	t.Setenv("GFAAS_OUTPUT", "")
	t.Setenv("NO_COLOR", "1")
	if p.execute(t, 0, "plain"); !p.env.noColor {
		t.Error("noColor with NO_COLOR: got false, want true")
	}
	t.Setenv("GFAAS_QUIET", "true")
	if p.execute(t, 0, "plain"); !p.env.Quiet {
		t.Error("Quiet with GFAAS_QUIET: got false, want true")
	}
}

func TestConfigFaults(t *testing.T) {
	dir := isolate(t)
	bad := filepath.Join(dir, "bad.yaml")
	write(t, bad, "label: a\n\tmax-rps: 1\n")
	twice := filepath.Join(dir, "twice.yaml")
	write(t, twice, "label: a\nlabel: b\n")
	open := filepath.Join(dir, "open.yaml")
	write(t, open, "label: a\nmax-rps: [1\nquiet: true\n")
	for file, want := range map[string]string{
		open: open + ":2: did not find expected ',' or ']', expected YAML",
		bad:  bad + ":2: ", twice: twice + ":2: mapping key", filepath.Join(dir, "absent.yaml"): "no such file",
	} {
		var p program
		status, _, stderr := p.execute(t, 0, "work", "--config", file)
		if status != ExitFailure || !strings.Contains(stderr, want) || p.ran != "" {
			t.Errorf("%s: status %d, %q; want 1 and %q", file, status, stderr, want)
		}
	}
	nested := filepath.Join(dir, "nested.yaml")
	write(t, nested, "label: {a: b}\n")
	var p program
	if status, _, stderr := p.execute(t, 0, "work", "--config", nested); status != ExitUsage || !strings.Contains(stderr, nested+":1: setting label: expected one value") {
		t.Errorf("setting with nested values: got status %d and %q, want %d and the position of the setting", status, stderr, ExitUsage)
	}
}

// TestUnknownSettings checks that a misspelt setting is an error, because it would silently have no effect.
func TestUnknownSettings(t *testing.T) {
	dir := isolate(t)
	path := filepath.Join(dir, "c.yaml")
	for text, want := range map[string]string{
		"label: a\nmax-rsp: 1\n":   path + ":2: max-rsp: unknown setting in version " + Version + ", expected the long name of a flag: max-rps?",
		"max_rps: 1\n":             path + ":1: max_rps: unknown setting in version " + Version + ", expected the long name of a flag: max-rps?",
		"\ncolour-of-it: {a: 1}\n": path + ":2: colour-of-it: unknown setting in version " + Version + ", expected the long name of a flag\n",
		"version: 2\n":             path + ":1: version: unknown setting",
	} {
		write(t, path, text)
		var p program
		status, _, stderr := p.execute(t, 0, "work", "--config", path)
		if status != ExitFailure || !strings.Contains(stderr, want) || p.ran != "" {
			t.Errorf("%q: status %d, %q; want 1 and %q", text, status, stderr, want)
		}
	}
	write(t, path, "label: a\n---\nmax-rps: 1\n")
	var p program
	if status, _, stderr := p.execute(t, 0, "work", "--config", path); status != ExitFailure || !strings.Contains(stderr, path+":2: a second document") {
		t.Errorf("config file of two documents: got status %d and %q, want %d and the position of the second", status, stderr, ExitFailure)
	}
	for _, text := range []string{"", "# nothing\n", "Label: a\n", "gpus-per-node: 4 # of gfaas-sim\n", "{label: a, max-rps: 1}\n"} {
		write(t, path, text)
		var p program
		if status, _, stderr := p.execute(t, 0, "work", "--config", path); status != ExitOK {
			t.Errorf("config file %q: got status %d and %q, want %d", text, status, stderr, ExitOK)
		}
	}
}

// TestInvalidSettingErrorHasPosition checks that the error about an invalid setting contains its position.
func TestInvalidSettingErrorHasPosition(t *testing.T) {
	path := filepath.Join(isolate(t), "c.yaml")
	write(t, path, "label: a\nMax-RPS: many\n")
	var p program
	if status, _, stderr := p.execute(t, 0, "work", "--config", path); status != ExitUsage || !strings.Contains(stderr, path+":2: setting max-rps: ") {
		t.Errorf("invalid setting: got status %d and %q, want %d and the position", status, stderr, ExitUsage)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDirectories(t *testing.T) {
	for _, c := range []struct{ run, runtime, state, stateHome, wantRun, wantState string }{
		{"/r", "/x", "/s.db", "/y", "/r", "/s.db"},
		{"", "/x", "", "/y", "/x/gfaas", "/y/gfaas/state.db"},
		{"", "/x/", "", "", "/x/gfaas", "/h/.local/state/gfaas/state.db"}, // without a variable: see TestDefaultRunDir
	} {
		t.Setenv("HOME", "/h")
		t.Setenv("GFAAS_RUN_DIR", c.run)
		t.Setenv("XDG_RUNTIME_DIR", c.runtime)
		t.Setenv("GFAAS_STATE", c.state)
		t.Setenv("XDG_STATE_HOME", c.stateHome)
		if got := RunDir(); got != c.wantRun {
			t.Errorf("RunDir = %s, want %s", got, c.wantRun)
		}
		if got := StatePath(); got != c.wantState {
			t.Errorf("StatePath = %s, want %s", got, c.wantState)
		}
	}
}

// TestUsageNamesSettings checks that an error about a flag that a setting gave names the setting.
func TestUsageNamesSettings(t *testing.T) {
	path := filepath.Join(isolate(t), "c.yaml")
	write(t, path, "label: a\n")
	t.Setenv("GFAAS_MAX_RPS", "3")
	for args, want := range map[string]string{
		"work --config " + path:               "--max-rps 3: expected less (--max-rps is set by GFAAS_MAX_RPS)",
		"work --max-rps 4 --config " + path:   "--max-rps 3: expected less\n",
		"work --label x --config " + path:     "--label: odd\n",
		"work --max-rps 1 --config " + path:   "--label: odd (--label is set by " + path + ":1)",
		"work --max-rps 9 -o json --label=x ": `"message":"--max-rps 3: expected less"`,
		"work -o json --label=x ":             `"message":"--max-rps 3: expected less (--max-rps is set by GFAAS_MAX_RPS)"`,
	} {
		p := program{fail: Usagef("--max-rps 3: expected less")}
		if strings.Contains(want, "--label") {
			p.fail = Usagef("--label: odd")
		}
		if status, _, stderr := p.execute(t, 0, strings.Fields(args)...); status != ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %q; want %q", args, status, stderr, want)
		}
	}
}
