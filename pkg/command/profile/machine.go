package profile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/launch"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/wire"
)

// lastLines is how much of an instance's output an error shows.
const lastLines = 10

// realWorld is this machine.
func realWorld(env *cli.Env) world {
	return world{
		defaultGPU: launch.DefaultGPU,
		runDir:     cli.RunDir,
		open: func(ctx context.Context, lanes [][]string, startTimeout time.Duration) ([]machine, error) {
			for _, name := range slices.Concat(lanes...) {
				if err := launch.CheckGPU(name); err != nil {
					return nil, err
				}
			}
			l, err := launch.New(ctx, env, launch.Options{Ready: startTimeout})
			if err != nil {
				return nil, err
			}
			var machines []machine
			for _, gpus := range lanes {
				m := &local{launcher: l, tokens: tokend.Dial(cli.RunDir()), gpus: gpus, id: launch.MeasuredID(gpus[0])}
				// The GPU is locked by this run, so an instance of that name
				// was left by one that was killed.
				if err := l.Stop(ctx, launch.Started{ID: m.id, Registered: []string{m.id}}); err != nil {
					return nil, err
				}
				machines = append(machines, m)
			}
			return machines, nil
		},
	}
}

// local starts instances as gfaas up does.
type local struct {
	launcher *launch.Launcher
	tokens   *tokend.Client
	gpus     []string
	id       string
	busy     bool // an instance was started
}

func (m *local) Start(ctx context.Context, fn function.Function, gpus []string, how start) (subject, error) {
	m.busy = true
	started, err := m.launcher.Start(ctx, fn, launch.Placement{ID: m.id, GPUs: gpus, Slice: how.slice, Oversubscribe: how.parks})
	if err != nil {
		return nil, err
	}
	return &running{machine: m, started: started}, nil
}

func (m *local) Others(ctx context.Context) []string {
	var ids []string
	var known []int
	for _, g := range m.status(ctx).GPUs {
		for _, c := range g.Clients {
			known = append(known, c.PID)
			if slices.Contains(m.gpus, g.GPU) && c.Instance != m.id && c.PID > 0 {
				ids = append(ids, c.Instance)
			}
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if m.busy {
		return ids // who is a stranger cannot be told from who is the instance's
	}
	return append(ids, m.strangers(known)...)
}

// status is what the token daemon knows; nothing when it does not answer, for
// what is asked of it here must not end a measurement.
func (m *local) status(ctx context.Context) wire.Status {
	s, err := m.tokens.Status(ctx)
	if err != nil {
		return wire.Status{}
	}
	return s
}

// running is an instance on this machine.
type running struct {
	machine *local
	started launch.Started
}

func (r *running) Target(ctx context.Context, q request) (load.Target, error) {
	address, contract, fn := r.started.Handle.Address, r.started.Contract, r.started.Function
	body := q.body
	if len(body) == 0 {
		var err error
		if body, err = fnhttp.DefaultBody(ctx, address, contract, fn); err != nil {
			return nil, &bodyError{fmt.Errorf("no body was given, and under the contract %s none can be made up: %w", contract, err)}
		}
	}
	header, body, err := fnhttp.Batched(contract, body, q.batch)
	if err != nil {
		return nil, &bodyError{err}
	}
	return func(ctx context.Context) error {
		answer, err := fnhttp.Invoke(ctx, address, contract, fn, fnhttp.Request{Header: header, Body: bytes.NewReader(body)})
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode/100 != 2 {
			text, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
			return fmt.Errorf("status %s: %s", answer.Status, strings.TrimSpace(string(text)))
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}, nil
}

func (r *running) GPUMemMiB(ctx context.Context) float64 {
	most := 0.0
	for _, g := range r.machine.status(ctx).GPUs {
		sum := 0.0
		for _, c := range g.Clients {
			if c.Instance == r.started.ID {
				sum += c.MemUsedMiB
			}
		}
		most = max(most, sum)
	}
	return most
}

func (r *running) Parked(ctx context.Context) (used, parked float64) {
	for _, g := range r.machine.status(ctx).GPUs {
		for _, c := range g.Clients {
			if c.Instance == r.started.ID {
				used += c.MemUsedMiB
				parked += c.MemParkedMiB
			}
		}
	}
	return used, parked
}

// Ended passes a state that nobody knows for running.
func (r *running) Ended(ctx context.Context) error {
	state, err := r.machine.launcher.State(ctx, r.started.Handle)
	if err != nil || state.Running {
		return nil
	}
	return errors.New(state.Detail)
}

func (r *running) LastLines(ctx context.Context) string {
	text, _ := r.machine.launcher.Logs(ctx, r.started.Handle, lastLines)
	return string(text)
}

func (r *running) Stop(ctx context.Context) error { return r.machine.launcher.Stop(ctx, r.started) }
