package gfaas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
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
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

// lastLines is how much of an ended instance's output an error shows.
const lastLines = 10

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
		Long: `Sends standard input to the function and prints its answer on standard output as
it comes. With a terminal on standard input the body is empty. The call goes
through the gateway where one runs (gfaas serve), which starts an instance if need
be, else to an instance that is ready, by chance in proportion to what plans count
on them for. A call that no instance has seen goes to another one; one that may have
been carried out is sent once more if it has the header Idempotency-Key.

With --async the gateway keeps the call, runs it when it can, again if no instance
answers, and posts the answer to --callback, which must have a public address unless
gfaas serve --callback-allow admits it. What is printed is the call's id: its
state is at /system/async/ID of the gateway.

A function that answers with an error status (400 and above) is exit 1, with
its answer printed all the same; no ready instance is exit 4, no answer in time
exit 5. With --async no gateway is exit 4, and a call that it does not take exit 1.
Nothing is sent to another program that has the port of an instance by now. -v says
which instance answered after what time and, through the gateway, how it was started.`,
		Example: `  gfaas invoke resnet < cat.jpg
  echo '{"n": 3}' | gfaas invoke vadd -H 'Content-Type: application/json' --timeout 5s
  gfaas invoke --async resnet --callback https://example.com/done < cat.jpg`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: t.completeFunctions,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	cmd.Flags().StringArrayVarP(&o.headers, "header", "H", nil, "a header of the request, 'K: V'; may be given several times")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 30*time.Second, "how long the whole answer may take")
	cmd.Flags().BoolVar(&o.async, "async", false, "have the gateway run it, and do not wait")
	cmd.Flags().StringVar(&o.callback, "callback", "", "with --async: `URL` that the answer is posted to")
	cmd.Flags().StringVar(&o.callID, "call-id", "", "with --async: id of the call; the same call of the function is not run again")
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
		return cli.Usagef("--callback and --call-id are for --async")
	}
	var wrong *async.CallbackError
	if errors.As(async.CheckCallback(o.callback), &wrong) {
		return cli.Usagef("--callback: %s", wrong.Why)
	}
	send, done, err := o.sender(ctx, t, name)
	if err != nil {
		return err
	}
	defer done()
	body, err := readBody(ctx, t.env.In)
	if err != nil {
		return fmt.Errorf("read the body: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	err = send(limited, header, body)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return o.late(t, name, err)
	}
	return err
}

// sender is how the call is sent: through the gateway where one runs, else to an
// instance that is ready.
func (o *invokeOptions) sender(ctx context.Context, t *tool, name string) (send func(context.Context, http.Header, body) error, done func(), err error) {
	if client := gateway.Dial(t.runDir); o.async || client.Answers(ctx) {
		return func(ctx context.Context, header http.Header, b body) error {
			if o.async {
				return o.post(ctx, t, client, name, header, b)
			}
			return through(ctx, t, client, name, header, b)
		}, client.Close, nil
	}
	state, err := t.store.Look(ctx)
	if err != nil {
		return nil, nil, err
	}
	ready, err := host.Ready(state, name)
	return func(ctx context.Context, header http.Header, b body) error { return call(ctx, t, ready, header, b) }, func() {}, err
}

// late is the error of a call that ran out of time. Instances stall while no
// token daemon is there, so its absence is worth a hint.
func (o *invokeOptions) late(t *tool, name string, err error) error {
	const patience = time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	hint := "--timeout gives it longer"
	if _, asking := tokend.Dial(t.runDir).Status(ctx); asking != nil {
		hint = "gfaas-tokend does not answer, and instances wait for it: start it"
	}
	return cli.Fail(cli.ExitTimeout, hint, fmt.Errorf("function %s did not answer within %v: %w", name, o.timeout, err))
}

// call sends the call to an instance and copies its answer.
func call(ctx context.Context, t *tool, ready []launch.Candidate, header http.Header, body body) error {
	client := fnhttp.NewClient()
	defer client.Close()
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	caller := &launch.Caller{Invoker: living{client, launcher, tokend.Dial(t.runDir)}, Random: rand.Float64, Tell: func(r instance.Record, err error) {
		t.env.Debugf("%v", t.unanswered(ctx, r, err))
	}}
	request, again := body.call(header)
	begun := time.Now()
	a, err := caller.Call(ctx, ready, request, again)
	if err == nil {
		defer a.Body.Close()
		err := answer(ctx, t, a.Instance, a.Response)
		t.env.Debugf("%s answered %s after %s", a.Instance.ID, a.Response.Status, since(begun))
		return err
	}
	why := t.unanswered(ctx, a.Instance, err)
	if notConnected(err) {
		return cli.Fail(cli.ExitUnavailable, restart, why)
	}
	return why
}

// living sends nothing to a container that has ended: another can have its port by
// now, and nobody can see whose it is. Of processes its Invoker looks itself.
// What a gateway started and parked before it was killed it brings back.
type living struct {
	ports.Invoker
	launcher *launch.Launcher
	daemon   *tokend.Client
}

func (l living) Invoke(ctx context.Context, r *instance.Record, c ports.Call) (*http.Response, error) {
	if r.Handle.Runtime == instance.Docker {
		if state, err := l.launcher.State(ctx, r.Handle); err == nil && !state.Running {
			return nil, &ports.CallError{Progress: ports.NotConnected, Err: fmt.Errorf("its container: %s", state.Detail)}
		}
	}
	if r.Owner == instance.Gateway {
		if err := l.daemon.Unpark(ctx, r.ID); err != nil && !cli.Unavailable(err) {
			return nil, &ports.CallError{Progress: ports.NotConnected, Err: err}
		}
	}
	return l.Invoker.Invoke(ctx, r, c)
}

// unanswered says why an instance gave no answer.
func (t *tool) unanswered(ctx context.Context, r instance.Record, err error) error {
	var refused *tokend.Error
	if errors.As(err, &refused) {
		return fmt.Errorf("instance %s: %w", r.ID, err)
	}
	if notConnected(err) {
		return t.ended(ctx, r, 0, fmt.Errorf("instance %s does not listen: %w", r.ID, err))
	}
	return t.ended(ctx, r, slow, fmt.Errorf("instance %s: %w", r.ID, err))
}

func notConnected(err error) bool {
	var failed *ports.CallError
	return errors.As(err, &failed) && failed.Progress == ports.NotConnected
}

// restart is what to do about instances that have ended.
const restart = "'gfaas ps' shows what runs; 'gfaas down' and 'gfaas up' start again"

// answer prints what the function said; an error status is an error.
func answer(ctx context.Context, t *tool, r instance.Record, response *http.Response) error {
	from := &source{Reader: response.Body}
	if err := t.copyOut(from); from.err != nil {
		return t.ended(ctx, r, slow, fmt.Errorf("instance %s: answer cut off: %w", r.ID, from.err))
	} else if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("function %s (instance %s) answered %s", r.Function, r.ID, response.Status)
	}
	return nil
}

// source remembers why reading failed: then writing did not.
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

// copyOut streams to standard output; a file is written when it is whole.
func (t *tool) copyOut(from io.Reader) error {
	if t.env.OutFile == "" || t.env.OutFile == "-" {
		_, err := io.Copy(t.env.Out, from)
		return err
	}
	return t.env.Emit(func(w io.Writer) error { _, err := io.Copy(w, from); return err })
}

// slow is how much later a runtime may learn of an end than who had a
// connection to the instance.
const slow = 500 * time.Millisecond

// ended says of a call that failed that its instance has ended, and how, if the
// runtime says so within patience.
func (t *tool) ended(ctx context.Context, r instance.Record, patience time.Duration, cause error) error {
	const pause = 20 * time.Millisecond
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	late := time.Now().Add(patience)
	for ctx.Err() == nil {
		state, err := launcher.State(ctx, r.Handle)
		if err != nil || state.Running && !time.Now().Before(late) {
			break
		}
		if !state.Running {
			how := ""
			if state.Detail != "ended" {
				how = " (" + state.Detail + ")"
			}
			log, _ := ports.Text(launcher.Logs(ctx, r, ports.LogOptions{Tail: lastLines})) // its absence must not hide the cause
			return cli.Fail(cli.ExitFailure, restart, fmt.Errorf("instance %s has ended%s without an answer%s", r.ID, how, ports.Printed(log)))
		}
		time.Sleep(pause)
	}
	return cause
}

// maxKept is how much of a body is read before it is sent: it has a known
// length then, which simple servers need, and can be sent again when an
// instance refuses it. Longer bodies are streamed, a file's with its length.
const maxKept = 16 << 20

// body is what an invocation sends.
type body struct {
	head   []byte
	rest   io.Reader // nil when head is all
	length int64     // of all of it, when rest is that of a file; else 0
}

// readBody reads standard input, which is no body at all when it is a
// terminal. It returns early when ctx ends, though the input does not.
func readBody(ctx context.Context, in io.Reader) (body, error) {
	if f, ok := in.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		return body{}, nil
	}
	type result struct {
		body body
		err  error
	}
	done := make(chan result, 1)
	go func() {
		head, err := io.ReadAll(io.LimitReader(in, maxKept))
		b := body{head: head}
		if len(head) == maxKept {
			b.rest = struct{ io.Reader }{in} // hides Close: the input is not the request's to close
			if left := remaining(in); left > 0 {
				b.rest, b.length = io.LimitReader(in, left), int64(len(head))+left
			}
		}
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		return r.body, r.err
	case <-ctx.Done():
		return body{}, ctx.Err()
	}
}

// remaining is how much of a file has not been read; 0 of anything else.
func remaining(in io.Reader) int64 {
	f, ok := in.(*os.File)
	if !ok {
		return 0
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	return info.Size() - at
}

// call is one with this body under these headers, and what gives its body from
// its start again, if that can be had.
func (b body) call(header http.Header) (c ports.Call, again func() io.Reader) {
	if b.rest == nil {
		again = b.reader
	}
	return ports.Call{Header: b.sized(header), Body: b.reader()}, again
}

// sized is the headers with the body's length, where that is known and readers do
// not tell.
func (b body) sized(header http.Header) http.Header {
	if b.length > 0 && header.Get("Content-Length") == "" {
		header = header.Clone()
		header.Set("Content-Length", strconv.FormatInt(b.length, 10))
	}
	return header
}

// reader is the body from its start; once the rest of a long one has been
// read, that part is gone.
func (b body) reader() io.Reader {
	if b.rest == nil {
		return bytes.NewReader(b.head)
	}
	return io.MultiReader(bytes.NewReader(b.head), b.rest)
}
