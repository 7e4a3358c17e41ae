package token

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
)

// Daemon is a running token daemon.
type Daemon struct {
	*core
	chassis   *chassis.Chassis
	registry  *registry
	sessions  *sessions
	parking   *parking
	unmanaged *unmanaged
	occupancy *occupancy
	killer    killer
}

// Open acquires the run directory, reads the registrations in it and opens the sockets. The caller
// must then call Serve, which closes them. If another daemon serves the directory, Open returns a
// *chassis.ServedError.
func Open(cfg Config) (*Daemon, error) {
	cfg.HelloTimeout = cmp.Or(cfg.HelloTimeout, 5*time.Second)
	cfg.Policy = cmp.Or(cfg.Policy, policy.MultiToken)
	if _, err := policy.New(cfg.Policy, policy.Config{}, 0); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d, err := build(cfg)
	if err != nil {
		return nil, err
	}
	if err := d.open(); err != nil {
		if d.chassis != nil {
			d.chassis.Close()
		}
		d.closeDescriptors()
		return nil, err
	}
	return d, nil
}

// build creates and connects the parts of the daemon.
func build(cfg Config) (*Daemon, error) {
	dir := filepath.Dir(cfg.Socket)
	clientDir := filepath.Join(dir, "client")
	c := &core{
		cfg: cfg, lineage: lineage{socket: filepath.Join(clientDir, "token.sock"), clientDir: clientDir, outsiders: &outsiders{}}, log: cfg.Log,
		faults:  &logLimit{log: cfg.Log, lines: 20, period: 10 * time.Second},
		joins:   &logLimit{log: cfg.Log, lines: 1000, period: 10 * time.Second},
		metrics: newMetrics(), closing: make(chan struct{}),
	}
	gpus, err := newSchedulers(c)
	if err != nil {
		return nil, err
	}
	poller, err := newPoller(gpus.alarm)
	if err != nil {
		gpus.alarm.close()
		return nil, err
	}
	r := &registry{
		core: c, gpus: gpus, records: records{dir: filepath.Join(dir, "instances"), log: cfg.Log}, opened: time.Now(), used: time.Now(),
		instances: map[string]*instance{},
	}
	r.grants = &grants{core: c, registry: r, records: records{dir: filepath.Join(dir, grantsDir), log: cfg.Log, volatile: true}, accepted: map[string]*accepted{}, now: time.Now}
	if cfg.Grants != nil {
		r.grants.trust, c.lineage.grantedSocket = cfg.Grants.Trust, filepath.Join(dir, GrantedDir, "token.sock")
	}
	d := &Daemon{core: c, registry: r, killer: killer{c}, occupancy: &occupancy{c, r}}
	d.parking = &parking{core: c, registry: r, killer: d.killer}
	d.sessions = &sessions{core: c, registry: r, parking: d.parking, poller: poller}
	d.unmanaged = &unmanaged{core: c, registry: r, killer: d.killer, census: census{lineage: c.lineage}}
	r.accept = d.sessions.acceptInstance
	return d, nil
}

func (d *Daemon) closeDescriptors() {
	d.sessions.poller.close()
	d.registry.gpus.alarm.close()
}

// open acquires the run directory, reads its registrations and opens the socket that the processes
// of all instances may use.
func (d *Daemon) open() (err error) {
	socket := d.lineage.socket
	if err := chassis.CheckPath(socket); err != nil {
		return err
	}
	d.chassis, err = chassis.Open(chassis.Config{
		Program: "gfaas-tokend", Socket: d.cfg.Socket, Lock: "token.lock", Private: d.cfg.Private, Listen: d.cfg.Listen,
		WebTimeout: d.cfg.WebTimeout, ExitWhenIdle: d.cfg.ExitWhenIdle, HTTP: withConn, Log: d.log,
	})
	if err != nil {
		return err
	}
	for _, dir := range []string{d.registry.records.dir, d.lineage.clientDir} {
		if err := makeDir(dir, 0o700); err != nil {
			return err
		}
	}
	if d.cfg.Grants != nil {
		if err := errors.Join(makeDir(d.registry.grants.records.dir, 0o700), makeDir(filepath.Dir(d.lineage.grantedSocket), 0o755)); err != nil {
			return err
		}
	}
	if err := d.registry.load(); err != nil {
		return err
	}
	if d.sessions.common, err = chassis.Listen("unixpacket", socket, 0o600); err != nil || d.cfg.Grants == nil {
		return err
	}
	// Containers run as any user. A process proves with a grant and a secret that it may connect.
	if d.sessions.granted, err = chassis.Listen("unixpacket", d.lineage.grantedSocket, 0o666); err != nil {
		_ = d.sessions.common.Close()
	}
	return err
}

// makeDir creates a folder of the run directory, or sets the mode of an existing one.
func makeDir(dir string, mode os.FileMode) error {
	err := os.MkdirAll(dir, mode)
	if err == nil {
		err = os.Chmod(dir, mode)
	}
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	return nil
}

// WebAddr returns the address that serves /healthz, /readyz and /metrics, or nil if Config.Listen
// is empty.
func (d *Daemon) WebAddr() net.Addr { return d.chassis.WebAddr() }

// Serve runs until the context ends or the daemon has been idle for Config.ExitWhenIdle. It then
// removes its sockets and closes all gates and connections. Registrations stay on disk for the next
// daemon.
func (d *Daemon) Serve(ctx context.Context) error {
	_ = d.locked(d.registry.openSockets)
	service := chassis.Service{
		Run: d.run, Control: d.control(), Metrics: d.registry.export(), Use: d.registry.lastUse,
		Drain: func() { close(d.closing) },
	}
	if d.cfg.Reload != nil {
		service.Reload = func() error {
			s, err := d.cfg.Reload()
			if err == nil {
				err = d.registry.grants.reload()
			}
			if err != nil {
				return err
			}
			return d.locked(func() { d.registry.gpus.configure(s) })
		}
	}
	return d.chassis.Serve(ctx, service)
}

// control returns the handler of the control socket.
func (d *Daemon) control() http.Handler {
	return (&api{core: d.core, registry: d.registry, sessions: d.sessions, parking: d.parking, unmanaged: d.unmanaged}).handler()
}

// run serves the processes of instances until the context ends.
func (d *Daemon) run(ctx context.Context) error {
	if d.cfg.Cleanup != nil {
		defer d.cfg.Cleanup()
	}
	defer d.closeDescriptors()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.sessions.accept(d.sessions.common, commonSocket) })
	if d.sessions.granted != nil {
		group.Go(func() error { return d.sessions.accept(d.sessions.granted, grantedSocket) })
	}
	group.Go(d.sessions.poll)
	group.Go(func() error { return every(ctx, time.Second, d.tidy) })
	group.Go(func() error { return every(ctx, censusInterval, d.unmanaged.takeCensus) })
	if d.cfg.Memory != nil {
		group.Go(func() error { return every(ctx, occupancyInterval, d.occupancy.measure) })
	}
	group.Go(func() error {
		<-ctx.Done()
		_ = d.sessions.common.Close()
		if d.sessions.granted != nil {
			_ = d.sessions.granted.Close()
		}
		d.shutDown()
		return nil
	})
	err := group.Wait()
	d.running.Wait()
	return err
}

// every calls do periodically until the context ends.
func every(ctx context.Context, period time.Duration, do func()) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			do()
		}
	}
}

// tidy handles the end of processes of instances and of owners. An owner is the process that a
// registration names in owner_pid, such as gfaas run. If it is killed, it cannot end the instance's
// processes, so the daemon kills them if the registration asks for it. The daemon does so only if
// it has seen the owner alive, because it cannot determine how an owner ended while no daemon ran.
func (d *Daemon) tidy() {
	d.sessions.hangUpEnded()
	var orphans []tree
	_ = d.locked(func() {
		d.parking.retry()
		orphans = d.registry.reap()
	})
	d.killer.killAll("its owner was killed", orphans...)
}

// shutDown closes every gate, connection and socket. Afterwards, locked returns errClosing and the
// state does not change any more.
func (d *Daemon) shutDown() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.registry.gpus.stop()
	d.sessions.stop()
	d.registry.stop()
}
