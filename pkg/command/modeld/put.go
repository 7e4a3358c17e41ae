package modeld

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
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
	save    string
	timeout time.Duration
}

func newPut(t *tool) *cobra.Command {
	var o putOptions
	cmd := &cobra.Command{
		Use:   "put NAME FILE",
		Short: "Load a model from a file, under a name",
		Long: `Load the weights of a model from a safetensors file, and exit when they are on the GPU. FILE
can be an index of a model in several files, such as NAME.safetensors.index.json. Do not
change the file afterwards: if the model is evicted, the daemon reads the file again.

If FILE is -, the weights are read from standard input and first written to the file of
--save. This must be one safetensors file.

If the model NAME has the same content already, nothing happens. Other content becomes the
next generation of the model: later requests get the new generation, and processes that use
the previous generation keep it. Other tenants can use the new generation only if it is put
with --public, too.

The progress is shown on standard error: as a bar on a terminal, otherwise as a line every
30 s.`,
		Example: `  # put a model in one file
  gfaas-modeld put resnet50 resnet50.safetensors
  # put a model in several files, and wait up to a minute for room
  gfaas-modeld put llama/8b model.safetensors.index.json --timeout 1m
  # download a model, save it, and put it
  curl https://example.com/resnet50.safetensors | gfaas-modeld put resnet50 - --save resnet50.safetensors`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeSecond,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0], args[1]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.sha256, "sha256", "", "expected SHA-256, as sha256sum prints it; other content is refused")
	f.StringVar(&o.tenant, "tenant", "", "tenant that owns the model (default: the tenant with the name "+wire.DefaultTenant+")")
	f.BoolVar(&o.public, "public", false, "let all tenants use the model")
	f.StringVar(&o.save, "save", "", "if FILE is -: `file` to which standard input is written; the daemon reads it again after an eviction")
	cli.CompleteFiles(cmd, "safetensors", "save")
	f.DurationVar(&o.timeout, "timeout", 0, "how long to wait for room while processes use other models (0: no wait)")
	return cmd
}

// completeSecond completes a file name as the second argument.
func completeSecond(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (o *putOptions) run(ctx context.Context, t *tool, name, path string) error {
	if err := checkModel(name, o.tenant, o.timeout); err != nil {
		return err
	}
	o.sha256 = strings.ToLower(o.sha256)
	if sum, err := hex.DecodeString(o.sha256); err != nil || o.sha256 != "" && len(sum) != 32 {
		return cli.Usagef("--sha256 %q: expected 64 hexadecimal digits", o.sha256)
	}
	switch {
	case path == "-" && (o.save == "" || o.save == "-"):
		return cli.Usagef("--save is missing: expected a file to which the weights from standard input (-) are written")
	case path != "-" && o.save != "":
		return cli.Usagef("--save %s: expected - in place of %s, because it saves standard input", o.save, path)
	}
	client, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	if path == "-" {
		path = o.save
		if err := saveInput(t.env, path); err != nil {
			return err
		}
	}
	source, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	stop := t.follow(ctx, name, o.tenant, nil)
	_, _, err = client.Call(ctx, wire.Request{
		Op: wire.OpPut, Name: name, Tenant: o.tenant, Source: source, SHA256: o.sha256, Public: o.public,
		TimeoutMS: o.timeout.Milliseconds(),
	}, file)
	stop()
	if err != nil {
		return explain(fmt.Errorf("put %s: %w", name, err))
	}
	return nil
}

// saveInput writes standard input to a file. The file appears, or is replaced, when it is complete.
func saveInput(env *cli.Env, path string) error {
	file, err := env.Create(path)
	if err != nil {
		return err
	}
	defer file.Cleanup()
	if _, err := io.Copy(file, env.In); err != nil {
		return fmt.Errorf("copy standard input to %s: %w", path, err)
	}
	return file.Commit()
}

// follow calls the function follow with the status of a model.
func (t *tool) follow(ctx context.Context, name, tenant string, written *atomic.Int64) (end func()) {
	return follow(ctx, t.env, name, written, func(ctx context.Context) (*wire.Status, error) {
		a, err := t.call(ctx, "stat", wire.Request{Op: wire.OpStat, Name: name, Tenant: tenant})
		return a.Model, err
	})
}

// follow shows how much of a model is loaded until end is called: as a bar on a terminal, otherwise as a
// line every 30 s, and not at all with --quiet. Once the model is on the GPU, it shows how many bytes were
// written, unless written is nil. status returns the status of the model.
func follow(ctx context.Context, env *cli.Env, name string, written *atomic.Int64,
	status func(context.Context) (*wire.Status, error)) (end func()) {
	if env.Quiet {
		return func() {}
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
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
			m, err := status(ctx)
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
