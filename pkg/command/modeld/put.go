package modeld

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

type putOptions struct {
	sha256  string
	tenant  string
	public  bool
	timeout time.Duration
}

func newPut(t *tool) *cobra.Command {
	var o putOptions
	cmd := &cobra.Command{
		Use:   "put NAME FILE",
		Short: "Load a model from a file, under a name",
		Long: `Loads a model's weights from a safetensors file and returns when they are on the
GPU. FILE may be an index, NAME.safetensors.index.json, of a model in several
files. The file is read again when the model comes back after it had to make
room: it must stay as it is.

Where the name has the same content already, nothing happens. With other content
it becomes the model's next generation: who asks from now on gets that, and who
holds the one before keeps it. Other content is for all tenants only if --public is
said of it, too.

A terminal shows a progress bar. If standard error is not a terminal, a line every 30 s
tells how much of the model is loaded.`,
		Example: `  gfaas-modeld put resnet50 resnet50.safetensors
  gfaas-modeld put llama/8b model.safetensors.index.json --timeout 1m`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0], args[1]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.sha256, "sha256", "", "refuse content whose SHA-256, as sha256sum prints it, is another")
	f.StringVar(&o.tenant, "tenant", "", "whose model it is (default "+wire.DefaultTenant+")")
	f.BoolVar(&o.public, "public", false, "let every tenant use it")
	f.DurationVar(&o.timeout, "timeout", 0, "wait so long for room, where others hold models (0: not at all)")
	return cmd
}

func (o *putOptions) run(ctx context.Context, t *tool, name, path string) error {
	if err := checkModel(name, o.tenant); err != nil {
		return err
	}
	if o.timeout < 0 {
		return cli.Usagef("--timeout %v: expected 0 or more", o.timeout)
	}
	o.sha256 = strings.ToLower(o.sha256)
	if sum, err := hex.DecodeString(o.sha256); err != nil || o.sha256 != "" && len(sum) != 32 {
		return cli.Usagef("--sha256 %q: expected 64 hexadecimal digits", o.sha256)
	}
	source, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	client, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	file, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	end := t.follow(ctx, name, o.tenant, nil)
	_, _, err = client.Call(ctx, wire.Request{
		Op: wire.OpPut, Name: name, Tenant: o.tenant, Source: source, SHA256: o.sha256, Public: o.public,
		TimeoutMS: o.timeout.Milliseconds(),
	}, file)
	end()
	if err != nil {
		return explain(fmt.Errorf("put %s: %w", name, err))
	}
	return nil
}

// follow is like the function follow, and gets the status from the daemon over its own
// connection.
func (t *tool) follow(ctx context.Context, name, tenant string, written *atomic.Int64) (end func()) {
	return follow(ctx, t.env, name, written, func(ctx context.Context) (look func() (*wire.Status, error), done func(), err error) {
		client, err := t.dial(ctx)
		if err != nil {
			return nil, nil, err
		}
		return func() (*wire.Status, error) {
			a, _, err := client.Call(ctx, wire.Request{Op: wire.OpStat, Name: name, Tenant: tenant})
			return a.Model, err
		}, func() { client.Close() }, nil
	})
}

// looker connects to the daemon. look returns the status of the model; the caller calls done
// at the end.
type looker func(context.Context) (look func() (*wire.Status, error), done func(), err error)

// follow shows how much of a model is loaded until end is called: as a bar on a terminal, as
// a line every 30 s elsewhere, and not at all with --quiet. Once the model is on the GPU, it
// shows how many bytes were written, unless written is nil.
func follow(ctx context.Context, env *cli.Env, name string, written *atomic.Int64, open looker) (end func()) {
	if env.Quiet {
		return func() {}
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		look, done, err := open(ctx)
		if err != nil {
			return
		}
		defer done()
		bar := env.Progress(100, "loading "+name, "percent")
		defer func() { _ = bar.Finish() }()
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			m, err := look()
			switch {
			case err != nil || m.Bytes <= 0:
			case m.State == wire.StateLoading:
				_ = bar.Set(int(min(100, 100*m.Loaded/m.Bytes)))
			case m.State == wire.StateGPU && written != nil:
				bar.Describe("writing " + name)
				_ = bar.Set(int(min(100, 100*written.Load()/m.Bytes)))
			}
		}
	}()
	return func() { stop(); <-ended }
}
