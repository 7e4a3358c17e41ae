package kerneld

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/kgraph"
)

type functionOptions struct {
	env    *cli.Env
	socket *string
	client string
}

func newFunction(env *cli.Env, socket *string) *cobra.Command {
	o := &functionOptions{env: env, socket: socket}
	cmd := &cobra.Command{
		Use:   "function REQUEST.json",
		Short: "Serve a request as a function on $PORT",
		Long: `Serves a request as a function: what gfaas runs for a function of the kind kernels,
so that gfaas invoke, gfaas serve and gfaas-profile treat it like any other. It
listens on 127.0.0.1:$PORT; GET /healthz says whether the kernel daemon answers, and
POST / runs the request and answers what the daemon does.

A call without a body runs the request as it is. A body
{"inputs":{NAME:"BASE64"}} gives bytes for input buffers, at most 1 MiB each, in
place of the objects or bytes that the request names for them.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0]) },
	}
	clientFlag(cmd, &o.client)
	return cmd
}

func (o *functionOptions) run(ctx context.Context, path string) error {
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
		problems = graph.Check(kgraph.World{})
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
	f := &graphFunction{text: r.text, client: client}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", f.health)
	mux.HandleFunc("POST /{$}", f.call)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
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

// graphFunction answers calls by running a request.
type graphFunction struct {
	text   []byte
	client *kerneld.Client
}

func (f *graphFunction) health(w http.ResponseWriter, r *http.Request) {
	var stats json.RawMessage
	if err := f.client.Stats(r.Context(), &stats); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (f *graphFunction) call(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, kgraph.MaxRequest))
	request := f.text
	if err == nil && len(strings.TrimSpace(string(body))) > 0 {
		request, err = f.with(body)
	}
	var answer json.RawMessage
	status := http.StatusBadRequest
	if err == nil {
		status = http.StatusServiceUnavailable // unless the daemon says
		err = f.client.Run(r.Context(), request, &answer)
	}
	w.Header().Set("Content-Type", "application/json")
	if err == nil {
		_, _ = w.Write(append(answer, '\n'))
		return
	}
	no := &kerneld.Error{Code: kgraph.BadRequest, Message: err.Error(), Status: status}
	if status == http.StatusServiceUnavailable {
		no.Code = "unavailable"
	}
	_ = errors.As(err, &no)
	w.WriteHeader(no.Status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"code": no.Code, "message": no.Message, "where": no.Where}})
}

// with is the request with the bytes that a body gives for its inputs.
func (f *graphFunction) with(body []byte) ([]byte, error) {
	var given struct {
		Inputs map[string][]byte `json:"inputs"`
	}
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&given); err != nil {
		return nil, fmt.Errorf("expected {\"inputs\":{NAME:\"BASE64\"}}: %w", err)
	}
	graph, problems := kgraph.Parse(f.text)
	if len(problems) > 0 {
		return nil, problems[0]
	}
	for i := range graph.Buffers {
		b := &graph.Buffers[i]
		data, is := given.Inputs[b.Name]
		if !is {
			continue
		}
		delete(given.Inputs, b.Name)
		switch {
		case b.Kind != kgraph.Input:
			return nil, fmt.Errorf("the buffer %q is no input", b.Name)
		case b.Size > 0 && int64(len(data)) != b.Size:
			return nil, fmt.Errorf("%d bytes for %q, expected %d", len(data), b.Name, b.Size)
		case len(data) == 0 || len(data) > kgraph.MaxInline:
			return nil, fmt.Errorf("%d bytes for %q, expected 1 to %d", len(data), b.Name, kgraph.MaxInline)
		}
		b.Key, b.Data, b.Size = "", data, int64(len(data))
	}
	for name := range given.Inputs {
		return nil, fmt.Errorf("there is no buffer %q", name)
	}
	return graph.Encode()
}
