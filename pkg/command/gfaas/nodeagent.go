package gfaas

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/swarm"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/agent"
	"github.com/gfaas/gfaas/pkg/daemon/chassis"
)

// agentOptions holds the flags of gfaas node agent.
type agentOptions struct{ listen, trust, socket string }

func newNodeAgent(t *tool) *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Report the GPUs of this node to the gateway of a swarm",
		Long: `Answer requests of gfaas serve --swarm about this node: the memory of its GPUs as the
drivers report it, the use of the GPUs by instances, and CUDA errors after which a process
cannot use CUDA. The answers come from the token daemon of the node, which needs --trust.

Run the agent as a global service with the label gfaas.agent on the network of the
instances (see the example). The gateway finds its tasks on port ` + strconv.Itoa(swarm.AgentPort) + `.

The agent answers only requests that the gateway has signed with its --grant-key, each
request once and within a minute. It changes nothing. Answers are not encrypted: if other
machines can read the traffic of the overlay network, create the network with --opt
encrypted.`,
		Example: `  # On a manager: run an agent on each node, from the image of the gateway
  docker config create gfaas-grant.pub /etc/gfaas/grant.pub
  docker service create --name gfaas-agent --mode global --no-resolve-image --network gfaas \
    --label gfaas.agent=true --config source=gfaas-grant.pub,target=/etc/gfaas/grant.pub \
    --mount type=bind,source=/run/gfaas,target=/run/gfaas,readonly --cap-drop ALL \
    $(docker image inspect -f '{{.Id}}' gfaas) \
    gfaas node agent --trust /etc/gfaas/grant.pub --socket /run/gfaas/token.sock`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), t) },
	}
	cmd.Flags().StringVar(&o.listen, "listen", ":"+strconv.Itoa(swarm.AgentPort), "TCP address; the gateway expects this port")
	cmd.Flags().StringVar(&o.trust, "trust", "", "`file` of public keys (gfaas grant) of the gateways to answer")
	cmd.Flags().StringVar(&o.socket, "socket", tokend.Socket(t.runDir), "control socket of the token daemon")
	cli.CompleteFiles(cmd, "pub", "trust")
	cli.CompleteFiles(cmd, "sock", "socket")
	return cmd
}

const (
	agentConns    = 64               // limit on open connections
	agentPatience = 10 * time.Second // limit on reading a request and on writing an answer
)

func (o *agentOptions) run(ctx context.Context, t *tool) error {
	if _, err := cli.CheckAddress("--listen", o.listen); err != nil {
		return err
	}
	switch {
	case o.listen == "":
		return cli.Usagef("--listen is empty: expected an address, like :%d", swarm.AgentPort)
	case o.trust == "":
		return cli.Usagef("--trust is missing: gfaas grant public KEY prints the public key of a gateway")
	case o.socket == "":
		return cli.Usagef("--socket is empty: expected a path")
	}
	trust, err := cli.ReadTrust(o.trust)
	if err != nil {
		return err
	}
	t.env.CleansUp()
	log := t.env.Logger(t.env.Err)
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: agent.New(tokend.DialSocket(o.socket), trust), ReadTimeout: agentPatience, WriteTimeout: agentPatience, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	log.Info("serving", "listen", listener.Addr().String(), "socket", o.socket, "trusted_keys", trust.Len())
	if err := server.Serve(chassis.Bounded(server, chassis.Patient(log, listener), agentConns)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	log.Info("stopped")
	return nil
}
