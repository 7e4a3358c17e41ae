// Package cli is what all binaries share: streams, settings, printers,
// progress, and how an error becomes a message and an exit status.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Version is what --version prints; releases set it at link time.
var Version = "0.1.0-dev"

// Env is what a command may touch of the world around it.
type Env struct {
	Prog string
	In   io.Reader
	Out  io.Writer
	Err  io.Writer

	// ErrTerminal says that standard error is a terminal: only then is
	// progress shown.
	ErrTerminal bool

	// Noted, if not nil, gets what Notef tells, --quiet or not.
	Noted func(text string)

	// Set by the flags every command has.
	Output  string // the chosen form; empty until the command offered some
	OutFile string
	Quiet   bool
	Verbose bool
	noColor bool
	args    []string // the command line, without the program
	config  string
	flags   *pflag.FlagSet // of the command that runs

	bar *Bar // the last that is shown; set before there is anybody to note things

	statuses map[*cobra.Command]func(*Error) int // see Statuses

	cleansUp int32 // atomic, see CleansUp
	reloads  int32 // atomic, see Reloads
}

// Colors says whether what is printed may have colours.
func (env *Env) Colors() bool { return !env.noColor }

// grace is how long a command that does not clean up may take to end by itself
// once a signal came.
const grace = 500 * time.Millisecond

// CleansUp says that from here on the command has something to clean up: when a
// signal comes its context is cancelled and Main waits for it to return. Without
// that, Main waits for no longer than grace: a command that only reads,
// computes and writes may be in a read of standard input, which no context
// cancels.
func (env *Env) CleansUp() { atomic.StoreInt32(&env.cleansUp, 1) }

// Reloads says that a SIGHUP is the command's own from here on: it does not end
// the program.
func (env *Env) Reloads() { atomic.StoreInt32(&env.reloads, 1) }

// Main builds the command tree and runs it on the process's own arguments and
// streams. The result is the exit status.
func Main(prog string, build func(*Env) *cobra.Command) int {
	env := Process(prog)
	return env.Main(env.Tree(build))
}

// Process is the world of this process, with its own streams.
func Process(prog string) *Env {
	return &Env{
		Prog: prog, In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		ErrTerminal: isatty.IsTerminal(os.Stderr.Fd()),
	}
}

// Main runs a Tree on the process's own arguments.
func (env *Env) Main(root *cobra.Command) int {
	ctx, caught, stop := env.withSignals(context.Background())
	defer stop()
	return env.run(ctx, root, os.Args[1:], caught)
}

// Tree is the whole command tree with what every binary has, for whoever wants
// to look at it rather than run it.
func (env *Env) Tree(build func(*Env) *cobra.Command) *cobra.Command {
	root := build(env)
	env.addCommon(root)
	return root
}

// run executes the tree and reports its error.
func (env *Env) run(ctx context.Context, root *cobra.Command, args []string, caught func() syscall.Signal) int {
	env.args = args
	root.SetArgs(args)
	root.SetIn(env.In)
	help := &firstError{Writer: env.Out}
	root.SetOut(help)
	root.SetErr(env.Err)
	refuseShells(root, args)
	ended := make(chan error, 1)
	var ran *cobra.Command
	go func() {
		cmd, err := root.ExecuteContextC(ctx)
		ran = cmd
		ended <- cmp.Or(err, help.err)
	}()
	err, late := env.wait(ctx, ended)
	if late && caught() != 0 {
		return signalExit(caught())
	}
	if err == nil {
		return ExitOK
	}
	var chosen *Error
	if sig := caught(); sig != 0 && !errors.As(err, &chosen) {
		if !errors.Is(err, context.Canceled) {
			env.report(classify(err))
		}
		return signalExit(sig)
	}
	e := classify(err)
	if e.Exit == ExitUsage && env.Output == "" {
		env.Output = outputBefore(args)
	}
	env.report(e)
	if own := env.statuses[ran]; own != nil && e.Err != nil {
		return own(e)
	}
	return e.Exit
}

// firstError keeps the first error of a writer: cobra, which prints the help,
// drops them.
type firstError struct {
	io.Writer
	err error
}

func (w *firstError) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// wait returns the command's error, or late when the context was cancelled and
// the command still runs after the grace.
func (env *Env) wait(ctx context.Context, ended <-chan error) (err error, late bool) {
	select {
	case err := <-ended:
		return err, false
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err, false
	case <-timer.C:
	}
	if atomic.LoadInt32(&env.cleansUp) != 0 {
		return <-ended, false
	}
	return nil, true
}

// errorBody is an error under -o json.
type errorBody struct {
	Error errorText `json:"error"`
}

type errorText struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
	Where   string `json:"where,omitempty"`
}

// report prints an error as `prog: error: …` and `prog: hint: …`, and under
// -o json on a last line as an object too. Where the answer is no, or part of
// it is there, the result says so.
func (env *Env) report(e *Error) {
	if e.Err == nil {
		return
	}
	if env.flags != nil && e.Exit == ExitUsage {
		if from := settingsIn(env.flags, e.Err.Error()); from != "" {
			e = &Error{Exit: e.Exit, Err: fmt.Errorf("%w (%s)", e.Err, from), Hint: e.Hint}
		}
	}
	fmt.Fprintf(env.Err, "%s: error: %v\n", env.Prog, e.Err)
	if e.Hint != "" {
		fmt.Fprintf(env.Err, "%s: hint: %s\n", env.Prog, e.Hint)
	}
	if env.Output == "json" && e.Exit != ExitNo && e.Exit != ExitPartial {
		text := errorText{Code: exitNames[e.Exit], Message: e.Err.Error(), Hint: e.Hint}
		var code string
		if code, text.Where = refusal(e.Err); code != "" && e.Exit == ExitFailure {
			text.Code = code
		}
		var named interface{ JSONCode() string }
		if errors.As(e.Err, &named) {
			text.Code = named.JSONCode()
		}
		enc := json.NewEncoder(env.Err)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(errorBody{text})
	}
}

// withSignals cancels the context at the first SIGINT, SIGTERM or SIGHUP, which
// is what a closed terminal sends, and tells which it was. Under nohup there is
// no SIGHUP.
func (env *Env) withSignals(parent context.Context) (context.Context, func() syscall.Signal, func()) {
	ctx, cancel := context.WithCancel(parent)
	var got atomic.Int32
	// Two channels: what is sent to a full one is lost.
	end, hangUp := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(hangUp, syscall.SIGHUP)
	}
	go func() {
		for {
			var s os.Signal
			select {
			case s = <-end:
			case s = <-hangUp:
				if atomic.LoadInt32(&env.reloads) != 0 {
					continue
				}
			case <-ctx.Done():
				return
			}
			got.Store(int32(s.(syscall.Signal)))
			cancel()
			return
		}
	}()
	stop := func() { signal.Stop(end); signal.Stop(hangUp); cancel() }
	return ctx, func() syscall.Signal { return syscall.Signal(got.Load()) }, stop
}
