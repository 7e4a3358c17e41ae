package modeld

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// nonblock makes opening a pipe not wait for its writer.
const nonblock = syscall.O_NONBLOCK

type getOptions struct {
	tenant  string
	timeout time.Duration
}

func newGet(t *tool) *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "get NAME [FILE]",
		Short: "Load a known model, and write it to a file",
		Long: `Load a model that the daemon knows onto the GPU, unless it is already there, and write it to
FILE. Without FILE, the model is only loaded. With -, it is written to standard output. The
output has the bytes of the file that was put. A model that was put from several files is
written as one file.

The progress is shown on standard error: as a bar on a terminal, otherwise as a line every
30 s.`,
		Example: `  # load a model before it is needed
  gfaas-modeld get resnet50
  # compute the checksum of the copy on the GPU
  gfaas-modeld get resnet50 - | sha256sum`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: completeSecond,
		RunE: func(cmd *cobra.Command, args []string) error {
			file := ""
			if len(args) == 2 {
				file = args[1]
			}
			return o.run(cmd.Context(), t, args[0], file)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.tenant, "tenant", "", "use the models of this tenant (default: the tenant that is named "+wire.DefaultTenant+")")
	f.DurationVar(&o.timeout, "timeout", 0, "how long to wait for room while processes use other models, or while a process writes this model (0: no wait)")
	return cmd
}

func (o *getOptions) run(ctx context.Context, t *tool, name, path string) (err error) {
	if err := checkModel(name, o.tenant, o.timeout); err != nil {
		return err
	}
	r := wire.Request{Op: wire.OpGet, Name: name, Tenant: o.tenant, TimeoutMS: o.timeout.Milliseconds()}
	if path != "" {
		return o.write(ctx, t, r, path)
	}
	defer t.follow(ctx, name, o.tenant, nil)()
	_, err = t.call(ctx, "get "+name, r)
	return err
}

// counter is an io.Writer that counts bytes.
type counter struct{ atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.Add(int64(len(p)))
	return len(p), nil
}

// write makes the daemon write the model's file into a pipe, and copies it from there to a file.
func (o *getOptions) write(ctx context.Context, t *tool, r wire.Request, path string) error {
	client, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	out, err := t.env.Create(path)
	if err != nil {
		return err
	}
	defer out.Cleanup()
	if out.Remains { // not needed otherwise, and a slow reader of the output could delay the exit for ever
		t.env.CleansUp()
	}
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	defer from.Close()
	defer to.Close()
	sum := sha256.New()
	var written counter
	copying := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.MultiWriter(out, sum, &written), from)
		copying <- err
	}()
	r.Op = wire.OpRead
	stop := t.follow(ctx, r.Name, o.tenant, &written.Int64)
	a, _, err := client.Call(ctx, r, to)
	stop()
	_ = to.Close()
	if err != nil {
		_ = from.Close()
		<-copying
		return explain(fmt.Errorf("get %s: %w", r.Name, err))
	}
	if err := <-copying; err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); a.SHA256 != "" && got != a.SHA256 {
		return fmt.Errorf("get %s: the data from the GPU has the SHA-256 %s, expected %s", r.Name, got, a.SHA256)
	}
	return out.Commit()
}
