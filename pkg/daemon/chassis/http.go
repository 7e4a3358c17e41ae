package chassis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

// handler serves the daemon's health and metrics, and passes all other requests to next.
func (c *Chassis) handler(s Service, next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		var err error
		if s.Ready != nil {
			err = s.Ready()
		}
		if c.draining.Load() {
			err = errors.New("draining")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	if s.Metrics != nil {
		mux.Handle("GET /metrics", openMetrics(promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{EnableOpenMetrics: true})))
	}
	if next == nil {
		return mux
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz", "/readyz", "/metrics":
			w.Header().Set("X-Content-Type-Options", "nosniff")
			mux.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r) // directly, because a mux would clean the path
		}
	})
}

// openMetrics selects OpenMetrics for clients that accept any format.
func openMetrics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accept := strings.Join(r.Header.Values("Accept"), ",") // promhttp reads only the first header field
		if acceptsAll(accept) {
			accept = "application/openmetrics-text; version=1.0.0"
		}
		r = r.Clone(r.Context())
		r.Header.Set("Accept", accept)
		next.ServeHTTP(w, r)
	})
}

// acceptsAll reports whether an Accept header leaves the format to the server: it is empty
// or contains only */*.
func acceptsAll(accept string) bool {
	for media := range strings.SplitSeq(accept, ",") {
		media, _, _ = strings.Cut(media, ";")
		if media = strings.TrimSpace(media); media != "" && media != "*/*" {
			return false
		}
	}
	return true
}

// serveHTTP serves h on l in a goroutine of the group and returns the server. Writing an
// answer may take at most patience, or any time if it is 0: operations on the control
// socket may take long.
func (c *Chassis) serveHTTP(group *errgroup.Group, l net.Listener, h http.Handler, patience time.Duration) *http.Server {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second,
		WriteTimeout: patience,
		ErrorLog:     slog.NewLogLogger(c.log.Handler(), slog.LevelWarn),
	}
	if c.cfg.HTTP != nil {
		c.cfg.HTTP(s)
	}
	served := Patient(c.log, l)
	if c.cfg.Conn != nil {
		served = &wrapping{served, c.cfg.Conn}
	}
	if c.cfg.Conns > 0 {
		served = Bounded(s, served, c.cfg.Conns)
	}
	group.Go(func() error {
		if err := s.Serve(served); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("serve %s: %w", l.Addr(), err)
		}
		return nil
	})
	return s
}

// wrapping is a listener that wraps the connections it accepts.
type wrapping struct {
	net.Listener
	wrap func(net.Conn) net.Conn
}

// Accept implements net.Listener.
func (l *wrapping) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if wrapped := l.wrap(conn); wrapped != nil {
			return wrapped, nil
		}
	}
}

// shut lets the server finish requests in progress for up to 1 s, then closes it.
func shut(s *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.Shutdown(ctx) != nil {
		_ = s.Close()
	}
}
