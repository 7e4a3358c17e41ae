// Package docker runs instances as containers of the Docker engine that
// $DOCKER_HOST names, or of this machine's.
//
// The preload library, the simulated driver and the folder of the token
// daemon's client socket are mounted read-only under /opt/gfaas. A container
// runs as the image's user, who must be the one that gfaas runs as: sockets,
// simulated memory and MPS serve one user. It has no capabilities, gains no
// privileges, and is held to limits on memory and processes. Containers are in a network
// of their own, on which none reaches another.
package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

const (
	// cleanUp is how long tidying up may take after the caller has given up.
	cleanUp = 30 * time.Second
	// patience is how long an engine may take to say that it is there: one that
	// hangs accepts connections and never answers.
	patience = 10 * time.Second
)

// Config is what a Runtime works with.
type Config struct {
	RunDir   string // the daemons' run directory
	Libs     preload.Libs
	Patience time.Duration // longest wait for the engine to say that it is there; 0 is 10 s
	Network  string        // network of all instances, made if it is not there; empty is gfaas
}

// Runtime starts and stops containers. It is safe for concurrent use.
type Runtime struct {
	config Config
	engine *client.Client

	netMu sync.Mutex // held while the network is looked for and made

	mu    sync.Mutex
	about *system.Info      // once it was asked
	lists map[string]string // what images preload themselves, by their ids
}

var _ ports.Runtime = (*Runtime)(nil)

// Error is a failure that says whether something needed is missing, and what
// to do about it.
type Error struct {
	Err     error
	Missing bool
	Remedy  string
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Unavailable reports whether something needed is missing.
func (e *Error) Unavailable() bool { return e.Missing }

// Hint is what to do about it.
func (e *Error) Hint() string { return e.Remedy }

// New connects to the engine. The error is Unavailable when none answers, and
// a context.DeadlineExceeded too when it is there and does not in time.
func New(ctx context.Context, config Config) (*Runtime, error) {
	engine, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, &Error{fmt.Errorf("connect to Docker: %w", err), true, "correct DOCKER_HOST, or unset it"}
	}
	if config.Patience == 0 {
		config.Patience = patience
	}
	if config.Network == "" {
		config.Network = defaultNetwork
	}
	asked, cancel := context.WithTimeout(ctx, config.Patience)
	defer cancel()
	ping, err := engine.Ping(asked)
	if err != nil {
		_ = engine.Close()
		if ctx.Err() == nil && asked.Err() != nil {
			return nil, silent(config.Patience, asked.Err())
		}
		return nil, explain("reach the Docker engine", err)
	}
	// Left to the first request, it would race with a second one beside it.
	engine.NegotiateAPIVersionPing(ping)
	return &Runtime{config: config, engine: engine, lists: map[string]string{}}, nil
}

// Close gives the connection back.
func (r *Runtime) Close() error { return r.engine.Close() }

// Name is instance.Docker.
func (r *Runtime) Name() string { return instance.Docker }

// silent is the error of an engine that does not answer in time.
func silent(after time.Duration, cause error) error {
	return &Error{fmt.Errorf("the Docker engine does not answer within %v: %w", after, cause), true, "restart Docker"}
}

// explain names what was tried, and makes an engine that does not answer an
// Unavailable error.
func explain(what string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", what, err)
	switch {
	case strings.Contains(err.Error(), "permission denied while trying to connect"):
		return &Error{err, true, "join the group of Docker's socket, or give the function a command: instead of an image:"}
	case client.IsErrConnectionFailed(errors.Unwrap(err)):
		return &Error{err, true, "start Docker, or give the function a command: instead of an image:"}
	}
	return err
}

// detached is a context for tidying up that the caller's end does not cut
// short.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
}
