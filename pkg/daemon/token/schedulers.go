package token

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
)

// schedulers holds the schedulers of all GPUs and their clock, and renews their leases. The core's
// lock guards it.
type schedulers struct {
	*core
	alarm *alarm
	gpus  map[string]*device

	epoch       time.Time     // zero of the clock
	renewal     *time.Timer   // calls renewLeases
	leased      bool          // a lease may be in force, and the timer is set
	renewed     time.Time     // when the leases were renewed last
	stoppedTime time.Duration // total time for which the daemon was stopped after its leases had ended by themselves
}

// renewEvery is the time between two renewals of the leases in force.
const renewEvery = leaseLength / 5

func newSchedulers(c *core) (*schedulers, error) {
	alarm, err := newAlarm()
	if err != nil {
		return nil, err
	}
	s := &schedulers{core: c, alarm: alarm, gpus: map[string]*device{}, epoch: time.Now()}
	s.renewal = time.AfterFunc(time.Hour, func() { _ = s.locked(s.renewLeases) })
	s.renewal.Stop()
	return s, nil
}

// device returns the GPU with that name and creates it if necessary. The lease numbers of a new GPU
// start at a random number, so that a lease from before a restart of the daemon does not match a new
// one.
func (s *schedulers) device(name string) *device {
	if g := s.gpus[name]; g != nil {
		return g
	}
	cfg := policy.Config{Settings: s.cfg.Settings, FirstLease: rand.Uint32(), Introspective: s.cfg.Introspective}
	sched, err := policy.New(s.cfg.Policy, cfg, s.now())
	if err != nil {
		panic(err) // Open has checked the name
	}
	g := &device{name: name, schedulers: s, sched: sched, clients: map[policy.ClientID]*client{}}
	g.stopCheck = time.AfterFunc(time.Hour, func() { _ = s.locked(g.checkStopped) })
	g.stopCheck.Stop()
	g.grants, g.revokes = s.metrics.grants.WithLabelValues(name), s.metrics.revokes.WithLabelValues(name)
	g.waitTimes = s.metrics.waits.WithLabelValues(name)
	s.gpus[name] = g
	if s.cfg.OnFirstUse != nil {
		go s.cfg.OnFirstUse(name) // it may wait for other programs
	}
	return g
}

// sorted returns all GPUs, ordered by name.
func (s *schedulers) sorted() []*device {
	return slices.SortedFunc(maps.Values(s.gpus), func(a, b *device) int { return strings.Compare(a.name, b.name) })
}

// configure changes the settings. Every scheduler starts a new window.
func (s *schedulers) configure(set Settings) {
	s.cfg.Settings = set
	for _, g := range s.sorted() {
		g.step(policy.Configure{Settings: set})
	}
	s.log.Info("settings reloaded", "window", set.Window.String(), "round", set.Round.String(), "sm_limit", set.SMLimit, "grant_order", set.GrantOrder)
}

// window returns the length of a scheduling window.
func (s *schedulers) window() time.Duration { return cmp.Or(s.cfg.Window, gpu.Window) }

// expired wakes the schedulers whose wake is due and sets the alarm for the others. The poller calls
// it when the alarm has expired.
func (s *schedulers) expired() {
	s.alarm.at = 0
	for _, g := range s.gpus {
		switch now := s.now(); {
		case g.wakeAt == 0:
		case now < g.wakeAt:
			s.alarm.set(now, g.wakeAt)
		default:
			g.wakeAt = 0
			g.wake()
		}
	}
}

// now returns the time on the schedulers' clock: the time since the daemon's start, without the time
// for which the daemon was stopped after all leases had ended by themselves. No client ran in that
// time, so no instance is charged for it and no window passes.
func (s *schedulers) now() time.Duration {
	now := time.Now()
	if gap := now.Sub(s.renewed) - leaseLength; s.leased && gap > 0 {
		s.stoppedTime += gap
		s.renew(now)
		s.log.Warn("the daemon did not run for a while, so all leases expired", "ms", gap.Milliseconds())
	}
	return now.Sub(s.epoch) - s.stoppedTime
}

// startRenewing starts the renewal timer if it does not run.
func (s *schedulers) startRenewing() {
	if !s.leased {
		s.leased, s.renewed = true, time.Now()
		s.renewal.Reset(renewEvery)
	}
}

// renewLeases renews all leases, and sets the timer again if a lease is in force.
func (s *schedulers) renewLeases() {
	s.now() // detects that the daemon was stopped
	if s.leased = s.renew(time.Now()); s.leased {
		s.renewal.Reset(renewEvery)
	}
}

// renew counts a renewal in the pages of all clients with a lease. It reports whether a client has
// one.
func (s *schedulers) renew(now time.Time) (any bool) {
	s.renewed = now
	for _, g := range s.gpus {
		for _, c := range g.clients {
			if c.lease != 0 && !c.suspended {
				any = true
				c.page.renew()
			}
		}
	}
	return any
}

// stop closes all gates and stops all timers. It makes the alarm expire once more to wake poll.
func (s *schedulers) stop() {
	s.renewal.Stop()
	s.alarm.expireIn(0)
	for _, g := range s.gpus {
		g.stopCheck.Stop()
		for _, c := range g.clients {
			c.page.clear(c.slot)
		}
	}
}

// alarm is the timer of all schedulers. It is a timerfd, for which the poller waits: the runtime's
// timers are up to a millisecond late, which is an eighth of a short turn.
type alarm struct {
	fd int
	at time.Duration // when it expires, on the schedulers' clock; 0 if it is not set
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	return &alarm{fd: fd}, nil
}

func (a *alarm) close() { _ = unix.Close(a.fd) }

// set makes the alarm expire at the given time, unless it is set to an earlier time already. It does
// not postpone the alarm: most grants postpone a wake, and setting the timer each time costs more
// than setting it again after it has expired too early.
func (a *alarm) set(now, at time.Duration) {
	if a.at == 0 || at < a.at {
		a.at = at
		a.expireIn(at - now)
	}
}

func (a *alarm) expireIn(d time.Duration) {
	_ = unix.TimerfdSettime(a.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))}, nil)
}
