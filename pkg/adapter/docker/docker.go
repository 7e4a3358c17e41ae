// Package docker runs instances as containers of the Docker engine at $DOCKER_HOST, or of
// the local one. Runtime implements ports.Runtime.
//
// The package mounts the preload library, the simulated driver and the folder of the
// instance's token socket read-only under /opt/gfaas. A container
//
//   - runs as the image's user, which must be the user of gfaas, because sockets, simulated
//     memory and MPS serve a single user;
//   - has no capabilities, cannot gain privileges, and has limits on memory and processes;
//   - is attached to a network on which containers cannot reach each other.
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
	// cleanUp is the time limit for cleaning up after the caller's context has ended.
	cleanUp = 30 * time.Second
	// engineTimeout is the default of Config.EngineTimeout: an engine that hangs accepts connections
	// and never answers.
	engineTimeout = 10 * time.Second
)

// Config configures a Runtime.
type Config struct {
	RunDir        string // the daemons' run directory
	Libs          preload.Libs
	EngineTimeout time.Duration // time limit for the engine's answer to New; 0 means 10 s
	Network       string        // network of all instances, created if it does not exist; empty means gfaas
}

// Runtime starts and stops containers. It is safe for concurrent use.
type Runtime struct {
	config Config
	engine *engine
}

// engine is a connection to the Docker engine, with its images, the network of instances,
// and what it has reported. It is safe for concurrent use.
type engine struct {
	*client.Client

	netMu sync.Mutex // held while finding or creating the network

	mu       sync.Mutex
	features *system.Info // nil before the first request

	preloadLists sync.Map // contents of each image's own /etc/ld.so.preload (string), by image ID
}

var _ ports.Runtime = (*Runtime)(nil)

// unavailable returns a *ports.UnavailableError.
func unavailable(err error, remedy string) error {
	return &ports.UnavailableError{Err: err, Remedy: remedy}
}

// New connects to the engine. If the engine is unreachable, it returns a
// *ports.UnavailableError; if the engine does not answer in time, the error also wraps
// context.DeadlineExceeded.
func New(ctx context.Context, config Config) (*Runtime, error) {
	connection, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, unavailable(fmt.Errorf("connect to Docker: %w", err), "correct DOCKER_HOST, or unset it")
	}
	if config.EngineTimeout == 0 {
		config.EngineTimeout = engineTimeout
	}
	if config.Network == "" {
		config.Network = defaultNetwork
	}
	pingCtx, cancel := context.WithTimeout(ctx, config.EngineTimeout)
	defer cancel()
	ping, err := connection.Ping(pingCtx)
	if err != nil {
		_ = connection.Close()
		if ctx.Err() == nil && pingCtx.Err() != nil {
			return nil, unavailable(fmt.Errorf("the Docker engine does not answer within %v: %w", config.EngineTimeout, pingCtx.Err()), "restart Docker")
		}
		return nil, explain("reach the Docker engine", err)
	}
	// On the first request, the negotiation would race with concurrent requests.
	connection.NegotiateAPIVersionPing(ping)
	return &Runtime{config, &engine{Client: connection}}, nil
}

// Close closes the connection to the engine.
func (r *Runtime) Close() error { return r.engine.Close() }

// Name returns instance.Docker.
func (r *Runtime) Name() string { return instance.Docker }

// explain prefixes err with the failed operation. If the engine cannot be reached, the
// result is a *ports.UnavailableError.
func explain(operation string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", operation, err)
	switch {
	case strings.Contains(err.Error(), "permission denied while trying to connect"):
		return unavailable(err, "join the group of Docker's socket, or give the function a command: instead of an image:")
	case client.IsErrConnectionFailed(errors.Unwrap(err)):
		return unavailable(err, "start Docker, or give the function a command: instead of an image:")
	}
	return err
}

// detached returns a context for cleaning up, which outlives ctx by up to cleanUp.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
}
