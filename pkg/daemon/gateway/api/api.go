// Package api serves the HTTP interfaces of a gateway: calls of functions, the APIs of
// OpenFaaS and OpenAI, asynchronous calls, status, logs and the operator's page. Its guard
// decides which requests are admitted. API is an http.Handler, which pkg/daemon/gateway
// serves at its addresses and at the control socket.
package api

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/metrics"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/proxy"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Config configures an API.
type Config struct {
	Log        *slog.Logger
	Catalog    ports.Catalog
	Starter    ports.Starter // reads logs
	Dispatcher *dispatch.Dispatcher
	Proxy      *proxy.Proxy
	Intake     *inbound.Intake
	Metrics    *metrics.Metrics

	Async        Async
	Listen       string // address as the user gave it
	UIListen     string
	MaxBody      int64
	FailedStarts func(function string) []InstanceLog        // logs of the function's failed starts
	PeerUser     func(context.Context) (uid int, err error) // returns the user at the other end of a request's connection; nil asks the kernel
	Life         <-chan struct{}                            // closed when the gateway ends; ends followed logs
	Policy       string
	Version      string // version of the program
}

// API handles all requests except those for health and metrics.
type API struct {
	cfg    Config
	guard  guard
	system *http.ServeMux // routes for /system/ and the page
	async  asyncCalls
	events events
	began  time.Time
}

// New returns an API.
func New(cfg Config, access Access) *API {
	a := &API{cfg: cfg, system: http.NewServeMux(), began: time.Now()}
	a.guard.token, a.guard.listens, a.guard.peerUser = rand.Text(), []string{cfg.Listen, cfg.UIListen}, cfg.PeerUser
	if cfg.PeerUser == nil {
		a.guard.peerUser = ConnectionUser
	}
	a.SetAccess(access)
	a.async.api, a.events.api = a, a
	a.routes()
	return a
}

// SetAccess replaces the rules for access to the gateway.
func (a *API) SetAccess(access Access) { a.guard.access.Store(&access) }
