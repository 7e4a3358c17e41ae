// Package cli is the frame of every binary. The packages below pkg/command build their cobra
// trees on it, and the main functions below cmd call Main or Process.
//
//   - Env holds the streams, the common flags and the chosen output form. A command prints through
//     Env: Show, Write and Emit for results, Notef and Debugf for messages, Progress for a Bar.
//   - Results go to standard output or, atomically, to --out-file. Notes, errors and progress go to
//     standard error.
//   - Error carries an exit status and a hint. Fail and Usagef create errors, and Main prints them
//     and returns the status. Only main calls os.Exit.
//   - Each flag can also be set by the environment or the config file; the flag takes precedence over the
//     environment, and the environment over the file.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Version is the version that --version prints. Releases set it at link time.
var Version = "0.1.0-dev"

// Env is a command's access to its environment: streams, common flags and signals.
type Env struct {
	Prog string
	In   io.Reader
	Out  io.Writer
	Err  io.Writer

	// ErrTerminal is true if standard error is a terminal. Progress bars need one.
	ErrTerminal bool

	// Noted, if not nil, receives every text of Notef, even under --quiet.
	Noted func(text string)

	// Set by the common flags.
	Output  string // chosen output form; empty until settleFlags if the command line has no -o
	OutFile string
	Private bool // only the user can read the files that Write and WriteTo create
	Quiet   bool
	Verbose bool
	noColor bool
	args    []string // command line without the program name
	config  string
	flags   *pflag.FlagSet // of the running command

	bar *Bar // the last visible bar; Progress sets it before other goroutines print notes

	statuses map[*cobra.Command]func(*Error) int // see Statuses

	signals
}

// Colors reports whether output may have colours.
func (env *Env) Colors() bool { return !env.noColor }

// Main builds the command tree, runs it with the process's arguments and streams, and returns the
// exit status.
func Main(prog string, build func(*Env) *cobra.Command) int {
	env := Process(prog)
	return env.Main(env.Tree(build))
}

// Process returns an Env with the streams of this process.
func Process(prog string) *Env {
	return &Env{
		Prog: prog, In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		ErrTerminal: isatty.IsTerminal(os.Stderr.Fd()),
	}
}

// Main runs a command tree from Tree with the process's arguments and returns the exit status.
func (env *Env) Main(root *cobra.Command) int {
	ctx, stop := env.catch(context.Background())
	defer stop()
	return env.run(ctx, root, os.Args[1:])
}

// Tree returns the command tree with everything that the binaries share. Main runs it; the
// generators of man pages and documentation only read it.
func (env *Env) Tree(build func(*Env) *cobra.Command) *cobra.Command {
	root := build(env)
	env.addCommon(root)
	return root
}

// run executes the tree, prints its error and returns the exit status.
func (env *Env) run(ctx context.Context, root *cobra.Command, args []string) int {
	env.args = args
	root.SetArgs(args)
	root.SetIn(env.In)
	help := &firstError{Writer: env.Out}
	root.SetOut(help)
	root.SetErr(env.Err)
	rejectUnknownShells(root, args)
	result := make(chan error, 1)
	var ran *cobra.Command
	go func() {
		cmd, err := root.ExecuteContextC(ctx)
		ran = cmd
		result <- cmp.Or(err, help.err)
	}()
	err, late := env.wait(ctx, result)
	sig := env.caught()
	if late && sig != 0 {
		return signalExit(sig)
	}
	if err == nil {
		return ExitOK
	}
	e := classify(err)
	if _, chosen := errors.AsType[*Error](err); sig != 0 && !chosen {
		if !errors.Is(err, context.Canceled) {
			env.report(e)
		}
		return signalExit(sig)
	}
	if e.Exit == ExitUsage && env.Output == "" {
		env.Output = outputBefore(args)
	}
	env.report(e)
	if own := env.statuses[ran]; own != nil && e.Err != nil {
		return own(e)
	}
	return e.Exit
}

// firstError records the first error of a writer, because cobra ignores errors while it prints help.
type firstError struct {
	io.Writer
	err error
}

func (w *firstError) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// errorBody is the JSON form of an error.
type errorBody struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
		Where   string `json:"where,omitempty"`
	} `json:"error"`
}

// report prints an error as `prog: error: …` and `prog: hint: …`. Under -o json, it adds the error
// as a JSON object on the last line, except for ExitNo and ExitPartial: the command's result
// already shows those.
func (env *Env) report(e *Error) {
	if e.Err == nil {
		return
	}
	if env.flags != nil && e.Exit == ExitUsage {
		if origins := originsOfSettings(env.flags, e.Err.Error()); origins != "" {
			e = &Error{Exit: e.Exit, Err: fmt.Errorf("%w (%s)", e.Err, origins), Hint: e.Hint}
		}
	}
	fmt.Fprintf(env.Err, "%s: error: %v\n", env.Prog, e.Err)
	if e.Hint != "" {
		fmt.Fprintf(env.Err, "%s: hint: %s\n", env.Prog, e.Hint)
	}
	if env.Output == "json" && e.Exit != ExitNo && e.Exit != ExitPartial {
		var body errorBody
		text := &body.Error
		text.Code, text.Message, text.Hint = exitNames[e.Exit], e.Err.Error(), e.Hint
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
		_ = enc.Encode(body)
	}
}
