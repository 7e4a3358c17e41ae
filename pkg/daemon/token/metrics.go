package token

import (
	"github.com/prometheus/client_golang/prometheus"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// metrics is what the daemon counts. What is known of instances and clients is
// read off when somebody asks.
type metrics struct {
	grants    *prometheus.CounterVec
	revokes   *prometheus.CounterVec
	refused   prometheus.Counter
	waits     *prometheus.HistogramVec
	leases    *prometheus.HistogramVec
	gpuTime   *prometheus.Desc
	launches  *prometheus.Desc
	blocked   *prometheus.Desc
	instances *prometheus.Desc
	clients   *prometheus.Desc
	smRunning *prometheus.Desc
	phase     *prometheus.Desc
	memory    *prometheus.Desc
	d         *Daemon
}

func newMetrics(d *Daemon) (*prometheus.Registry, *metrics) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gfaas_token_" + name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gfaas_token_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(1e-5, 4, 10),
		}, []string{"gpu"})
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gfaas_token_"+name, help, labels, nil)
	}
	m := &metrics{
		d:         d,
		grants:    counter("grants_total", "Leases granted.", "gpu"),
		revokes:   counter("revokes_total", "Leases asked back.", "gpu"),
		refused:   prometheus.NewCounter(prometheus.CounterOpts{Name: "gfaas_token_refused_total", Help: "Connections refused."}),
		waits:     histogram("wait_seconds", "Time from a request to its grant."),
		leases:    histogram("lease_seconds", "Time from a grant to its return."),
		gpuTime:   desc("gpu_seconds_total", "GPU time that an instance was charged.", "gpu", "instance"),
		launches:  desc("launches_total", "Launches of an instance's processes.", "gpu", "instance"),
		blocked:   desc("blocked_seconds_total", "Time that an instance's processes spent at a closed gate.", "gpu", "instance"),
		instances: desc("instances", "Registered instances.", "gpu"),
		clients:   desc("clients", "Processes by state; absent counts instances without one.", "gpu", "state"),
		smRunning: desc("sm_running_ratio", "Share of the SMs that leases hold.", "gpu"),
		phase:     desc("phase", "1 for the phase that an instance is in (policy introspective).", "gpu", "instance", "phase"),
		memory:    desc("memory_bytes", "GPU memory that an instance has allocated.", "gpu", "instance"),
	}
	r := prometheus.NewRegistry()
	r.MustRegister(m.grants, m.revokes, m.refused, m.waits, m.leases, m)
	return r, m
}

// totals are what an allocation's processes have done since it was made, those
// that have left included.
type totals struct {
	gpu, instance    string
	launches         float64
	blocked, gpuTime float64 // seconds
	memRefused       uint64
}

func (t *totals) add(c counters) {
	t.launches += float64(c.launches)
	t.blocked += duration(c.blockedNS).Seconds()
	t.memRefused += c.memRefused
}

// done is what they have done until now. Locked.
func (a *allocation) done(now policy.Snapshot) totals {
	out := a.left
	out.gpu, out.instance = a.gpu.name, a.inst.reg.Instance
	for _, m := range a.clients {
		if m != nil {
			out.add(a.page.counters(m.slot))
		}
	}
	out.gpuTime = now.Instance(out.instance).Charged.Seconds()
	return out
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.gpuTime, m.launches, m.blocked, m.instances, m.clients, m.smRunning, m.phase, m.memory} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	var s wire.Status
	var done []totals
	if m.d.locked(func() {
		s = m.d.status()
		for _, g := range m.d.devices() {
			now := g.sched.Snapshot()
			for _, i := range m.d.instances {
				if s := i.on(g); s != nil {
					done = append(done, s.done(now))
				}
			}
		}
	}) != nil {
		return
	}
	for _, t := range done {
		for desc, v := range map[*prometheus.Desc]float64{m.gpuTime: t.gpuTime, m.launches: t.launches, m.blocked: t.blocked} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, v, t.gpu, t.instance)
		}
	}
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	for _, g := range s.GPUs {
		states, phases := map[string]int{}, map[[2]string]bool{}
		memory := map[string]float64{}
		for _, c := range g.Clients {
			states[c.State]++
			memory[c.Instance] += c.MemUsedMiB * (1 << 20)
			if c.Phase != "" {
				phases[[2]string{c.Instance, c.Phase}] = true
			}
		}
		for _, state := range []string{"absent", "idle", "waiting", "running", "draining", "suspended"} {
			gauge(m.clients, float64(states[state]), g.GPU, state)
		}
		for of := range phases {
			gauge(m.phase, 1, g.GPU, of[0], of[1])
		}
		for id, bytes := range memory {
			gauge(m.memory, bytes, g.GPU, id)
		}
		gauge(m.instances, float64(len(memory)), g.GPU)
		gauge(m.smRunning, g.SMRunningPct/100, g.GPU)
	}
}
