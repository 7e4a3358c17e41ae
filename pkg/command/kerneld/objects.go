package kerneld

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/kernel"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/kgraph"
)

// withClient adds --client to a command, and makes it call do with a connection.
func withClient(cmd *cobra.Command, socket *string, do func(ctx context.Context, c *kerneld.Client, args []string) error) *cobra.Command {
	name := ""
	clientFlag(cmd, &name)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := dial(*socket, name)
		if err != nil {
			return err
		}
		defer c.Close()
		return explained(do(cmd.Context(), c, args))
	}
	return cmd
}

func checkKey(key string) error {
	if !kgraph.ValidKey(key) {
		return cli.Usagef("invalid key %q: expected at most %d of A-Z a-z 0-9 . _ / -, the first a letter or a digit", key, kgraph.MaxName)
	}
	return nil
}

// checkStored returns an error unless key is the key of an object or of a result of an asynchronous run.
func checkStored(key string) error {
	if _, _, isReference := kgraph.Reference(key); isReference {
		return nil
	}
	return checkKey(key)
}

func newPut(env *cli.Env, socket *string) *cobra.Command {
	return withClient(&cobra.Command{
		Use:   "put KEY FILE|-",
		Short: "Store a file as an object",
		Long: `Store a file as an object with the key KEY. An object is data that the daemon stores for a
client (--client), as input or output of its requests. If the client already has an object
with this key, it is replaced. With -, the data is read from standard input.`,
		Example: `  # store the weights that a request reads
  gfaas-kerneld put mlp/W1 W1.bin`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: cli.CompleteFileArgs(""),
	}, socket, func(ctx context.Context, c *kerneld.Client, args []string) error {
		if err := checkKey(args[0]); err != nil {
			return err
		}
		return putObject(ctx, env, c, args[0], args[1])
	})
}

// putObject stores a file as an object.
func putObject(ctx context.Context, env *cli.Env, c *kerneld.Client, key, path string) error {
	from, size, err := open(ctx, env, c, path)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	defer from.Close()
	if err := c.Put(ctx, key, from, size); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// open opens a file to store, and returns its size, which the daemon requires. If it is not a regular
// file, open first copies it to a temporary file, up to the daemon's budget.
func open(ctx context.Context, env *cli.Env, c *kerneld.Client, path string) (from *os.File, size int64, err error) {
	in := env.In
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, 0, err
		}
		info, err := f.Stat()
		switch {
		case err == nil && info.IsDir():
			err = fmt.Errorf("%s is a folder, expected a file", path)
		case err == nil && info.Mode().IsRegular():
			return f, info.Size(), nil
		}
		defer f.Close()
		if err != nil {
			return nil, 0, err
		}
		in = f
	}
	var s kernel.Stats
	if err := c.Stats(ctx, &s); err != nil {
		return nil, 0, err
	}
	f, err := cli.Scratch()
	if err != nil {
		return nil, 0, err
	}
	size, err = io.Copy(f, io.LimitReader(in, s.Host.Budget+1))
	if err == nil && size > s.Host.Budget {
		err = &kerneld.Error{Code: kgraph.TooLarge, Message: fmt.Sprintf("more than %d bytes, the limit for all objects (--host-mem)", s.Host.Budget)}
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, size, nil
}

func newGet(env *cli.Env, socket *string) *cobra.Command {
	return withClient(&cobra.Command{
		Use:   "get KEY [FILE|-]",
		Short: "Write an object to a file",
		Long: `Write the object with the key KEY to the file FILE. If FILE is - or missing, write it to
standard output. An object is data that the daemon stores for a client (--client), as input or output of its
requests. KEY can also be the key of a result of an asynchronous run, like @r-12-K7QXWN4P/y.`,
		Example: `  # print an output of a request as 32-bit floats
  gfaas-kerneld get vec/y | od -t f4`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: cli.CompleteFileArgs(""),
	}, socket, func(ctx context.Context, c *kerneld.Client, args []string) error {
		if err := checkStored(args[0]); err != nil {
			return err
		}
		file := "-"
		if len(args) > 1 {
			file = args[1]
		}
		return getObject(ctx, env, c, args[0], file)
	})
}

// getObject writes an object to a file atomically.
func getObject(ctx context.Context, env *cli.Env, c *kerneld.Client, key, path string) error {
	to, err := env.Create(path)
	if err != nil {
		return err
	}
	defer to.Cleanup()
	if err := c.Get(ctx, key, to); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return to.Commit()
}

func newRm(_ *cli.Env, socket *string) *cobra.Command {
	return withClient(&cobra.Command{
		Use:     "rm KEY",
		Short:   "Delete an object",
		Long:    "Delete the object with the key KEY from the host and from all GPUs. An object is data that\nthe daemon stores for a client (--client), as input or output of its requests. A running\nrequest that reads the object still finishes; the memory is freed after that.",
		Example: "  # free the memory of an object\n  gfaas-kerneld rm vec/x",
		Args:    cobra.ExactArgs(1),
	}, socket, func(ctx context.Context, c *kerneld.Client, args []string) error {
		if err := checkStored(args[0]); err != nil {
			return err
		}
		return c.Remove(ctx, args[0])
	})
}

func newLs(env *cli.Env, socket *string) *cobra.Command {
	cmd := withClient(&cobra.Command{
		Use:   "ls",
		Short: "List a client's objects",
		Long: `List the objects of a client (--client), and where each one is stored. An object is data
that the daemon stores for a client, as input or output of its requests.

JSON: a list of {"key","size","host","gpus","volatile"}. size is in bytes. host is true if
the host memory has a copy of the object. gpus lists the GPUs that have a copy: 0 is the
first GPU of the daemon's --gpu, 1 the second one, and so on. volatile is true if the
object is the output of a request that set "volatile": the daemon copies such an object
from the GPU to the host only when necessary (docs/kernels.md).`,
		Example: `  # list the objects of the client alice
  gfaas-kerneld ls --client alice`,
		Args: cobra.NoArgs,
	}, socket, func(ctx context.Context, c *kerneld.Client, _ []string) error {
		var answer struct{ Objects []kernel.Object }
		if err := c.List(ctx, &answer); err != nil {
			return err
		}
		return env.Show(answer.Objects, func() [][]string {
			rows := [][]string{{"KEY", "SIZE", "HOST", "GPUS"}}
			for _, o := range answer.Objects {
				size := gpu.Bytes(o.Size).String()
				host := "no"
				if o.Host {
					host = "yes"
				}
				var at []string
				for _, g := range o.GPUs {
					at = append(at, strconv.Itoa(g))
				}
				rows = append(rows, []string{o.Key, size, host, strings.Join(at, ",")})
			}
			return rows
		})
	})
	env.Outputs(cmd, "table", "json", "jsonl", "yaml", "csv")
	return cmd
}
