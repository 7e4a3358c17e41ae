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
		Short: "Convert graphs of other tools to requests",
	}
	cmd.AddCommand(newImportList(env), newImportONNX(env, socket), newImportTVM(env, socket))
	cli.Meaning(cmd, cli.ExitNo, "the input uses features that a request cannot express")
	return cmd
}

// emit prints a request. If the graph cannot be lowered, the command exits with ExitNo.
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
		Short: "Convert a list of operations to a request",
		Long: `Convert a list of operations on tensors to a request, which performs them with the
built-in kernels of gfaas-kerneld (docs/kernels.md describes requests). The list has
this form:

    {"version":1,"tensors":{NAME:{"shape":[M,K],"dtype":"f32","key":KEY}},
     "inputs":[NAME],"outputs":[NAME],
     "nodes":[{"op":"MatMul","inputs":[NAME,NAME],"output":NAME}]}

"nodes" lists the operations in the order in which they run. There are four of them:

  - MatMul multiplies two matrices
  - Add adds two tensors of the same shape, or a vector to each row of a tensor
  - Relu replaces the negative elements of a tensor by zeros
  - Reshape gives the elements of a tensor another shape

If the list contains other operations, or shapes that these do not support, the error
names all of them, and the exit status is 3.

The request reads each tensor that no operation produces, such as an input or a weight,
from an object of the daemon. It writes each tensor in "outputs" to an object. The key
of an object is the "key" of its tensor or, if that is missing, --prefix followed by the
name of the tensor. The type of all elements is f32.`,
		Example: `  # convert and run; the inputs and weights must be stored as objects mlp/NAME
  gfaas-kerneld import list perceptron.json --prefix mlp/ | gfaas-kerneld run -`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := cli.Load(env, args[0], func(r io.Reader, name string) (*kgraph.Request, error) { return lower.List(r, name, prefix) })
			return emit(env, r, err)
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "prefix of the keys of tensors that have no key")
	return cmd
}

type tvmOptions struct{ launch, module, params, prefix, client string }

func newImportTVM(env *cli.Env, socket *string) *cobra.Command {
	var o tvmOptions
	cmd := &cobra.Command{
		Use:   "tvm GRAPH.json",
		Short: "Convert a graph of TVM to a request",
		Long: `Convert a graph of TVM's graph executor to a request (docs/kernels.md) that runs the
kernels in --module. The graph does not contain the launch parameters of the kernels.
--launch is a file with these parameters, for each function of the graph:

    {"fused_dense":[{"name":"fused_dense_kernel0","grid":[1,1,1],"block":[64,1,1],
                     "args":[{"input":0},{"input":1},{"output":0},{"i32":64}]}]}

The graph's arguments become inputs and its heads become outputs; their keys are --prefix
followed by their names. Entries with the same storage id share a temporary buffer.
--params stores the parameters in a file as objects of the daemon, which must be running.

If a request cannot express the graph, the exit status is 3, and the error lists all
reasons:

  - a function that --launch does not name
  - an output that no kernel of its function has as an argument
  - two outputs in the same memory, or a result in the memory of an input
  - memory of several device types, or of a scope other than global

The exit status is 1, and the error contains the line, for a null node that is not in
arg_nodes, a type of unknown size, and contradictions within a file or between files.`,
		Example: `  # write request.json, and store the parameters as m/NAME
  gfaas-kerneld import tvm graph.json --launch launch.json --module k.ptx --params m.params --prefix m/ --out-file request.json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), env, *socket, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.launch, "launch", "", "launch parameters of the functions' kernels (JSON)")
	f.StringVar(&o.module, "module", "", "PTX file with the kernels, to which the request refers")
	f.StringVar(&o.params, "params", "", "file with parameters to store as objects")
	f.StringVar(&o.prefix, "prefix", "", "prefix of the keys of objects, like model/")
	clientFlag(cmd, &o.client)
	cli.CompleteFiles(cmd, "json", "launch")
	cli.CompleteFiles(cmd, "ptx", "module")
	cli.CompleteFiles(cmd, "params", "params")
	return cmd
}

func (o *tvmOptions) run(ctx context.Context, env *cli.Env, socket, graph string) error {
	if o.launch == "" || o.module == "" {
		return cli.Usagef("--launch and --module are required: the graph contains neither the kernels nor their launch parameters")
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
		err = o.storeParams(ctx, env, socket, r)
	}
	return emit(env, r, err)
}

// storeParams stores the parameters as objects. It stores none if one of them does not fit the request.
func (o *tvmOptions) storeParams(ctx context.Context, env *cli.Env, socket string, request *kgraph.Request) error {
	params, err := cli.Load(env, o.params, func(r io.Reader, _ string) ([]lower.Param, error) { return lower.Params(r) })
	if err != nil {
		return fmt.Errorf("%s: %w", o.params, err)
	}
	if err := lower.CheckParams(params, request, o.prefix); err != nil {
		return fmt.Errorf("%s: %w", o.params, err)
	}
	return storeParams(ctx, socket, o.client, o.prefix, params)
}

// storeParams stores parameters as objects of a client.
func storeParams(ctx context.Context, socket, client, prefix string, params []lower.Param) error {
	c, err := dial(socket, client)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, p := range params {
		key := prefix + p.Name
		if err := c.Put(ctx, key, bytes.NewReader(p.Data), int64(len(p.Data))); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}
