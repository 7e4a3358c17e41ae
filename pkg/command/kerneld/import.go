package kerneld

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/lower"
)

func newImport(env *cli.Env, socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Make requests of other tools' graphs",
	}
	cmd.AddCommand(newImportList(env), newImportTVM(env, socket))
	return cmd
}

// emit writes a request. What cannot be lowered is an answer that is no.
func emit(env *cli.Env, r *kgraph.Request, err error) error {
	var not *lower.UnsupportedError
	if errors.As(err, &not) {
		return cli.Fail(cli.ExitNo, "", err)
	}
	if err != nil {
		return err
	}
	text, err := r.Encode()
	if err != nil {
		return err
	}
	return env.Write(append(text, '\n'))
}

func newImportList(env *cli.Env) *cobra.Command {
	prefix := ""
	cmd := &cobra.Command{
		Use:   "list OPS.json|-",
		Short: "Lower a list of operations to the built-in kernels",
		Long: `Writes a request that does what a list of operations says, by built-in kernels:

  {"version":1,"tensors":{NAME:{"shape":[M,K],"dtype":"f32","key":KEY}},
   "inputs":[NAME],"outputs":[NAME],
   "nodes":[{"op":"MatMul","inputs":[NAME,NAME],"output":NAME}]}

MatMul is of two matrices; Add of two tensors of one shape, or of a tensor and one
of its rows' length. Operations are in the order in which they run. Tensors that
none makes are objects, and so are the outputs: under their key or, without one,
--prefix and their name. Other operations end it with exit 3, all named.`,
		Example:           `  gfaas-kerneld import list perceptron.json --prefix mlp/ | gfaas-kerneld run -`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("json"),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := cli.Load(env, args[0], func(r io.Reader, name string) (*kgraph.Request, error) { return lower.List(r, name, prefix) })
			return emit(env, r, err)
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "before the names of tensors that say no key")
	return cmd
}

type tvmOptions struct{ launch, module, params, prefix, client string }

func newImportTVM(env *cli.Env, socket *string) *cobra.Command {
	var o tvmOptions
	cmd := &cobra.Command{
		Use:   "tvm GRAPH.json",
		Short: "Make a request of a graph of TVM's",
		Long: `Writes a request that does what a graph of TVM's graph executor says, by the
kernels in --module. The graph does not say how kernels are launched; --launch
does, for each function:

  {"fused_dense":[{"name":"fused_dense_kernel0","grid":[1,1,1],"block":[64,1,1],
                   "args":[{"input":0},{"input":1},{"output":0},{"i32":64}]}]}

The graph's arguments become inputs under --prefix and their names, its heads
outputs likewise; what shares a storage id shares a temporary buffer. --params
stores the parameters of a file as objects, for which the daemon has to run.

Nothing is guessed. If a request cannot express the graph, the exit status is 3, and the
error lists all reasons: functions that --launch does not name, outputs that no kernel of
theirs has as an argument, two outputs in the same memory, results in an input's memory,
and memory of several device types or of a scope other than global. The exit status is 1,
with the line, for a null node that is not in arg_nodes, a type of unknown size, and files
that contradict themselves or each other.`,
		Example:           `  gfaas-kerneld import tvm graph.json --launch launch.json --module k.ptx --params m.params --prefix m/ --out-file request.json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), env, *socket, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.launch, "launch", "", "how the functions' kernels are launched (JSON)")
	f.StringVar(&o.module, "module", "", "PTX of the kernels; the request names it as a file")
	f.StringVar(&o.params, "params", "", "store this file's parameters as objects")
	f.StringVar(&o.prefix, "prefix", "", "before the keys of objects, like model/")
	clientFlag(cmd, &o.client)
	cli.Files(cmd, "json", "launch")
	cli.Files(cmd, "ptx", "module")
	cli.Files(cmd, "params", "params")
	return cmd
}

func (o *tvmOptions) run(ctx context.Context, env *cli.Env, socket, graph string) error {
	if o.launch == "" || o.module == "" {
		return cli.Usagef("--launch and --module are needed: the graph says neither how its kernels are launched nor what they are")
	}
	launch, err := cli.Load(env, o.launch, func(r io.Reader, _ string) ([]byte, error) { return io.ReadAll(io.LimitReader(r, lower.MaxFile+1)) })
	if err != nil {
		return err
	}
	module, err := filepath.Abs(o.module)
	if err != nil {
		return err
	}
	r, err := cli.Load(env, graph, func(r io.Reader, name string) (*kgraph.Request, error) {
		return lower.TVM(r, bytes.NewReader(launch), name, o.launch, module, o.prefix)
	})
	if err == nil && o.params != "" {
		err = o.put(ctx, env, socket, r)
	}
	return emit(env, r, err)
}

// put stores the parameters as objects, all of them or, if one cannot be what the
// request reads, none.
func (o *tvmOptions) put(ctx context.Context, env *cli.Env, socket string, request *kgraph.Request) error {
	params, err := cli.Load(env, o.params, func(r io.Reader, _ string) ([]lower.Param, error) { return lower.Params(r) })
	if err != nil {
		return fmt.Errorf("%s: %w", o.params, err)
	}
	if err := lower.CheckParams(params, request, o.prefix); err != nil {
		return fmt.Errorf("%s: %w", o.params, err)
	}
	c, err := dial(socket, o.client)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, p := range params {
		key := o.prefix + p.Name
		if err := c.Put(ctx, key, bytes.NewReader(p.Data), int64(len(p.Data))); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}
