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

	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// nonblock keeps the opening of a pipe from waiting for who writes it.
const nonblock = syscall.O_NONBLOCK

type getOptions struct {
	tenant  string
	timeout time.Duration
}

func newGet(t *tool) *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:   "get NAME [FILE]",
		Short: "Load a model that is known, and write it to a file",
		Long: `Loads a model if it is not on the GPU. With FILE, or - for standard output, it
is written back from the GPU: byte for byte the file that was put, and one file
where a model was put from several.

A terminal shows a progress bar. If standard error is not a terminal, a line every 30 s
tells how much of the model is loaded or written.`,
		Example: `  gfaas-modeld get resnet50
  gfaas-modeld get resnet50 - | sha256sum`,
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			file := ""
			if len(args) == 2 {
				file = args[1]
			}
			return o.run(cmd.Context(), t, args[0], file)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.tenant, "tenant", "", "who asks (default "+wire.DefaultTenant+")")
	f.DurationVar(&o.timeout, "timeout", 0, "wait so long for room, where others hold models, or for a model that is being stored (0: not at all)")
	return cmd
}

func (o *getOptions) run(ctx context.Context, t *tool, name, path string) (err error) {
	if err := checkModel(name, o.tenant); err != nil {
		return err
	}
	if o.timeout < 0 {
		return cli.Usagef("--timeout %v: expected 0 or more", o.timeout)
	}
	client, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	r := wire.Request{Op: wire.OpGet, Name: name, Tenant: o.tenant, TimeoutMS: o.timeout.Milliseconds()}
	if path != "" {
		return o.write(ctx, t, client, r, path)
	}
	end := t.follow(ctx, name, o.tenant, nil)
	_, files, err := client.Call(ctx, r)
	end()
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		return explain(fmt.Errorf("get %s: %w", name, err))
	}
	return nil
}

// counter is a writer that counts bytes.
type counter struct{ atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.Add(int64(len(p)))
	return len(p), nil
}

// write has the daemon write the file into a pipe, and what comes out of that into
// a file.
func (o *getOptions) write(ctx context.Context, t *tool, client *modeld.Client, r wire.Request, path string) error {
	out, err := t.env.Create(path)
	if err != nil {
		return err
	}
	defer out.Cleanup()
	if out.Remains { // else whoever reads the copy may keep it waiting for ever
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
	end := t.follow(ctx, r.Name, o.tenant, &written.Int64)
	a, _, err := client.Call(ctx, r, to)
	end()
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
		return fmt.Errorf("get %s: what came from the GPU has the SHA-256 %s, expected %s", r.Name, got, a.SHA256)
	}
	return out.Commit()
}
