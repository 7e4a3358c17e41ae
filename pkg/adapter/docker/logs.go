package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Logs reads what the engine keeps of what the container printed; nothing when
// it is gone.
func (r *Runtime) Logs(ctx context.Context, h instance.Handle, o ports.LogOptions) ports.LogLines {
	return func(yield func(ports.LogLine, error) bool) {
		err := r.readLog(ctx, h, o, &lineWriter{since: o.Since, yield: yield})
		switch {
		case err == nil, errors.Is(err, errEnough), cerrdefs.IsNotFound(err):
		case ctx.Err() != nil:
			yield(ports.LogLine{}, ctx.Err())
		default:
			yield(ports.LogLine{}, explain("read the log of container "+short(h.Container), err))
		}
	}
}

func (r *Runtime) readLog(ctx context.Context, h instance.Handle, o ports.LogOptions, to *lineWriter) error {
	options := container.LogsOptions{ShowStdout: true, ShowStderr: true, Timestamps: true, Follow: o.Follow}
	if o.Tail >= 0 {
		options.Tail = strconv.Itoa(o.Tail)
	}
	if !o.Since.IsZero() {
		options.Since = fmt.Sprintf("%d.%09d", o.Since.Unix(), o.Since.Nanosecond())
	}
	stream, err := r.engine.ContainerLogs(ctx, h.Container, options)
	if err != nil {
		return err
	}
	defer stream.Close()
	_, err = stdcopy.StdCopy(to, to, stream)
	return err
}

// errEnough is of a caller who wants no more.
var errEnough = errors.New("enough")

// lineWriter yields what the engine has as one message: a line, or a part of a
// long one, after its time.
type lineWriter struct {
	since time.Time // the engine itself knows only seconds in some of its drivers
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
