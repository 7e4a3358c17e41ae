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

// watchPause is the pause after a failed request of a Watch.
const watchPause = time.Second

// Watch reports each unmanaged process of an instance once, also across restarts of the
// daemon. At most one goroutine may use it at a time.
type Watch struct {
	client   *Client
	instance string
	report   func(wire.Unmanaged)
	next     int // number of the next entry to request
	reported map[[2]uint64]bool
}

// NewWatch returns a Watch of a registered instance that passes processes to report.
func NewWatch(c *Client, instance string, report func(wire.Unmanaged)) *Watch {
	return &Watch{client: c, instance: instance, report: report, reported: map[[2]uint64]bool{}}
}

// Run reports processes until ctx ends or the daemon does not know the instance.
func (w *Watch) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.query(ctx, "")
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

// Flush reports the processes that the daemon has found. If search is true, the daemon searches
// once more before. A search takes longer, the more processes the host has.
func (w *Watch) Flush(ctx context.Context, search bool) {
	query := "&wait=0"
	if !search {
		query += "&search=0" // an older daemon searches nevertheless
	}
	_ = w.query(ctx, query)
}

func (w *Watch) query(ctx context.Context, query string) error {
	var list wire.UnmanagedList
	path := fmt.Sprintf("/v1/instances/%s/unmanaged?after=%d%s", url.PathEscape(w.instance), w.next, query)
	if err := w.client.do(ctx, http.MethodGet, path, nil, &list); err != nil {
		return err
	}
	w.next = list.Next
	for _, u := range list.Found {
		if id := [2]uint64{uint64(u.PID), u.Start}; !w.reported[id] {
			w.reported[id] = true
			w.report(u)
		}
	}
	return nil
}
