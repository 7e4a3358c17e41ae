// Package inbound accepts the connections of callers and receives the bodies of their
// requests. It limits connections, memory, disk space and time, and shares them among
// callers' hosts. The gateway passes accepted connections to an Intake;
// pkg/daemon/gateway/proxy and pkg/daemon/gateway/api receive bodies through it.
//
//  1. A Conn is one connection. At the limit, new connections replace idle ones (callers).
//  2. An Upload reads one body from its caller. It reserves its memory before it reads
//     (bodyMemory), so that a body that was begun can be received completely.
//  3. A Body is the received part: its head in memory, its tail streamed or in a file
//     (spillSpace).
//
// "Locked" in a function's comment means that the caller holds the lock of the type.
package inbound

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Config configures an Intake.
type Config struct {
	Log      *slog.Logger
	Now      func() time.Duration // time since some fixed instant
	Draining <-chan struct{}      // once closed, bodies that wait for memory are refused
	Files    int                  // limit on file descriptors of this process; 0 means RLIMIT_NOFILE

	MaxBody       int64         // limit on a body, in bytes
	Buffer        int64         // bytes of each body kept in memory
	BufferMemory  int64         // limit on the bytes of all bodies in memory; 0 means no limit
	MemoryTimeout time.Duration // longest wait for memory
	BodyTimeout   time.Duration // longest pause within a body
	BodyRate      int64         // minimum bytes per second after the first BodyTimeout; 0 means no minimum
	Spill         int64         // limit on the bytes of all bodies in files; 0 means that files are not used
	SpillDir      string        // folder of these files
	Stall         time.Duration // longest pause of a body while others wait for memory; 0 means stallTime
}

// Intake limits the resources that callers use.
type Intake struct {
	cfg     Config
	callers callers
	bodies  bodyMemory
	spills  spillSpace
}

// New returns an Intake.
func New(cfg Config) *Intake {
	if cfg.Files == 0 {
		cfg.Files = descriptors()
	}
	if cfg.Stall == 0 {
		cfg.Stall = stallTime
	}
	in := &Intake{cfg: cfg}
	in.callers.init(int(float64(cfg.Files)*callerShare), cfg.Now, cfg.Log)
	in.bodies.limit, in.bodies.callers, in.bodies.stall = cfg.BufferMemory, &in.callers, cfg.Stall
	in.spills.dir, in.spills.limit, in.spills.maxFiles = cfg.SpillDir, cfg.Spill, int64(float64(cfg.Files)*spillShare)
	return in
}

// Admit registers an accepted connection and returns it for a server. If there is no room,
// Admit refuses the connection and returns nil.
func (in *Intake) Admit(accepted net.Conn) net.Conn { return in.callers.admit(accepted) }

// Serve prepares a server for connections that Admit returned.
func (in *Intake) Serve(s *http.Server) {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, c)
	}
	s.ConnState = connectionState
}

// ConnOf returns the connection of a request's context, or nil.
func ConnOf(ctx context.Context) *Conn {
	conn, _ := ctx.Value(connectionKey{}).(*Conn)
	return conn
}

// Usage describes the resources that callers use.
type Usage struct {
	Connections   map[int32]int // by phase
	Memory        int64         // bytes of bodies in memory
	Waiting       int64         // number of bodies that wait for memory
	Spilled       int64         // bytes of bodies in files
	SpilledBodies int64         // number of bodies in files
}

// Usage returns the resources that callers use now.
func (in *Intake) Usage() Usage {
	u := Usage{Connections: map[int32]int{}, Memory: in.bodies.used.Load(), Waiting: in.bodies.waiting.Load(), Spilled: in.spills.used.Load(), SpilledBodies: in.spills.files.Load()}
	in.callers.mu.Lock()
	defer in.callers.mu.Unlock()
	for _, host := range in.callers.hosts {
		for conn := range host.conns {
			u.Connections[conn.phase()]++
		}
	}
	return u
}
