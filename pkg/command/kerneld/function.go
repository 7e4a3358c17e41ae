package kerneld

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/kgraph"
)

type functionOptions struct {
	env    *cli.Env
	socket *string
	client string // name of the client as which it connects to the daemon
}

func newFunction(env *cli.Env, socket *string) *cobra.Command {
	o := &functionOptions{env: env, socket: socket}
	cmd := &cobra.Command{
		Use:   "function REQUEST.json",
		Short: "Serve a request as a function on $PORT",
		Long: `Serve a request as a function on 127.0.0.1:$PORT. A request is a JSON file that lists GPU
kernels and their buffers (docs/kernels.md). gfaas starts this command for functions of the
kind kernels, so that gfaas invoke, gfaas serve and gfaas-profile can treat them like any
other function.

GET /healthz reports whether the kernel daemon answers. POST / runs the request and returns
the daemon's answer. A call without a body runs the request as it is. A body
{"inputs":{NAME:"BASE64"}} provides the bytes of input buffers, at most 1 MiB each. They
replace the objects or bytes that the request names for these buffers.`,
		Example: `  # serve a request, and call it
  PORT=8080 gfaas-kerneld function request.json
  curl -d '' http://127.0.0.1:8080/`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	clientFlag(cmd, &o.client)
	return cmd
}

func (o *functionOptions) run(ctx context.Context, path string) error {
	// Declares that run has resources to clean up: after a signal, the process waits until run returns.
	o.env.CleansUp()
	port := os.Getenv("PORT")
	if port == "" {
		return cli.Usagef("$PORT is not set: expected the port to listen on")
	}
	r, err := readRequest(o.env, path)
	if err != nil {
		return err
	}
	graph, problems := kgraph.Parse(r.text)
	if len(problems) == 0 {
		problems = graph.Check(kgraph.World{}) // only what needs no daemon: not objects, nor limits of the device
	}
	for i := 0; len(problems) == 0 && i < len(graph.Buffers); i++ {
		if b := &graph.Buffers[i]; b.Result {
			problems = []*kgraph.Problem{{Code: kgraph.BadRequest, Where: "/buffers/" + kgraph.Pointer(b.Name) + "/result", Message: "result, but a function waits for the answer: expected inline or a key"}}
		}
	}
	if len(problems) > 0 {
		return r.faults(problems)
	}
	client, err := dial(*o.socket, o.client)
	if err != nil {
		return err
	}
	defer client.Close()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: kerneld.NewFunction(client, r.text), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() {
		limited, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close()
		}
	})
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
