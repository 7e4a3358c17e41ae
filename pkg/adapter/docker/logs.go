package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Logs reads the container's log from the engine. It yields no lines if the container was
// removed.
func (r *Runtime) Logs(ctx context.Context, h instance.Handle, o ports.LogOptions) ports.LogLines {
	return ReadLog(ctx, o, "container "+shortID(h.Container), func(options container.LogsOptions) (io.ReadCloser, error) {
		return r.engine.ContainerLogs(ctx, h.Container, options)
	})
}

// ReadLog returns the lines of a log that open requests from the engine. It yields no lines if
// open reports that the log does not exist. owner names the log's owner in errors.
func ReadLog(ctx context.Context, o ports.LogOptions, owner string, open func(container.LogsOptions) (io.ReadCloser, error)) ports.LogLines {
	options := container.LogsOptions{ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: o.Follow}
	if o.Tail >= 0 {
		options.Tail = strconv.Itoa(o.Tail)
	}
	if !o.Since.IsZero() {
		options.Since = fmt.Sprintf("%d.%09d", o.Since.Unix(), o.Since.Nanosecond())
	}
	return func(yield func(ports.LogLine, error) bool) {
		stream, err := open(options)
		if err == nil {
			defer stream.Close()
			to := &lineWriter{since: o.Since, yield: yield}
			_, err = stdcopy.StdCopy(to, to, stream)
		}
		switch {
		case err == nil, errors.Is(err, errEnough), cerrdefs.IsNotFound(err):
		case ctx.Err() != nil:
			yield(ports.LogLine{}, ctx.Err())
		default:
			yield(ports.LogLine{}, explain("read the log of "+owner, err))
		}
	}
}

// errEnough reports that the consumer has stopped the iteration.
var errEnough = errors.New("enough")

// lineWriter converts each message of the engine to a LogLine. A message is a timestamp
// followed by a line or a part of a long line.
type lineWriter struct {
	since time.Time // applied again here, because some logging drivers filter by whole seconds
	yield func(ports.LogLine, error) bool
}

func (w *lineWriter) Write(message []byte) (int, error) {
	line := ports.LogLine{}
	text := message
	if stamp, after, ok := bytes.Cut(message, []byte{' '}); ok {
		if at, err := time.Parse(time.RFC3339Nano, string(stamp)); err == nil {
			line.Time, text = at, after
		}
	}
	if line.Time.Before(w.since) {
		return len(message), nil
	}
	text, ended := bytes.CutSuffix(text, []byte{'\n'})
	line.Text, line.Partial = string(text), !ended
	if !w.yield(line, nil) {
		return 0, errEnough
	}
	return len(message), nil
}
