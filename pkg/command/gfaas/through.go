package gfaas

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

// through sends a call through the gateway and prints the answer.
func through(ctx context.Context, t *tool, client *gateway.Client, name string, header http.Header, b body) error {
	begun := time.Now()
	answer, err := client.Send(ctx, http.MethodPost, "/function/"+url.PathEscape(name), b.sized(header), b.reader())
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	on := answer.Header.Get("Gfaas-Instance")
	if on == "" {
		return refused(answer)
	}
	from := &source{Reader: answer.Body}
	if err := t.copyOut(from); from.err != nil {
		return fmt.Errorf("instance %s: answer cut off: %w", on, from.err)
	} else if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	h := answer.Header
	t.env.Debugf("%s answered %s after %s: %s start, %s ms in the queue, %s ms to start, call %s",
		on, answer.Status, since(begun), h.Get("Gfaas-Start"), h.Get("Gfaas-Queue-Ms"), h.Get("Gfaas-Start-Ms"), h.Get("X-Call-Id"))
	if answer.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("function %s (instance %s) answered %s", name, on, answer.Status)
	}
	return nil
}

// since is the time from a moment until now, for people.
func since(begun time.Time) time.Duration { return time.Since(begun).Round(10 * time.Microsecond) }

// refused is the error that an answer of the gateway's own is.
func refused(answer *http.Response) error {
	e := gateway.Refusal(answer)
	if answer.StatusCode == http.StatusGatewayTimeout {
		return cli.Fail(cli.ExitTimeout, e.Hint(), e)
	}
	return e
}

// post has the gateway keep a call, and prints its id.
func (o *invokeOptions) post(ctx context.Context, t *tool, client *gateway.Client, name string, header http.Header, b body) error {
	id := o.callID
	if id == "" {
		id = rand.Text() // so that one whose answer is lost is not run twice when it is sent again
	}
	header = b.sized(header).Clone()
	header.Set("X-Call-Id", id)
	if o.callback != "" {
		header.Set("X-Callback-Url", o.callback)
	}
	answer, err := client.Send(ctx, http.MethodPost, "/async-function/"+url.PathEscape(name), header, b.reader())
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusAccepted {
		e := gateway.Refusal(answer)
		return cli.Fail(cli.ExitFailure, e.Hint(), e)
	}
	return t.env.Emit(func(w io.Writer) error { _, err := fmt.Fprintln(w, answer.Header.Get("X-Call-Id")); return err })
}
