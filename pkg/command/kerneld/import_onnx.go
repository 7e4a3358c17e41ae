package kerneld

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/lower"
)

type onnxOptions struct {
	prefix, client string
	dims           []string
	store          bool
}

func newImportONNX(env *cli.Env, socket *string) *cobra.Command {
	var o onnxOptions
	cmd := &cobra.Command{
		Use:   "onnx MODEL.onnx",
		Short: "Convert an ONNX model to a request",
		Long: `Convert an ONNX model to a request (docs/kernels.md) that computes it with built-in kernels.
The model can come from torch.onnx.export. It may consist of these nodes, on 32-bit floats:

  MatMul, Gemm   of matrices. Gemm with alpha and beta of 1, and without transA; with transB,
                 B must be an initializer
  Add            of two tensors of the same shape, or of a tensor and a vector as long as
                 its rows
  Relu, Flatten, Identity, Constant

If the model contains other nodes, the error lists all of them, and the exit status is 3.
The initializers must be in the model, which can have up to 64 MiB.

Inputs, initializers and outputs become objects. The key of an object is --prefix and the
name of the tensor, with underscores in place of characters that keys cannot have. --store
stores the initializers as objects of the daemon, which must be running. A matrix B with
transB is stored transposed. --dim gives the size of a named dimension, such as batch.`,
		Example: `  # convert a model for batches of 4, store its weights, and run it
  gfaas-kerneld import onnx mlp.onnx --dim batch=4 --prefix mlp/ --store --out-file mlp.json
  gfaas-kerneld run mlp.json --in mlp/input=x.bin --out mlp/output=y.bin`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("onnx"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), env, *socket, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.prefix, "prefix", "", "prefix of the keys of objects, like model/")
	f.StringArrayVar(&o.dims, "dim", nil, "size of a named dimension of the inputs, as `NAME=SIZE` (repeatable)")
	f.BoolVar(&o.store, "store", false, "store the initializers as objects")
	clientFlag(cmd, &o.client)
	return cmd
}

func (o *onnxOptions) run(ctx context.Context, env *cli.Env, socket, path string) error {
	dims := map[string]int64{}
	for _, text := range o.dims {
		name, size, _ := strings.Cut(text, "=")
		n, err := strconv.ParseInt(size, 10, 32)
		if name == "" || err != nil || n < 1 {
			return cli.Usagef("--dim %s: expected NAME=SIZE, like batch=4", text)
		}
		dims[name] = n
	}
	if o.prefix != "" && !kgraph.ValidKey(o.prefix) {
		return cli.Usagef("--prefix %s: expected at most %d of A-Z a-z 0-9 . _ / -, the first a letter or a digit", o.prefix, kgraph.MaxName)
	}
	var params []lower.Param
	request, err := cli.Load(env, path, func(r io.Reader, name string) (request *kgraph.Request, err error) {
		if request, params, err = lower.ONNX(r, o.prefix, dims); err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		return request, err
	})
	if err == nil && o.store {
		err = storeParams(ctx, socket, o.client, "", params)
	}
	return emit(env, request, err)
}
