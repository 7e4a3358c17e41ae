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
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/loadtest"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
)

// reached is a target that can be loaded.
type reached struct {
	name string // for people
	send load.Target
	done func() // closes its connections
}

// keepTo sets the objective: --slo, else the target's own, which is 0 if it has none. It
// fails if a condition of --fail-if needs an objective and there is none.
func (o *loadOptions) keepTo(name string, own time.Duration) error {
	o.slo = cmp.Or(o.slo, own)
	for _, g := range o.criteria.Gates {
		if g.UsesSLO() && o.slo == 0 {
			return cli.Usagef("--fail-if %q: %s has no slo: expected --slo", g, name)
		}
	}
	return nil
}

// reach returns the target that the argument names.
func (o *loadOptions) reach(ctx context.Context) (reached, error) {
	if strings.Contains(o.target, "://") {
		return o.url(ctx)
	}
	return o.function(ctx)
}

// completeTarget returns the names of the applied functions, for the completion of a shell.
func completeTarget(cmd *cobra.Command, args []string, _ string) (names []string, then cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	state, err := bolt.Open(cli.StatePath(), nil).Look(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, fn := range state.Functions {
		names = append(names, fn.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// url returns the target of a URL.
func (o *loadOptions) url(ctx context.Context) (to reached, err error) {
	u, err := url.Parse(o.target)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return to, cli.Usagef("expected a URL like http://127.0.0.1:8080/path, or the name of a function")
	}
	name := u.Redacted()
	if err := o.keepTo(name, 0); err != nil {
		return to, err
	}
	if err := loadtest.CheckListens(ctx, loadtest.Address(u)); err != nil {
		return to, cli.Fail(cli.ExitUnavailable, "", err)
	}
	send, done := loadtest.ToURL(u, loadtest.Request{Method: o.method, Header: o.header, Body: o.body})
	return reached{name: name, send: send, done: done}, nil
}

// function returns the target of an applied function: its gateway if that runs, else its
// ready instances.
func (o *loadOptions) function(ctx context.Context) (to reached, err error) {
	name := o.target
	if err := function.CheckName(name); err != nil {
		return to, cli.Usagef("%w; a URL begins with http:// or https://", err)
	}
	state, err := bolt.Open(cli.StatePath(), o.env.Notef).Look(ctx)
	if err != nil {
		return to, err
	}
	fn, err := state.Function(name)
	if err != nil {
		return to, err
	}
	if err := o.keepTo(name, fn.SLO); err != nil {
		return to, err
	}
	to.name = name
	client := fnhttp.NewClient()
	ready, none := o.ready(ctx, state)
	if len(o.body) == 0 && o.method == http.MethodPost {
		limited, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		if o.body, err = defaultBody(limited, client, fn, ready); err != nil {
			return to, err
		}
	}
	if through := gateway.Dial(cli.RunDir()); through.Answers(ctx) {
		o.env.Debugf("through the gateway")
		to.done = through.Close
		to.send = func(ctx context.Context) error {
			answer, err := through.Send(ctx, o.method, "/function/"+name, o.header, bytes.NewReader(o.body))
			if err != nil {
				return err
			}
			return loadtest.ReadAnswer(answer)
		}
		return to, nil
	}
	if none != nil {
		return to, none
	}
	o.env.Debugf("to %s", cli.Count(len(ready), "instance"))
	to.done = client.Close
	to.send = loadtest.ToInstances(client, ready, loadtest.Request{Method: o.method, Header: o.header, Body: o.body}, o.load.Seed)
	return to, nil
}

// ready returns the instances of the function that accept connections; at least one.
func (o *loadOptions) ready(ctx context.Context, state ports.Listing) (there []launch.Candidate, err error) {
	all, err := host.Ready(state, o.target)
	if err != nil {
		return nil, err
	}
	launcher := host.Launcher(o.env, cli.RunDir(), 0)
	defer launcher.Close()
	for _, c := range all {
		// Another process may listen on the port of an instance that ended.
		now, e := launcher.State(ctx, c.Record.Handle)
		if e == nil && !now.Running {
			e = errors.New(now.Detail)
		} else {
			e = loadtest.CheckListens(ctx, c.Record.Handle.Address)
		}
		if e != nil {
			err = fmt.Errorf("instance %s: %w", c.Record.ID, e)
			continue
		}
		there = append(there, c)
	}
	if len(there) == 0 {
		return nil, cli.Fail(cli.ExitUnavailable, "'gfaas ps' shows what runs; 'gfaas down' and 'gfaas up' start again", err)
	}
	return there, nil
}

// defaultBody returns a default body for the function. Under kserve-v2 and openai it needs
// a ready instance, which describes its models.
func defaultBody(ctx context.Context, client *fnhttp.Client, fn function.Function, ready []launch.Candidate) ([]byte, error) {
	if len(ready) > 0 {
		return bodyFor(ctx, client, ready[0].Record, nil)
	}
	if fn.Contract == fnhttp.KServeV2 || fn.Contract == fnhttp.OpenAI {
		return nil, &testbed.BodyError{Err: fmt.Errorf("no body was given, and under the contract %s none can be made up without an instance", fn.Contract)}
	}
	return nil, nil
}
