// Package kernel is gfaas-kerneld: graphs of GPU kernels as functions (KaaS). It
// takes requests over HTTP, has a policy of pkg/policy/queue say which goes next
// and on which GPU, and has executors run them: processes that hold the
// GPUs' memory, in which no code of users runs on the host.
//
// Objects are kept in two tiers. The host's is memory that the daemon shares with
// its executors; a GPU's holds copies, for as long as nobody else needs the room.
// So an executor may die at any moment: what ran on it fails or runs again, and
// the objects are still there.
//
// One lock guards all state. What takes long, an executor's work and a client's
// socket, is waited for without it; a GPU does one job at a time.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// Host is memory that the daemon shares with executors.
type Host interface {
	Bytes() []byte
	// Discard gives back the memory of a part; it is zeros then.
	Discard(offset, size int64)
	Close()
}

// Executor carries out jobs on one GPU, one at a time.
type Executor interface {
	// Send begins a job, which is in the form of job.Append, and Wait returns its
	// outcome, or what went wrong with either: job.ErrTimeout when it made no progress
	// for so long; any other error says how the executor ended. After an error, and
	// after a fatal outcome, only Kill is to be called.
	Send(text []byte, patience time.Duration)
	Wait(id uint64, patience time.Duration) (job.Outcome, error)
	// Pid is its process.
	Pid() int
	// Close ends it, Kill does so whatever it is doing. Both return when it has.
	Close()
	Kill()
}

// Ports are what the daemon needs of the machine.
type Ports struct {
	NewHost func(size int64) (Host, error)
	Start   func(ctx context.Context, gpu string, h Host) (Executor, job.Hello, error)
}

// ClientConfig is a client that is known from the beginning: it has a socket of
// its own.
type ClientConfig struct {
	Name   string
	Weight float64
}

// Config is what a daemon goes by.
type Config struct {
	Ports
	GPUs          []string // names as in gpu.ParseDevice
	GPUMem        int64    // bytes of each GPU for buffers; 0 is 8 GiB, or nine tenths of what it has
	HostMem       int64    // bytes of the host for objects
	RequestMem    int64    // bytes of the host for requests that are not over; 0 is 1 GiB
	MaxObjects    int      // of all clients; 0 is 2,097,152
	Policy        string   // cfs-affinity, exclusive or fcfs
	Isolate       bool     // an executor for each client and GPU
	Clients       []ClientConfig
	KernelTimeout time.Duration // without progress; 0 is 10 s
	Stall         time.Duration // for how long a caller may send or take nothing; 0 is 10 s
	Conns         int           // connections of a socket at once; 0 is 8,192, or its part of the descriptors
	Socket        string        // its folder is the run directory
	Listen        string        // TCP address that answers too; empty is none
	Private       bool          // the run directory is ours alone
	Log           *slog.Logger
	// Leave, if set, puts away what the ports have made, at the end.
	Leave func()
}

// defaultGPUMem is what buffers may take of a GPU that has more.
const defaultGPUMem = 8 << 30

// DefaultRequestMem is what requests that are not over may take.
const DefaultRequestMem = 1 << 30

// Limits of a daemon.
const (
	maxWaiting = 1024 // requests of a client
	maxClients = 1024
	maxObjects = 2 << 20 // of all clients
)

// Policies are those that a daemon may go by; the first is the default.
func Policies() []string { return []string{"cfs-affinity", "exclusive", "fcfs"} }

// Daemon is one running kernel daemon.
type Daemon struct {
	cfg     Config
	log     *slog.Logger
	chassis *chassis.Chassis
	sockets []*socket // of clients
	epoch   time.Time
	metrics *metrics
	held    *held          // by requests that are not over
	shared  *domain        // where executors serve all clients
	ends    sync.WaitGroup // of domains that nobody uses any more

	mu       sync.Mutex // guards what follows, and clients, objects, devices and requests
	policy   queue.Policy
	numbers  queue.Numbers
	actions  []queue.Action
	timer    *time.Timer
	clients  map[string]*client
	devices  []*device
	requests map[int64]*request // that the policy knows
	lastID   int64              // of requests, for the policy
	lastRun  uint64             // of requests, for people
	lastJob  uint64
	lastCopy int64
	hostUsed int64 // bytes of all objects, wherever they are, of those to come, and of answers
	objects  int   // how many are stored or to come
	parsed   parsed
	handing  bool          // who tells the policy launches what begins
	begun    []*request    // then: what has begun
	pending  int           // requests that have come and are not over
	idle     chan struct{} // who drains: closed when none is pending; nil: nobody does
	draining bool
}

// connections is how many a socket may have at once, so that all of them leave some
// descriptors.
func connections(sockets int) int {
	const most, least, others = 8192, 64, 256
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return most
	}
	files := int(min(limit.Cur, 1<<30))
	return min(max((files-others)/sockets, least), most)
}

// Open takes the run directory, opens the sockets and starts an executor on each
// GPU. Serve must follow.
func Open(ctx context.Context, cfg Config) (*Daemon, error) {
	if cfg.KernelTimeout == 0 {
		cfg.KernelTimeout = 10 * time.Second
	}
	if cfg.Stall == 0 {
		cfg.Stall = 10 * time.Second
	}
	if cfg.RequestMem == 0 {
		cfg.RequestMem = DefaultRequestMem
	}
	if cfg.MaxObjects == 0 {
		cfg.MaxObjects = maxObjects
	}
	if cfg.Conns == 0 {
		cfg.Conns = connections(len(cfg.Clients) + 2)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{cfg: cfg, log: cfg.Log, epoch: time.Now(), clients: map[string]*client{}, requests: map[int64]*request{}, held: newHeld(cfg.RequestMem)}
	d.metrics = newMetrics(d)
	var err error
	d.policy, err = queue.New(queue.Config{Policy: cfg.Policy, Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		return nil, err
	}
	d.timer = time.AfterFunc(time.Hour, d.woke)
	d.timer.Stop()
	if err := d.open(ctx); err != nil {
		d.close()
		if d.chassis != nil {
			d.chassis.Close()
		}
		return nil, err
	}
	return d, nil
}

func (d *Daemon) open(ctx context.Context) (err error) {
	d.chassis, err = chassis.Open(chassis.Config{
		Program: "gfaas-kerneld", Socket: d.cfg.Socket, Lock: "kernel.lock", Private: d.cfg.Private, Listen: d.cfg.Listen,
		WebTimeout: time.Hour, HTTP: patient, Conns: d.cfg.Conns, Log: d.log,
	})
	if err != nil {
		return err
	}
	if !d.cfg.Isolate {
		if d.shared, err = d.newDomain(); err != nil {
			return err
		}
	}
	for i, name := range d.cfg.GPUs {
		dev, err := d.newDevice(ctx, int32(i), name)
		if err != nil {
			return fmt.Errorf("GPU %s: %w", name, err)
		}
		d.devices = append(d.devices, dev)
	}
	d.sweep()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dev := range d.devices {
		d.step(queue.Event{Kind: queue.GPUSet, GPU: dev.number, Machine: &queue.GPU{Slots: 1}})
	}
	for _, c := range d.cfg.Clients {
		if p := d.keep(c.Name, c.Weight); p != nil {
			return p
		}
		s, err := d.openSocket(c.Name)
		if err != nil {
			return err
		}
		d.sockets = append(d.sockets, s)
	}
	return nil
}

// socket is that of one client.
type socket struct {
	listener *chassis.Listener
	server   *http.Server
}

// socketPath is the socket of a client.
func (d *Daemon) socketPath(client string) string {
	return filepath.Join(d.chassis.RunDir(), "kernel-"+client+".sock")
}

// sweep removes the sockets of clients of a daemon that was killed. The run
// directory's lock is ours: whoever does not answer there is dead.
func (d *Daemon) sweep() {
	left, _ := filepath.Glob(d.socketPath("*"))
	for _, path := range left {
		info, err := os.Lstat(path)
		if err == nil && info.Mode()&fs.ModeSocket != 0 && !chassis.Answers("unix", path) {
			_ = os.Remove(path)
		}
	}
}

func (d *Daemon) openSocket(client string) (*socket, error) {
	l, err := chassis.Listen("unix", d.socketPath(client), 0o600, nil)
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: d.handler(client), ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelWarn)}
	patient(s)
	return &socket{l, s}, nil
}

// patient gives a server its patience: bodies and answers may be long, and their
// handlers have their own.
func patient(s *http.Server) {
	s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = 10*time.Second, 0, 0, 5*time.Minute
	s.MaxHeaderBytes = 64 << 10
}

// WebAddr is where Listen listens, or nil.
func (d *Daemon) WebAddr() net.Addr { return d.chassis.WebAddr() }

// Serve runs until the context ends, then lets what has begun end, removes the
// sockets and ends the executors.
func (d *Daemon) Serve(ctx context.Context) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(d.metrics)
	return d.chassis.Serve(ctx, chassis.Service{
		Run: d.run, Control: d.handler(""), Web: d.handler(""), Metrics: registry, Drain: d.drain,
	})
}

// run serves the clients' sockets until the context ends.
func (d *Daemon) run(ctx context.Context) error {
	defer d.close()
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range d.sockets {
		group.Go(func() error {
			l := chassis.Bounded(s.server, chassis.Patient(d.log, s.listener), d.cfg.Conns)
			if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		for _, s := range d.sockets {
			_ = s.listener.Close()
			_ = s.server.Close()
		}
		return nil
	})
	return group.Wait()
}

// drainFor is how long what has begun may take to end.
const drainFor = 10 * time.Second

// drain refuses new requests and waits for those that are there.
func (d *Daemon) drain() {
	d.mu.Lock()
	d.draining = true
	idle := make(chan struct{})
	if d.pending == 0 {
		close(idle)
	} else {
		d.idle = idle
	}
	d.mu.Unlock()
	timer := time.NewTimer(drainFor)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
		d.log.Warn("requests do not end: leaving them", "after", drainFor.String())
	}
}

// close ends the executors and gives the memory of objects back.
func (d *Daemon) close() {
	d.mu.Lock()
	d.draining = true
	d.timer.Stop()
	for _, dev := range d.devices {
		for _, w := range dev.workers {
			if w.exec != nil {
				d.ends.Go(w.exec.Close)
			}
		}
	}
	d.mu.Unlock()
	d.ends.Wait()
	for _, s := range d.sockets {
		_ = s.listener.Close()
	}
	// Handlers that are still at work hold the memory of objects: it goes with the
	// process.
	if d.cfg.Leave != nil {
		d.cfg.Leave()
	}
}

// now is the time that the policy is told.
func (d *Daemon) now() time.Duration { return time.Since(d.epoch) }

// Problem is an answer that is no.
type Problem struct {
	Status  int
	Code    string
	Message string
	Where   string
}

func (p *Problem) Error() string {
	if p.Where == "" {
		return p.Message
	}
	return p.Where + ": " + p.Message
}

// The codes of problems, beside those of kgraph.
const (
	CodeFault    = "fault"
	CodeTimeout  = "timeout"
	CodeBusy     = "busy"
	CodeInternal = "internal"
)

// statuses are those of HTTP, by code.
var statuses = map[string]int{
	kgraph.BadRequest: http.StatusBadRequest, kgraph.Unsupported: http.StatusBadRequest, kgraph.NotFound: http.StatusNotFound,
	kgraph.TooLarge: http.StatusRequestEntityTooLarge, CodeFault: http.StatusUnprocessableEntity, CodeTimeout: http.StatusGatewayTimeout,
	CodeBusy: http.StatusTooManyRequests, CodeInternal: http.StatusInternalServerError,
}

func problem(code, where, format string, args ...any) *Problem {
	return &Problem{Status: statuses[code], Code: code, Where: where, Message: fmt.Sprintf(format, args...)}
}
