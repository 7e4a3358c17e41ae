package instances

import (
	"context"
	"errors"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	adaptInterval = 200 * time.Millisecond // interval of samples of the utilization if the policy adapts (MQFQ-Sticky, section 5)
	usageTimeout  = time.Second            // limit on the token daemon's answer
)

// meter measures the GPU usage of instances.
type meter struct{ *Manager }

// run queries the usage of instances from the token daemon and the usage of memory from the
// drivers, until the end of m's life. It begins when all instances are known: before, the
// memory of unknown instances would count as that of other programs.
func (m *meter) run() {
	if m.cfg.Usage == nil && m.cfg.Memory == nil && m.cfg.Busy == nil && m.cfg.Weights == nil || !m.awaitKnown() {
		return
	}
	interval := dispatch.MemoryEvery
	if m.cfg.Adapts {
		interval = adaptInterval
	}
	var lastMeasured time.Time
	for running := m.cfg.Memory != nil || pause(m.life, interval); running; running = pause(m.life, interval) {
		var s *wire.Status
		if now := time.Now(); now.Sub(lastMeasured) >= dispatch.MemoryEvery-adaptInterval/2 {
			lastMeasured, s = now, m.measure()
			m.queryWeights()
		} else {
			s = m.queryUsage(m.life)
		}
		if m.cfg.Adapts {
			m.sample(s)
		}
	}
}

// sample reports the utilization of the GPUs to the dispatcher, according to their drivers if
// Config.Busy is set, and otherwise according to s, an answer of the token daemon. It omits GPUs
// whose utilization is unknown.
func (m *meter) sample(s *wire.Status) {
	for n, gpu := range m.dispatcher.GPUs.All() {
		if m.cfg.Busy != nil {
			if busy, err := m.cfg.Busy(gpu.Name); err == nil {
				m.dispatcher.SetBusy(n, busy)
			}
		} else if busy, known := dispatch.BusyOf(s, gpu.Name); known {
			m.dispatcher.SetBusy(n, busy)
		}
	}
}

// awaitKnown waits until all instances are known. It returns false at the end of m's life.
func (m *Manager) awaitKnown() bool {
	select {
	case <-m.dispatcher.Known:
		return true
	case <-m.life.Done():
		return false
	}
}

// measure queries the drivers and the token daemon for the usage of memory, and reports both
// to the dispatcher. It returns the token daemon's answer, or nil. It queries the drivers
// first, because the token daemon learns of an allocation before the driver does.
func (m *meter) measure() *wire.Status {
	var drivers map[string]dispatch.Memory
	if m.cfg.Memory != nil {
		limited, cancel := context.WithTimeout(m.life, usageTimeout)
		drivers = m.cfg.Memory(limited)
		cancel()
	}
	s := m.queryUsage(m.life)
	m.dispatcher.Measured(s, drivers)
	return s
}

// queryUsage queries the token daemon for the usage of its instances, and reports it to the
// dispatcher. It returns nil if the daemon does not answer.
func (m *meter) queryUsage(ctx context.Context) (s *wire.Status) {
	if m.cfg.Usage == nil {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if answer, err := m.cfg.Usage(limited); err == nil {
		s = &answer
	}
	m.dispatcher.SetUsage(s)
	return s
}

// queryWeights queries the model daemons for the models on the GPUs, and reports them to the
// dispatcher.
func (m *meter) queryWeights() {
	if m.cfg.Weights == nil {
		return
	}
	limited, cancel := context.WithTimeout(m.life, usageTimeout)
	defer cancel()
	if models := m.cfg.Weights(limited); limited.Err() == nil {
		m.dispatcher.SetWeights(models)
	}
}

// started measures an instance that has just started. It does not wait for the first call,
// because another start may depend on the measurement.
func (m *meter) started(i *dispatch.Instance) {
	if m.cfg.Memory != nil {
		i.SetMeasurable()
		m.measure()
	}
}

// shortOfMemory returns err, the error of a failed start. If the GPU had too little memory, it
// extends the error by the current usage of the GPU's memory.
func (m *meter) shortOfMemory(i *dispatch.Instance, err error) error {
	if m.life.Err() != nil {
		return err
	}
	var failed *ports.StartError
	refused := errors.As(err, &failed) && failed.OutOfMemory
	m.measure()
	return i.ShortOfMemory(refused, err)
}
