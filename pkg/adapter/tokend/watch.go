package tokend

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// watchPause is the time between two requests of a Watch that failed.
const watchPause = time.Second

// Watch tells of an instance's unmanaged processes: of each once, whatever becomes of
// the daemon. Its methods are for one goroutine at a time.
type Watch struct {
	client   *Client
	instance string
	tell     func(wire.Unmanaged)
	next     int // to be asked for
	told     map[[2]uint64]bool
}

// NewWatch watches an instance that is registered.
func NewWatch(c *Client, instance string, tell func(wire.Unmanaged)) *Watch {
	return &Watch{client: c, instance: instance, tell: tell, told: map[[2]uint64]bool{}}
}

// Run watches until the context ends, or the daemon does not know the instance.
func (w *Watch) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.ask(ctx, "")
		var refused *Error
		if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
			return
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(watchPause):
			}
		}
	}
}

// Last makes the daemon look for unmanaged processes now, and tells of them.
func (w *Watch) Last(ctx context.Context) { _ = w.ask(ctx, "&wait=0") }

func (w *Watch) ask(ctx context.Context, query string) error {
	var list wire.UnmanagedList
	path := fmt.Sprintf("/v1/instances/%s/unmanaged?after=%d%s", url.PathEscape(w.instance), w.next, query)
	if err := w.client.do(ctx, http.MethodGet, path, nil, &list); err != nil {
		return err
	}
	w.next = list.Next
	for _, u := range list.Found {
		if id := [2]uint64{uint64(u.PID), u.Start}; !w.told[id] {
			w.told[id] = true
			w.tell(u)
		}
	}
	return nil
}
