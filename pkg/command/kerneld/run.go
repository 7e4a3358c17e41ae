package kerneld

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/kgraph"
)

type runOptions struct {
	env     *cli.Env
	socket  *string
	client  string
	in, out []string
	repeat  int
}

func newRun(env *cli.Env, socket *string) *cobra.Command {
	o := &runOptions{env: env, socket: socket}
	cmd := &cobra.Command{
		Use:   "run REQUEST.json|-",
		Short: "Run a request",
		Long: `Runs a request and prints the answer. A module's "file" is read here, from beside
the request, and its text sent.

--in stores a file as an object before, --out writes an object to a file
afterwards; - is standard input or output, and with --out KEY=- nothing else is
printed. With --repeat the request runs so many times, one after the other, and
the answers are printed as a list.

Answer: {"id","client","gpu","iterations","queue_ms","gpu_ms","total_ms",
"outputs":{NAME:{"key","size","data"}},"cache":{"gpu_hits","host_hits","misses",
"bytes_up","evicted","modules_linked"}}: gpu_ms is the time of the kernels on the
GPU, total_ms from the request's coming to its end, queue_ms the part of it before
the request began; data is base64, of outputs with "inline".`,
		Example: `  gfaas-kerneld run request.json
  gfaas-kerneld run request.json --in vec/x=x.bin --out vec/y=y.bin
  gfaas-kerneld import list ops.json | gfaas-kerneld run -`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	clientFlag(cmd, &o.client)
	f := cmd.Flags()
	f.StringArrayVar(&o.in, "in", nil, "object to store before: `KEY=FILE`")
	f.StringArrayVar(&o.out, "out", nil, "write an object afterwards: `KEY=FILE`")
	f.IntVar(&o.repeat, "repeat", 1, "how often to run it")
	env.Outputs(cmd, "json", "yaml")
	return cmd
}

// transfer is an object and the file that it comes from or goes to.
type transfer struct{ key, file string }

func transfers(flag string, list []string) (out []transfer, err error) {
	std := 0
	for _, text := range list {
		key, file, ok := strings.Cut(text, "=")
		if !ok || file == "" || !kgraph.ValidKey(key) {
			return nil, cli.Usagef("--%s %s: expected KEY=FILE", flag, text)
		}
		if file == "-" {
			if std++; std > 1 {
				return nil, cli.Usagef("--%s %s: - is there twice", flag, text)
			}
		}
		out = append(out, transfer{key, file})
	}
	return out, nil
}

func (o *runOptions) run(ctx context.Context, path string) error {
	in, err := transfers("in", o.in)
	if err != nil {
		return err
	}
	out, err := transfers("out", o.out)
	if err != nil {
		return err
	}
	silent := false
	for _, t := range out {
		silent = silent || t.file == "-"
	}
	for _, t := range in {
		if t.file == "-" && path == "-" {
			return cli.Usagef("--in %s=-: the request comes from standard input, expected a file", t.key)
		}
	}
	if o.repeat < 1 {
		return cli.Usagef("--repeat %d: expected 1 or more", o.repeat)
	}
	request, err := o.request(path)
	if err != nil {
		return err
	}
	c, err := dial(*o.socket, o.client)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, t := range in {
		if err := put(ctx, o.env, c, t.key, t.file); err != nil {
			return err
		}
	}
	answers := []json.RawMessage{}
	for range o.repeat {
		var answer json.RawMessage
		if err := c.Run(ctx, request, &answer); err != nil {
			return explained(err)
		}
		answers = append(answers, answer)
	}
	for _, t := range out {
		if err := get(ctx, o.env, c, t.key, t.file); err != nil {
			return err
		}
	}
	switch {
	case silent:
		return nil
	case o.repeat == 1:
		return o.env.Show(answers[0], nil)
	}
	return o.env.Show(answers, nil)
}

// request reads a request; files of modules become their text.
func (o *runOptions) request(path string) ([]byte, error) {
	text, err := cli.Load(o.env, path, func(r io.Reader, _ string) ([]byte, error) {
		return io.ReadAll(io.LimitReader(r, kgraph.MaxRequest+1))
	})
	if err != nil || !bytes.Contains(text, []byte(`"file"`)) {
		return text, err
	}
	r, problems := kgraph.Parse(text)
	if len(problems) > 0 {
		return nil, faults(path, text, problems)
	}
	dir := ""
	if path != "-" {
		dir = filepath.Dir(path)
	}
	for i := range r.Modules {
		m := &r.Modules[i]
		if m.File == "" {
			continue
		}
		file := m.File
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		code, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", m.Name, err)
		}
		m.PTX, m.File = string(code), ""
		if s, isPTX := kgraph.ReadPTX(m.PTX); !isPTX || s == nil || !validText(code) {
			return nil, fmt.Errorf("module %s: %s is no PTX text", m.Name, file)
		}
	}
	return r.Encode()
}

// validText says whether code can be sent as text.
func validText(code []byte) bool {
	return bytes.IndexByte(code, 0) < 0 && len(code) <= kgraph.MaxRequest
}

// explained gives the daemon's refusals their exit status.
func explained(err error) error {
	var no *kerneld.Error
	if errors.As(err, &no) && no.Status == http.StatusGatewayTimeout {
		return cli.Fail(cli.ExitTimeout, "", err)
	}
	return err
}
