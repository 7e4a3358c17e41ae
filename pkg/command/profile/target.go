package profile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/loadtest"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
	"github.com/gfaas/gfaas/pkg/number"
)

// openTarget is a target that is ready for load.
type openTarget struct {
	name  string // shown to the user
	send  load.Sender
	close func() // closes its connections
}

// setObjective sets the objective to --slo or, without it, to the target's own, which may be 0 for none. It
// returns a usage error if a condition of --fail-if needs an objective and there is none.
func (o *loadOptions) setObjective(name string, own time.Duration) error {
	o.slo = cmp.Or(o.slo, own)
	for _, g := range o.criteria.Gates {
		if g.UsesSLO() && o.slo == 0 {
			return cli.Usagef("--fail-if %q: %s has no slo: expected --slo", g, name)
		}
	}
	return nil
}

// openTarget returns the target of the command's argument.
func (o *loadOptions) openTarget(ctx context.Context) (openTarget, error) {
	if strings.Contains(o.target, "://") {
		return o.url(ctx)
	}
	return o.function(ctx)
}

// completeTarget completes the argument with the names of applied functions.
func completeTarget(cmd *cobra.Command, args []string, _ string) (names []string, directive cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	state, err := bolt.Open(cli.StatePath(), nil).List(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return lists.Map(state.Functions, func(fn function.Function) string { return fn.Name }), cobra.ShellCompDirectiveNoFileComp
}

// url returns a URL as the target.
func (o *loadOptions) url(ctx context.Context) (to openTarget, err error) {
	u, err := url.Parse(o.target)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return to, cli.Usagef("expected a URL like http://127.0.0.1:8080/path, or the name of a function")
	}
	name := u.Redacted()
	if err := o.setObjective(name, 0); err != nil {
		return to, err
	}
	if err := loadtest.CheckListens(ctx, loadtest.Address(u)); err != nil {
		return to, cli.Fail(cli.ExitUnavailable, "", err)
	}
	send, done := loadtest.ToURL(u, loadtest.Request{Method: o.method, Header: o.header, Body: o.body})
	return openTarget{name: name, send: send, close: done}, nil
}

// function returns an applied function as the target: its gateway if one runs, and its ready instances
// otherwise.
func (o *loadOptions) function(ctx context.Context) (to openTarget, err error) {
	name := o.target
	if err := function.CheckName(name); err != nil {
		return to, cli.Usagef("%w; or expected a URL that begins with http:// or https://", err)
	}
	state, err := bolt.Open(cli.StatePath(), o.env.Notef).List(ctx)
	if err != nil {
		return to, err
	}
	fn, err := state.Function(name)
	if err != nil {
		return to, err
	}
	if err := o.setObjective(name, fn.SLO); err != nil {
		return to, err
	}
	to.name = name
	client := fnhttp.NewClient()
	ready, noInstance := o.ready(ctx, state)
	if len(o.body) == 0 && o.method == http.MethodPost {
		limited, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		if o.body, err = defaultBody(limited, client, fn, ready); err != nil {
			return to, err
		}
	}
	if through := gateway.Dial(cli.RunDir()); through.Answers(ctx) {
		o.env.Debugf("sending requests through the gateway")
		to.close = through.Close
		to.send = func(ctx context.Context) error {
			answer, err := through.Send(ctx, o.method, "/function/"+name, o.header, bytes.NewReader(o.body))
			if err != nil {
				return err
			}
			return loadtest.ReadAnswer(answer)
		}
		return to, nil
	}
	if noInstance != nil {
		return to, noInstance
	}
	o.env.Debugf("sending requests to %s", number.Count(len(ready), "instance"))
	to.close = client.Close
	to.send = loadtest.ToInstances(client, ready, loadtest.Request{Method: o.method, Header: o.header, Body: o.body}, o.load.Seed)
	return to, nil
}

// ready returns the instances of the function that accept connections, or an error if there are none.
func (o *loadOptions) ready(ctx context.Context, state ports.Listing) (candidates []launch.Candidate, err error) {
	listed, err := host.Ready(state, o.target)
	if err != nil {
		return nil, err
	}
	launcher := host.Launcher(o.env, cli.RunDir(), 0)
	defer launcher.Close()
	for _, c := range listed {
		// If the instance has ended, another process may listen on its port.
		current, e := launcher.State(ctx, c.Record.Handle)
		if e == nil && !current.Running {
			e = errors.New(current.Detail)
		} else {
			e = loadtest.CheckListens(ctx, c.Record.Handle.Address)
		}
		if e != nil {
			err = fmt.Errorf("instance %s: %w", c.Record.ID, e)
			continue
		}
		candidates = append(candidates, c)
	}
	if len(candidates) == 0 {
		return nil, cli.Fail(cli.ExitUnavailable, launch.RestartHint, err)
	}
	return candidates, nil
}

// defaultBody returns a default body for the function. Under the contracts kserve-v2 and openai, it needs a
// ready instance, which describes its models.
func defaultBody(ctx context.Context, client *fnhttp.Client, fn function.Function, ready []launch.Candidate) ([]byte, error) {
	if len(ready) > 0 {
		return bodyFor(ctx, client, ready[0].Record, nil)
	}
	if fn.Contract == fnhttp.KServeV2 || fn.Contract == fnhttp.OpenAI {
		return nil, &testbed.BodyError{Err: fmt.Errorf("--body is missing: the default body under the contract %s depends on a ready instance, and there is none", fn.Contract)}
	}
	return nil, nil
}
