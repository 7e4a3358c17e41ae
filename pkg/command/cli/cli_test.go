package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// program is a small tool with a command that returns a given error, and two commands with different default output
// forms.
type program struct {
	fail  error
	rps   float64
	ran   string
	form  string
	env   *Env
	label string
}

func (p *program) build(env *Env) *cobra.Command {
	p.env = env
	root := &cobra.Command{Use: "tool", Short: "A tool"}
	work := &cobra.Command{Use: "work [FILE]", SuggestFor: []string{"shov"}, Args: cobra.MaximumNArgs(1), RunE: func(*cobra.Command, []string) error {
		p.ran, p.form = "work", env.Output
		return p.fail
	}}
	env.Outputs(work, "table", "json", "csv")
	work.Flags().Float64Var(&p.rps, "max-rps", 7, "")
	work.Flags().StringVar(&p.label, "label", "none", "")
	show := &cobra.Command{Use: "show", RunE: func(*cobra.Command, []string) error {
		p.ran, p.form = "show", env.Output
		return p.fail
	}}
	env.Outputs(show, "yaml", "json")
	plain := &cobra.Command{Use: "plain", RunE: func(*cobra.Command, []string) error {
		p.ran, p.form = "plain", env.Output
		return p.fail
	}}
	draw := &cobra.Command{Use: "draw", RunE: func(*cobra.Command, []string) error { p.ran = "draw"; return nil }}
	draw.Flags().String("input", "", "")
	draw.Flags().String("other", "", "")
	CompleteFiles(draw, "csv", "input", "other")
	root.AddCommand(work, show, plain, draw)
	return root
}

// noSignal is the argument of execute for a program that receives no signal.
const noSignal = syscall.Signal(0)

// execute runs the program as if sig had cancelled it, and returns its exit status and both output
// streams.
func (p *program) execute(t *testing.T, sig syscall.Signal, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := &Env{Prog: "tool", In: strings.NewReader(""), Out: &out, Err: &errs}
	env.cancelledBy = int32(sig)
	status = env.run(t.Context(), env.Tree(p.build), args)
	return status, out.String(), errs.String()
}

// isolate hides the user's own settings from a test.
func isolate(t *testing.T) (configHome string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "GFAAS_") || name == "NO_COLOR" {
			t.Setenv(name, "")
		}
	}
	return dir
}

// lowerError is an error of a lower layer.
type lowerError struct{ locked, missing bool }

func (b *lowerError) Error() string     { return "from below" }
func (b *lowerError) Locked() bool      { return b.locked }
func (b *lowerError) Unavailable() bool { return b.missing }
func (b *lowerError) Hint() string      { return "do this" }

// coded is an error with its own JSON code.
type coded struct{ error }

func (coded) JSONCode() string { return "busy" }
func (c coded) Unwrap() error  { return c.error }

// refused is a daemon's refusal, as its client returns it.
type refused struct{ error }

func (refused) Refusal() (code, where string) { return "too-large", "/buffers/x" }

func TestExitStatus(t *testing.T) {
	isolate(t)
	for _, c := range []struct {
		name    string
		err     error
		signal  syscall.Signal
		want    int
		message string
	}{
		{"no error", nil, 0, 0, ""},
		{"any error", errors.New("broken"), 0, 1, "tool: error: broken\n"},
		{"missing", fmt.Errorf("up: %w", &lowerError{missing: true}), 0, 4, "tool: error: up: from below\ntool: hint: do this\n"},
		{"locked", &lowerError{locked: true}, 0, 6, "tool: error: from below\ntool: hint: do this\n"},
		{"neither locked nor missing", &lowerError{}, 0, 1, "tool: error: from below\ntool: hint: do this\n"},
		{"deadline exceeded", fmt.Errorf("wait: %w", context.DeadlineExceeded), 0, 5, "tool: error: wait: context deadline exceeded\n"},
		{"usage", Usagef("--x %d", 3), 0, 2, "tool: error: --x 3\n"},
		{"chosen status", fmt.Errorf("plan: %w", Fail(3, "look", errors.New("no"))), 0, 3, "tool: error: plan: no\ntool: hint: look\n"},
		{"chosen status, hint of the cause", Fail(7, "", &lowerError{locked: true}), 0, 7, "tool: error: from below\ntool: hint: do this\n"},
		{"status without a message", Exit(3), 0, 3, ""},
		{"interrupted", fmt.Errorf("stop: %w", context.Canceled), syscall.SIGINT, 130, ""},
		{"terminated, with an error", errors.New("left over"), syscall.SIGTERM, 143, "tool: error: left over\n"},
		{"interrupted after it was done", nil, syscall.SIGINT, 0, ""},
		{"a child's status wins", Exit(9), syscall.SIGINT, 9, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := program{fail: c.err}
			status, stdout, stderr := p.execute(t, c.signal, "work")
			if status != c.want || stderr != c.message || stdout != "" {
				t.Errorf("status %d, stdout %q, stderr %q; want %d and %q", status, stdout, stderr, c.want, c.message)
			}
		})
	}
}

func TestFailWithoutError(t *testing.T) {
	if err := Fail(ExitUsage, "hint", nil); err != nil {
		t.Errorf("Fail without an error: got %v, want nil", err)
	}
}

func TestUsage(t *testing.T) {
	isolate(t)
	for _, c := range []struct{ args, message string }{
		{"frob", `unknown command "frob"`},
		{"frob --fast 3", `unknown command "frob"`},
		{"wokr", `unknown command "wokr" for "tool": work?`},
		{"shov", `unknown command "shov" for "tool": work?`}, // SuggestFor takes precedence over the more similar "show"
		{"help frob", `unknown command "frob" for "tool"`},
		{"help wokr", `unknown command "wokr" for "tool": work?`},
		{"help work frob", `unknown command "frob" for "tool work"`},
		{"wokr --fast 3", `unknown command "wokr" for "tool": work?`},
		{"--frob", "unknown flag: --frob"},
		{"work --max_rps 3", "unknown flag: --max_rps: --max-rps?"},
		{"work --quite", "unknown flag: --quite: --quiet?"},
		{"work -x", "unknown shorthand flag: 'x' in -x"},
		{"work --frob", "unknown flag: --frob"},
		{"work a b", "accepts at most 1 arg(s), received 2: expected [FILE]"},
		{"show a", `"a": tool show takes no arguments, expected only flags`},
		{"draw a.csv", `"a.csv": tool draw takes no arguments, expected --input or --other before it`},
		{"draw a.csv --input b.csv", `expected --other before it`},
		{"draw a.json", "expected only flags"},
		{"completion nosh", `unknown command "nosh" for "tool completion"`},
		{"completion fihs", `unknown command "fihs" for "tool completion": fish?`},
		{"completion bash fish", `"fish": tool completion bash takes no arguments`},
		{"work --max-rps x", `invalid argument "x" for "--max-rps" flag: expected a number like 12.5`},
		{"work --max-rps 1e999", "expected a number like 12.5 closer to 0"},
		{"work --max-rps 1e-400", "expected a number like 12.5 farther from 0, or exactly 0"},
		{"work --quiet=x", "expected true or false"},
		{"work -o yaml", `--output "yaml" is not offered here: expected table, json, csv`},
		{"plain -o yaml", `--output "yaml" is not offered here: expected table, json`},
	} {
		var p program
		status, stdout, stderr := p.execute(t, noSignal, strings.Fields(c.args)...)
		if status != ExitUsage || !strings.Contains(stderr, c.message) || p.ran != "" || stdout != "" {
			t.Errorf("%s: status %d, stderr %q, ran %q; want 2 and %q", c.args, status, stderr, p.ran, c.message)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	isolate(t)
	for _, c := range []struct{ args, message string }{
		{"work --version", "tool version " + Version},
		{"", "A tool"},
		{"--help", "EXIT STATUS"},
		{"work --help", "EXIT STATUS"},
		{"--version", "tool version " + Version},
	} {
		var p program
		status, stdout, stderr := p.execute(t, noSignal, strings.Fields(c.args)...)
		if status != 0 || stderr != "" || !strings.Contains(stdout, c.message) || p.ran != "" {
			t.Errorf("%q: status %d, stderr %q, stdout %q; want 0 and %q", c.args, status, stderr, stdout, c.message)
		}
	}
}

// TestHelpToFullDisk checks that help which cannot be written is a failure.
func TestHelpToFullDisk(t *testing.T) {
	isolate(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, arg := range []string{"--help", "--version"} {
		var p program
		var errs bytes.Buffer
		env := &Env{Prog: "tool", Out: full, Err: &errs}
		status := env.run(t.Context(), env.Tree(p.build), []string{arg})
		if status != ExitFailure || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%s to a full disk: got status %d and %q, want %d and \"no space left\"", arg, status, errs.String(), ExitFailure)
		}
	}
}

func TestErrorsInJSON(t *testing.T) {
	isolate(t)
	for _, c := range []struct {
		args string
		fail error
		want map[string]string
	}{
		{"work -o json", Fail(4, "start it", errors.New("no daemon")), map[string]string{"code": "unavailable", "message": "no daemon", "hint": "start it"}},
		{"work -o json", errors.New("bad \"file\"\nof two lines"), map[string]string{"code": "failed", "message": "bad \"file\"\nof two lines", "hint": ""}},
		{"work -o json", &lowerError{locked: true}, map[string]string{"code": "locked", "message": "from below", "hint": "do this"}},
		{"work -o json", context.DeadlineExceeded, map[string]string{"code": "timeout", "message": "context deadline exceeded", "hint": ""}},
		{"work -o json", fmt.Errorf("run: %w", refused{errors.New("no room")}),
			map[string]string{"code": "too-large", "message": "run: no room", "hint": "", "where": "/buffers/x"}},
		{"work -o json", Fail(ExitTimeout, "", refused{errors.New("late")}),
			map[string]string{"code": "timeout", "message": "late", "hint": "", "where": "/buffers/x"}},
		{"work -o json", Fail(ExitTimeout, "wait", coded{refused{errors.New("full")}}),
			map[string]string{"code": "busy", "message": "full", "hint": "wait", "where": "/buffers/x"}},
		{"work -o json a b", nil, map[string]string{"code": "usage", "message": "accepts at most 1 arg(s), received 2: expected [FILE]", "hint": "see 'tool work --help'"}},
		{"work --frob -o json", nil, map[string]string{"code": "usage", "message": "unknown flag: --frob", "hint": "see 'tool work --help'"}},
		{"frob --output=json", nil, map[string]string{"code": "usage", "message": "unknown command \"frob\" for \"tool\"", "hint": "see 'tool --help'"}},
		{"plain -ojson", errors.New("a < b"), map[string]string{"code": "failed", "message": "a < b", "hint": ""}},
		{"work -o json --frob", nil, map[string]string{"code": "usage", "message": "unknown flag: --frob", "hint": "see 'tool work --help'"}},
	} {
		p := program{fail: c.fail}
		_, _, stderr := p.execute(t, noSignal, strings.Fields(c.args)...)
		var got struct {
			Error map[string]string `json:"error"`
		}
		text := "tool: error: " + c.want["message"] + "\n"
		if c.want["hint"] != "" {
			text += "tool: hint: " + c.want["hint"] + "\n"
		}
		object, hasText := strings.CutPrefix(stderr, text)
		if err := json.Unmarshal([]byte(object), &got); err != nil || !hasText || fmt.Sprint(got.Error) != fmt.Sprint(c.want) {
			t.Errorf("%s: stderr %q, %v; want %q and %v", c.args, stderr, err, text, c.want)
		}
	}
	p := program{fail: Fail(ExitNo, "", errors.New("infeasible"))}
	if _, _, stderr := p.execute(t, noSignal, "work", "-o", "json"); strings.Contains(stderr, "{") {
		t.Errorf("standard error with exit status 3 and -o json: got %q, want no error object", stderr)
	}
}

func TestFormDefaults(t *testing.T) {
	isolate(t)
	for args, want := range map[string]string{
		"work": "table", "show": "yaml", "plain": "table", "work -o csv": "csv", "show -o json": "json",
	} {
		var p program
		if status, _, stderr := p.execute(t, noSignal, strings.Fields(args)...); status != 0 || p.form != want {
			t.Errorf("%s: status %d, form %q, %s; want %q", args, status, p.form, stderr, want)
		}
	}
}

func TestSignals(t *testing.T) {
	// Handle SIGHUP here as well: under nohup it would be ignored.
	hangUps := make(chan os.Signal, 1)
	signal.Notify(hangUps, syscall.SIGHUP)
	defer signal.Stop(hangUps)
	for _, c := range []struct {
		send    []syscall.Signal
		reloads bool
		want    syscall.Signal
		status  int
	}{
		{[]syscall.Signal{syscall.SIGINT}, false, syscall.SIGINT, 130},
		{[]syscall.Signal{syscall.SIGTERM}, false, syscall.SIGTERM, 143},
		{[]syscall.Signal{syscall.SIGHUP}, false, syscall.SIGHUP, 129},
		{[]syscall.Signal{syscall.SIGHUP, syscall.SIGTERM}, true, syscall.SIGTERM, 143},
	} {
		env := &Env{}
		ctx, stop := env.catch(t.Context())
		if c.reloads {
			env.Reloads()
		}
		for _, s := range c.send {
			if err := syscall.Kill(os.Getpid(), s); err != nil {
				t.Fatal(err)
			}
			if s == syscall.SIGHUP {
				// Wait until the program has received SIGHUP. The kernel may deliver it to another thread, so
				// it could otherwise arrive after the next signal or after the end of the test.
				<-hangUps
			}
		}
		<-ctx.Done()
		if env.caught() != c.want || signalExit(env.caught()) != c.status {
			t.Errorf("signals %v: caught %v with exit status %d, want %v with %d", c.send, env.caught(), signalExit(env.caught()), c.want, c.status)
		}
		stop()
	}
}

// TestSignalEndsStuck sends a signal to a command that blocks, as in a read of standard input. The program ends without
// waiting for the command, unless the command cleans up.
func TestSignalEndsStuck(t *testing.T) {
	isolate(t)
	for _, cleansUp := range []bool{false, true} {
		stuck, returned := make(chan struct{}), false
		build := func(env *Env) *cobra.Command {
			return &cobra.Command{Use: "tool", RunE: func(cmd *cobra.Command, _ []string) error {
				if cleansUp {
					env.CleansUp()
					time.AfterFunc(grace+grace/2, func() { close(stuck) })
				}
				<-stuck
				returned = true
				return context.Cause(cmd.Context())
			}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var errs bytes.Buffer
		env := &Env{Prog: "tool", In: strings.NewReader(""), Out: io.Discard, Err: &errs}
		env.cancelledBy = int32(syscall.SIGTERM)
		status := env.run(ctx, env.Tree(build), []string{})
		if status != 143 || returned != cleansUp || errs.Len() > 0 {
			t.Errorf("command with clean-up %v: got status %d, returned %v, standard error %q; want status 143", cleansUp, status, returned, &errs)
		}
		if !cleansUp {
			close(stuck)
		}
	}
}
