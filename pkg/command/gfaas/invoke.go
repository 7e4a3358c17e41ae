package gfaas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/daemon/async"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
)

type invokeOptions struct {
	headers  []string
	timeout  time.Duration
	async    bool
	callback string
	callID   string
}

func newInvoke(t *tool) *cobra.Command {
	var o invokeOptions
	cmd := &cobra.Command{
		Use:   "invoke NAME",
		Short: "Call a function",
		Long: `Call a function with standard input as the body, and print the answer to standard
output as it arrives. If standard input is a terminal, the body is empty.

If a gateway runs (gfaas serve), the call goes through it, and the gateway starts
an instance if necessary. Otherwise the call goes to a ready instance, chosen at
random in proportion to the rates in the plan. If that instance does not receive
the call, the command sends it to another one. If an instance received the call, and
may have executed it without answering, the command sends it again only if it has
the header Idempotency-Key, and only once.

With --async, the gateway stores the call and runs it later, and runs it again if no
instance answers. It posts the answer to --callback, which must have a public address
unless gfaas serve --callback-allow admits it. The command prints the id of the
call and returns. The gateway reports the state of the call at /system/async/ID.

If the function answers with an error status (400 and above), the answer is printed,
and the exit status is 1. The exit status is 4 if no instance is ready, and 5 if the
answer does not arrive in time. With --async, it is 4 if no gateway runs, and 1 if the
gateway refuses the call.

If an instance has ended, and another program now listens on its port, this program
does not receive the call. With -v, a line on standard error names the instance that
answered and the time that it took. For a call through the gateway, the line also
names the kind of start: cold, host-warm or gpu-warm.

-o json prints a JSON object when the answer is complete: "status", "instance", "start" (if the
call went through the gateway), "duration_ms", "header", and the body as "body" or, if it is
not UTF-8, as "body_base64". With --async, the object has only "call_id".`,
		Example: `  # Call a function with the content of a file
  gfaas invoke resnet < cat.jpg

  # Send a JSON document and wait at most 5 s for the answer
  echo '{"n": 3}' | gfaas invoke vadd -H 'Content-Type: application/json' --timeout 5s

  # Queue a call; the gateway posts the answer to a URL
  gfaas invoke --async resnet --callback https://example.com/done < cat.jpg`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: t.completeFunctions,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	t.env.Outputs(cmd, "table", "json")
	cmd.Flags().StringArrayVarP(&o.headers, "header", "H", nil, "request `header`, like 'K: V' (repeatable)")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 30*time.Second, "time limit for the whole answer")
	cmd.Flags().BoolVar(&o.async, "async", false, "queue the call at the gateway and do not wait for the answer")
	cmd.Flags().StringVar(&o.callback, "callback", "", "with --async: `URL` to post the answer to")
	cmd.Flags().StringVar(&o.callID, "call-id", "", "with --async: id of the call; if calls have the same id, only the first one is run")
	return cmd
}

func (o *invokeOptions) run(ctx context.Context, t *tool, name string) error {
	header, err := fnhttp.ParseHeaders(o.headers)
	if err != nil {
		return cli.Usagef("--header %w", err)
	}
	if o.timeout <= 0 {
		return cli.Usagef("--timeout %v: expected more than 0", o.timeout)
	}
	if !o.async && (o.callback != "" || o.callID != "") {
		return cli.Usagef("--callback and --call-id need --async")
	}
	if wrong, ok := errors.AsType[*async.CallbackError](async.CheckCallback(o.callback)); ok {
		return cli.Usagef("--callback: %s", wrong.Reason)
	}
	client := gateway.Dial(t.runDir)
	defer client.Close()
	throughGateway := o.async || client.Answers(ctx)
	var ready []launch.Candidate
	if !throughGateway {
		state, err := t.store.List(ctx)
		if err != nil {
			return err
		}
		if ready, err = host.Ready(state, name); err != nil {
			return err
		}
	}
	var body fnhttp.Body
	if f, ok := t.env.In.(*os.File); !ok || !isatty.IsTerminal(f.Fd()) {
		if body, err = fnhttp.ReadBody(ctx, t.env.In); err != nil {
			return fmt.Errorf("read the request body: %w", err)
		}
	}
	limited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	switch {
	case o.async:
		err = o.post(limited, t, client, name, header, body)
	case throughGateway:
		err = invokeGateway(limited, t, client, name, header, body)
	default:
		err = call(limited, t, ready, header, body)
	}
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return o.late(t, name, err)
	}
	return err
}

// late returns the error about a call that timed out. If the token daemon does not answer, it adds a
// hint, because instances stall without the daemon.
func (o *invokeOptions) late(t *tool, name string, err error) error {
	const patience = time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	hint := "allow more time with --timeout"
	if _, unreachable := tokend.Dial(t.runDir).Status(ctx); unreachable != nil {
		hint = "instances wait for gfaas-tokend, which does not answer: start it"
	}
	return cli.Fail(cli.ExitTimeout, hint, fmt.Errorf("function %s did not answer within %v: %w", name, o.timeout, err))
}

// call sends the call to an instance and prints the answer.
func call(ctx context.Context, t *tool, ready []launch.Candidate, header http.Header, body fnhttp.Body) error {
	client := fnhttp.NewClient()
	defer client.Close()
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	invoker := &launch.Invoker{Invoker: client, Launcher: launcher, Unpark: tokend.Dial(t.runDir).Unpark}
	caller := &launch.Caller{Invoker: invoker, Random: rand.Float64, OnRepeat: func(r instance.Record, err error) {
		t.env.Debugf("%v", unanswered(ctx, launcher, r, err))
	}}
	request, newBody := body.Call(header)
	started := time.Now()
	a, err := caller.Call(ctx, ready, request, newBody)
	if err == nil {
		defer a.Body.Close()
		err := t.printAnswer(a.Response, a.Instance.ID, started, func(err error) error { return launch.ExplainFailure(ctx, launcher, a.Instance, err) })
		if err == nil {
			err = checkStatus(a.Instance.Function, a.Instance.ID, a.Response)
		}
		t.env.Debugf("%s answered %s after %s", a.Instance.ID, a.Response.Status, since(started))
		return err
	}
	reason := unanswered(ctx, launcher, a.Instance, err)
	if launch.NotConnected(err) {
		return cli.Fail(cli.ExitUnavailable, launch.RestartHint, reason)
	}
	return reason
}

// unanswered returns the error about an instance that did not answer.
func unanswered(ctx context.Context, launcher *launch.Launcher, r instance.Record, err error) error {
	if _, refused := errors.AsType[*tokend.Error](err); refused {
		return fmt.Errorf("instance %s: %w", r.ID, err)
	}
	return launch.ExplainFailure(ctx, launcher, r, err)
}

// printAnswer prints the body of an instance's answer or, with -o json, an object with the body. If the instance
// cuts it off, it returns explain's error.
func (t *tool) printAnswer(response *http.Response, instanceID string, started time.Time, explain func(error) error) error {
	from := &source{Reader: response.Body}
	var err error
	if t.env.Output == "json" {
		err = t.printJSON(response, from, instanceID, started)
	} else {
		err = t.copyOut(from)
	}
	switch {
	case from.err != nil:
		return explain(fmt.Errorf("answer cut off: %w", from.err))
	case err != nil:
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// checkStatus returns an error if an instance answered with an HTTP error status.
func checkStatus(function, id string, response *http.Response) error {
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("function %s (instance %s) answered %s", function, id, response.Status)
	}
	return nil
}

// source records the error of reading, to tell it apart from an error of writing.
type source struct {
	io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// copyOut streams to standard output. It writes a file only when the data is complete.
func (t *tool) copyOut(from io.Reader) error {
	if t.env.OutFile == "" || t.env.OutFile == "-" {
		_, err := io.Copy(t.env.Out, from)
		return err
	}
	return t.env.Emit(func(w io.Writer) error { _, err := io.Copy(w, from); return err })
}
