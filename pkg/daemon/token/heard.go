package token

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	// leniency is how many messages a client may send during a lease that the
	// protocol gives no reason for: a request while one is with us, a lease
	// given back that it does not hold. The next one ends its connection.
	leniency = 8
	// pacePeriod and paceMessages bound what the processes on a seat may say:
	// beyond it their connections are not read for a while. It is a hundred
	// times what programs do that launch as fast as they can.
	pacePeriod   = 100 * time.Millisecond
	paceMessages = 4096
)

// errExcess ends the connection of a client that floods.
var errExcess = errors.New("it asks and gives back without reason")

// heard acts on what a process said. It tells how long not to listen to it.
// Locked.
func (d *Daemon) heard(m *member, frame []byte) (rest time.Duration, err error) {
	kind := wire.Kind(frame)
	if kind != wire.MsgRequest && kind != wire.MsgReturn {
		if _, err := wire.Parse(frame); err != nil {
			return 0, err
		}
		return 0, fmt.Errorf("message type %d from a client", kind)
	}
	if d.members[m.id] != m {
		return 0, net.ErrClosed
	}
	now := time.Now()
	if kind == wire.MsgRequest {
		err = d.heardRequest(m, now)
	} else {
		err = d.heardReturn(m, wire.ReadReturn(frame), now)
	}
	return m.seat.pace(now), err
}

func (d *Daemon) heardRequest(m *member, now time.Time) error {
	if m.waits || m.lease != 0 {
		if err := m.needless(); err != nil {
			return err
		}
	} else {
		m.waits, m.asked = true, now
	}
	m.seat.gpu.step(policy.Request{Client: m.id})
	return nil
}

func (d *Daemon) heardReturn(m *member, msg wire.Return, now time.Time) error {
	if msg.Lease != m.lease || m.lease == 0 {
		return m.needless()
	}
	ev := policy.Return{
		Client: m.id, Lease: msg.Lease, Used: duration(msg.UsedNS),
		WantsMore: msg.Flags&wire.ReturnWantsMore != 0,
	}
	// Who launched and measured nothing has not measured.
	launches := atomic.LoadUint64(&m.seat.page.slot(m.slot).Launches)
	if ev.Used == 0 && launches != m.launches {
		ev.Used = now.Sub(m.granted)
	}
	m.launches = launches
	// A process that gives its lease back unasked has closed its gate itself; a
	// careless one is gated here.
	m.lease, m.revoked, m.suspended, m.waits, m.asked = 0, 0, false, ev.WantsMore, now
	m.seat.page.setGate(m.slot, 0)
	d.metrics.leases.WithLabelValues(m.seat.gpu.name).Observe(now.Sub(m.granted).Seconds())
	if d.metered() {
		m.seat.gpu.step(m.sample(), ev)
	} else {
		m.seat.gpu.step(ev)
	}
	return nil
}

// needless counts a message that the protocol gives no reason for.
func (m *member) needless() error {
	if m.excess++; m.excess > leniency {
		return errExcess
	}
	return nil
}

// pace counts a message and tells how long not to listen after it.
func (s *seat) pace(now time.Time) time.Duration {
	if now.Sub(s.period) >= pacePeriod {
		s.period, s.messages = now, 0
	}
	if s.messages++; s.messages < paceMessages {
		return 0
	}
	return s.period.Add(pacePeriod).Sub(now)
}
