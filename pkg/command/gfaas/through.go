package gfaas

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

// invokeGateway sends a call through the gateway and prints the answer.
func invokeGateway(ctx context.Context, t *tool, client *gateway.Client, name string, header http.Header, b fnhttp.Body) error {
	started := time.Now()
	answer, err := client.Send(ctx, http.MethodPost, "/function/"+url.PathEscape(name), b.Sized(header), b.Reader())
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	id := answer.Header.Get("Gfaas-Instance")
	if id == "" {
		return gatewayError(answer)
	}
	if err := t.printAnswer(answer, id, started, func(err error) error { return fmt.Errorf("instance %s: %w", id, err) }); err != nil {
		return err
	}
	h := answer.Header
	t.env.Debugf("%s answered %s after %s: %s start, %s ms in the queue, %s ms to start, call %s",
		id, answer.Status, since(started), h.Get("Gfaas-Start"), h.Get("Gfaas-Queue-Ms"), h.Get("Gfaas-Start-Ms"), h.Get("X-Call-Id"))
	return checkStatus(name, id, answer)
}

// since returns the time since started, rounded for people.
func since(started time.Time) time.Duration { return time.Since(started).Round(10 * time.Microsecond) }

// gatewayError converts an answer that the gateway itself produced to an error.
func gatewayError(answer *http.Response) error {
	e := gateway.Refusal(answer)
	if answer.StatusCode == http.StatusGatewayTimeout {
		return cli.Fail(cli.ExitTimeout, e.Hint(), e)
	}
	return e
}

// post sends an asynchronous call to the gateway and prints its ID.
func (o *invokeOptions) post(ctx context.Context, t *tool, client *gateway.Client, name string, header http.Header, b fnhttp.Body) error {
	header = b.Sized(header).Clone()
	// An ID makes a repetition after a lost answer recognizable, so that the call runs once.
	header.Set("X-Call-Id", cmp.Or(o.callID, rand.Text()))
	if o.callback != "" {
		header.Set("X-Callback-Url", o.callback)
	}
	answer, err := client.Send(ctx, http.MethodPost, "/async-function/"+url.PathEscape(name), header, b.Reader())
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusAccepted {
		e := gateway.Refusal(answer)
		return cli.Fail(cli.ExitFailure, e.Hint(), e)
	}
	id := answer.Header.Get("X-Call-Id")
	return t.env.Emit(func(w io.Writer) error {
		if t.env.Output == "json" {
			return t.env.Encode(w, queuedCall{CallID: id})
		}
		_, err := fmt.Fprintln(w, id)
		return err
	})
}
