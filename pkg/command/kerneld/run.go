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
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/kernel"
	"github.com/gfaas/gfaas/pkg/kgraph"
)

type runOptions struct {
	env     *cli.Env
	socket  *string
	client  string
	in, out []string
	repeat  int
	async   bool
}

func newRun(env *cli.Env, socket *string) *cobra.Command {
	o := &runOptions{env: env, socket: socket}
	cmd := &cobra.Command{
		Use:   "run REQUEST.json|-",
		Short: "Run a request",
		Long: `Run a request and print the answer. A request is a JSON file that lists GPU kernels and
their buffers (docs/kernels.md). If a module in the request has a "file", this command reads
that file (PTX, a cubin or a fatbin) and sends its contents to the daemon. A relative path
is relative to the folder of the request, or to the current folder if the request comes from
standard input.

An object is data that the daemon stores for a client under a key, as input or output of
requests. --in stores a file as an object before the request runs, and --out writes an
object to a file afterwards. The file - is standard input or output; with --out KEY=-, the
command prints this object instead of the answer. --repeat runs the request several times,
one after the other, and prints the answers as a list.

With --async, the command does not wait for the answer. It prints {"id","client","state",
"results":{NAME:KEY}}: for each output of the request with "result":true, the key under which
other requests, gfaas-kerneld get and gfaas-kerneld rm can refer to it. A request can use the
key before the result exists; it then runs after the run that produces the result. See also
gfaas-kerneld-wait(1), gfaas-kerneld-runs(1) and gfaas-kerneld-cancel(1).

Answer: {"id","client","gpu","iterations","queue_ms","gpu_ms","total_ms",
"phases":{"queue_ms","link_ms","copy_in_ms","run_ms","copy_out_ms"},
"outputs":{NAME:{"key","size","data"}},"cache":{"gpu_hits","host_hits","misses",
"bytes_up","evicted","modules_linked"}}. gpu_ms is the time for which the kernels ran on
the GPU. total_ms is the time from the request's arrival to its end, and queue_ms is its part
before the request started. data has the bytes of outputs with "inline", in base64.
"phases" has the time of each phase: waiting in the queue; loading and linking modules;
evicting, allocating, clearing and copying to the GPU; the kernels; copying results to the
host. With -o table, the command prints only the phases and the total, one line per answer.

The counters in cache belong to this request. Each object that the request reads counts once:
in gpu_hits if an earlier request had read the object and it was still on the GPU, in misses if
it had to be copied from another GPU, and in host_hits otherwise. The other counters:

  bytes_up        bytes that were copied from the host to the GPU
  evicted         objects and buffers that were evicted from the GPU to make room
  modules_linked  modules that had to be linked before the kernels ran`,
		Example: `  # run a request whose objects are stored
  gfaas-kerneld run request.json
  # store an input before, and fetch an output afterwards
  gfaas-kerneld run request.json --in vec/x=x.bin --out vec/y=y.bin
  # submit a request, and print its answer later
  gfaas-kerneld run --async request.json
  gfaas-kerneld wait r-1-K7QXWN4P
  # run a request that another command writes
  gfaas-kerneld import list ops.json | gfaas-kerneld run -`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	clientFlag(cmd, &o.client)
	f := cmd.Flags()
	f.StringArrayVar(&o.in, "in", nil, "store FILE as the object KEY before the request runs, as `KEY=FILE`")
	f.StringArrayVar(&o.out, "out", nil, "write the object KEY to FILE after the request, as `KEY=FILE`")
	f.IntVar(&o.repeat, "repeat", 1, "number of times to run the request")
	f.BoolVar(&o.async, "async", false, "submit the request without waiting for its answer")
	env.Outputs(cmd, "json", "yaml", "table")
	return cmd
}

// transfer is an object and the file from which, or to which, it is copied.
type transfer struct{ key, file string }

func transfers(flag string, list []string) (parsed []transfer, err error) {
	std := 0
	for _, text := range list {
		key, file, ok := strings.Cut(text, "=")
		if !ok || file == "" || !kgraph.ValidKey(key) {
			return nil, cli.Usagef("--%s %s: expected KEY=FILE", flag, text)
		}
		if file == "-" {
			if std++; std > 1 {
				return nil, cli.Usagef("--%s %s: - is given twice", flag, text)
			}
		}
		parsed = append(parsed, transfer{key, file})
	}
	return parsed, nil
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
	silent := slices.ContainsFunc(out, func(t transfer) bool { return t.file == "-" })
	for _, t := range in {
		if t.file == "-" && path == "-" {
			return cli.Usagef("--in %s=-: the request comes from standard input, expected a file", t.key)
		}
	}
	if o.repeat < 1 {
		return cli.Usagef("--repeat %d: expected 1 or more", o.repeat)
	}
	if o.async && (len(out) > 0 || o.env.Output == "table") {
		return cli.Usagef("--async does not wait for the answer: expected neither --out nor -o table")
	}
	r, err := readRequest(o.env, path)
	if err != nil {
		return err
	}
	c, err := dial(*o.socket, o.client)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := o.store(ctx, c, r, in); err != nil {
		return err
	}
	answers := []json.RawMessage{}
	for range o.repeat {
		var answer json.RawMessage
		run := c.Run
		if o.async {
			run = c.Submit
		}
		if err := run(ctx, r.text, &answer); err != nil {
			return explained(err)
		}
		answers = append(answers, answer)
	}
	for _, t := range out {
		if err := getObject(ctx, o.env, c, t.key, t.file); err != nil {
			return err
		}
	}
	rows := func() [][]string { return phaseRows(answers) }
	switch {
	case silent:
		return nil
	case o.repeat == 1:
		return o.env.Show(answers[0], rows)
	}
	return o.env.Show(answers, rows)
}

// phaseRows returns a table of the phases of each answer, in milliseconds.
func phaseRows(answers []json.RawMessage) [][]string {
	rows := [][]string{{"ID", "GPU", "QUEUE MS", "LINK MS", "COPY IN MS", "RUN MS", "COPY OUT MS", "TOTAL MS"}}
	for _, text := range answers {
		var a kernel.Answer
		if json.Unmarshal(text, &a) != nil {
			continue // an answer of another version of the daemon
		}
		row := []string{a.ID, strconv.Itoa(a.GPU)}
		for _, v := range []float64{a.Phases.QueueMS, a.Phases.LinkMS, a.Phases.CopyInMS, a.Phases.RunMS, a.Phases.CopyOutMS, a.TotalMS} {
			row = append(row, strconv.FormatFloat(v, 'f', 3, 64))
		}
		rows = append(rows, row)
	}
	return rows
}

// store stores the files of --in as objects. It stores nothing unless all of them fit the request.
func (o *runOptions) store(ctx context.Context, c *kerneld.Client, r *request, in []transfer) error {
	if len(in) == 0 {
		return nil
	}
	graph, problems := kgraph.Parse(r.text)
	if len(problems) > 0 {
		return r.faults(problems)
	}
	type content struct {
		from *os.File
		size int64
	}
	var contents []content // of the files in the order of in
	keys := map[string]bool{}
	for _, b := range graph.Buffers {
		keys[b.Key] = true
	}
	for _, t := range in {
		if !keys[t.key] {
			return fmt.Errorf("--in %s=%s: no buffer of %s has that key", t.key, t.file, r.name)
		}
		from, size, err := open(ctx, o.env, c, t.file)
		if err != nil {
			return fmt.Errorf("%s: %w", t.key, err)
		}
		defer from.Close()
		contents = append(contents, content{from, size})
		for i := range graph.Buffers {
			b := &graph.Buffers[i]
			switch {
			case !b.Reads() || b.Key != t.key:
			case b.Size != 0 && b.Size != size:
				problems = append(problems, &kgraph.Problem{Code: kgraph.BadRequest, Where: "/buffers/" + kgraph.Pointer(b.Name) + "/size",
					Message: fmt.Sprintf("%d bytes, but %s has %d", b.Size, t.file, size)})
			default:
				b.Size = size
			}
		}
	}
	if problems = append(problems, graph.Check(kgraph.World{})...); len(problems) > 0 {
		return r.faults(problems)
	}
	for i, t := range in {
		if err := c.Put(ctx, t.key, contents[i].from, contents[i].size); err != nil {
			return fmt.Errorf("%s: %w", t.key, err)
		}
	}
	return nil
}

// request is a request read from a file.
type request struct {
	name   string // of the file, for messages
	source []byte // contents of the file
	text   []byte // source, with the text of modules that are in files
}

func (r *request) faults(problems []*kgraph.Problem) error { return faults(r.name, r.source, problems) }

// readRequest reads a request and replaces references to module files by the text of the files.
func readRequest(env *cli.Env, path string) (*request, error) {
	r, err := cli.Load(env, path, func(from io.Reader, name string) (*request, error) {
		text, err := io.ReadAll(io.LimitReader(from, kgraph.MaxRequest+1))
		return &request{name: name, source: text, text: text}, err
	})
	if err != nil || !bytes.Contains(r.text, []byte(`"file"`)) {
		return r, err
	}
	graph, problems := kgraph.Parse(r.source)
	if len(problems) > 0 {
		return nil, r.faults(problems)
	}
	for i := range graph.Modules {
		m := &graph.Modules[i]
		if err := readModule(m, path); err != nil {
			return nil, fmt.Errorf("module %s: %w", m.Name, err)
		}
	}
	r.text, err = graph.Encode()
	return r, err
}

// readModule reads a module's file, whose path is relative to the folder of the request.
func readModule(m *kgraph.Module, request string) error {
	if m.File == "" {
		return nil
	}
	path := m.File
	if !filepath.IsAbs(path) && request != "-" {
		path = filepath.Join(filepath.Dir(request), path)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	code, err := io.ReadAll(io.LimitReader(f, kgraph.MaxRequest+1))
	if err != nil {
		return err
	}
	text := string(code)
	if kgraph.IsBinary(text) {
		if err := m.SetBinary(text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
	if _, isPTX := kgraph.ReadPTX(text); !isPTX || strings.Contains(text, "\x00") || len(text) > kgraph.MaxRequest {
		return fmt.Errorf("%s is not PTX text, nor a cubin or fatbin", path)
	}
	m.PTX, m.File = text, ""
	return nil
}

// explained maps an error of the daemon to the command's exit status.
func explained(err error) error {
	var no *kerneld.Error
	if errors.As(err, &no) && no.Status == http.StatusGatewayTimeout {
		return cli.Fail(cli.ExitTimeout, "", err)
	}
	return err
}
