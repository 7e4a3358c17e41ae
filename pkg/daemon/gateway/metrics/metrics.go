// Package metrics counts the calls of functions, for Prometheus and for the gateway's
// status. The subpackages dispatch, proxy and api of pkg/daemon/gateway report calls to it.
package metrics

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/status"
)

// Namespace is the OpenFaaS namespace of all functions.
const Namespace = "openfaas-fn"

// Metrics holds the gateway's Prometheus series. Only names of applied functions become
// labels.
type Metrics struct {
	Registry *prometheus.Registry
	began    time.Time

	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	queued    *prometheus.HistogramVec
	rejected  *prometheus.CounterVec
	evictions *prometheus.CounterVec
	probes    *prometheus.CounterVec
	batches   *prometheus.HistogramVec
	gathered  *prometheus.HistogramVec
	invoked   *prometheus.CounterVec   // under the name that OpenFaaS uses
	functions *prometheus.HistogramVec // under the name that OpenFaaS uses
}

// New returns Metrics with all counts at zero.
func New() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(1e-3, 2.5, 14)}, labels)
	}
	m := &Metrics{
		Registry: prometheus.NewRegistry(), began: time.Now(),
		requests:  counter("gfaas_requests_total", "Calls, by the status of the answer; 499 means that the caller closed its connection.", "function", "code"),
		duration:  histogram("gfaas_request_seconds", "Time from the arrival of a call to the end of its answer.", "function"),
		queued:    histogram("gfaas_queue_seconds", "Time that a call waited for an instance.", "function"),
		rejected:  counter("gfaas_rejected_total", "Calls that the gateway passed to no instance, by the code of its answer.", "function", "reason"),
		evictions: counter("gfaas_evictions_total", "Instances that the policy stopped or parked on the host, by kind.", "function", "kind"),
		probes:    counter("gfaas_probes_total", "Probes, such as health checks, by the status of the answer; probes do not count as calls.", "function", "code"),
		batches: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gfaas_batch_size", Help: "Inferences in the batches that the gateway formed and sent.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 13)}, []string{"function"}),
		gathered:  histogram("gfaas_batch_wait_seconds", "Time from the first call of a batch until the batch had an instance.", "function"),
		invoked:   counter("gateway_function_invocation_total", "Calls, under OpenFaaS's name for this metric.", "function_name", "code"),
		functions: histogram("gateway_functions_seconds", "Duration of calls, under OpenFaaS's name for this metric.", "function_name"),
	}
	m.Registry.MustRegister(m.requests, m.duration, m.queued, m.rejected, m.evictions, m.probes, m.batches, m.gathered, m.invoked, m.functions)
	return m
}

// Function counts the calls of one function.
type Function struct {
	metrics *Metrics
	name    string

	series  sync.RWMutex // read-locked while a call is counted, so that Remove deletes its series, too
	removed bool         // Remove was called, so the name must not become a label again; under series

	duration, queued, functions prometheus.Observer

	mu       sync.Mutex
	rejected int64
	errors   int64
	recent   recent
}

// Function returns the counters of a function.
func (m *Metrics) Function(name string) *Function {
	return &Function{metrics: m, name: name, duration: m.duration.WithLabelValues(name), queued: m.queued.WithLabelValues(name),
		functions: m.functions.WithLabelValues(name + "." + Namespace)}
}

// Answered counts a call that an instance has answered: its status, its time in the queue
// and the time of its arrival.
func (f *Function) Answered(status int, queued time.Duration, came time.Time) {
	now := time.Now()
	f.mu.Lock()
	if status >= 500 {
		f.errors++
	}
	f.recent.add(now.Sub(f.metrics.began), now.Sub(came))
	f.mu.Unlock()
	f.count(status, queued, now.Sub(came))
}

// Refused counts a call that the gateway has answered itself.
func (f *Function) Refused(e *refusal.Error, queued time.Duration, came time.Time) {
	status := e.HTTPStatus()
	f.mu.Lock()
	switch {
	case status >= 500 && e.Code != refusal.Draining && e.Code != refusal.QueueTimeout:
		f.errors++
	case e.Code == refusal.QueueFull || status >= 500:
		f.rejected++
	}
	f.mu.Unlock()
	f.count(status, queued, time.Since(came))
	switch e.Code {
	case refusal.Timeout, refusal.InstanceDied, refusal.BadAnswer, refusal.BatchFailed, refusal.Cancelled: // the call had been dispatched
	default:
		f.unlessRemoved(func() { f.metrics.rejected.WithLabelValues(f.name, e.Code).Inc() })
	}
}

// unlessRemoved calls add, which may create series, unless the function was removed.
func (f *Function) unlessRemoved(add func()) {
	f.series.RLock()
	defer f.series.RUnlock()
	if !f.removed {
		add()
	}
}

// count adds a call to the series.
func (f *Function) count(status int, queued, took time.Duration) {
	f.unlessRemoved(func() {
		code := codeLabel(status)
		f.metrics.requests.WithLabelValues(f.name, code).Inc()
		f.metrics.invoked.WithLabelValues(f.name+"."+Namespace, code).Inc()
		f.duration.Observe(took.Seconds())
		f.functions.Observe(took.Seconds())
		f.queued.Observe(queued.Seconds())
	})
}

// codeLabel returns the label of a status: its number if it is registered (or
// refusal.StatusCancelled), and otherwise its class, such as 2xx. A function may answer
// with any status, and each label adds a series for the gateway's lifetime.
func codeLabel(status int) string {
	if http.StatusText(status) != "" || status == refusal.StatusCancelled {
		return strconv.Itoa(status)
	}
	return strconv.Itoa(status/100) + "xx"
}

// Probed counts an answered probe.
func (f *Function) Probed(status int) {
	f.unlessRemoved(func() { f.metrics.probes.WithLabelValues(f.name, codeLabel(status)).Inc() })
}

// Batched counts a batch that is sent, with its number of inferences and the time since its first call.
func (f *Function) Batched(inferences int, waited time.Duration) {
	f.unlessRemoved(func() {
		f.metrics.batches.WithLabelValues(f.name).Observe(float64(inferences))
		f.metrics.gathered.WithLabelValues(f.name).Observe(waited.Seconds())
	})
}

// Evicted counts an instance that the policy has stopped or parked; kind is "stopped" or
// "parked".
func (f *Function) Evicted(kind string) {
	f.unlessRemoved(func() { f.metrics.evictions.WithLabelValues(f.name, kind).Inc() })
}

// Status fills in the counts of calls in a function's status.
func (f *Function) Status(s *status.Function) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rps, ms := f.recent.rates(time.Since(f.metrics.began), 0.5, 0.95, 0.99)
	s.Rejected, s.Errors = new(f.rejected), new(f.errors)
	s.RPS, s.P50MS, s.P95MS, s.P99MS = &rps, &ms[0], &ms[1], &ms[2]
}

// Remove removes the series of a function.
func (f *Function) Remove() {
	f.series.Lock()
	defer f.series.Unlock()
	f.removed = true
	m := f.metrics
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.requests, m.duration, m.queued, m.rejected, m.evictions, m.probes, m.batches, m.gathered} {
		v.DeletePartialMatch(prometheus.Labels{"function": f.name})
	}
	m.invoked.DeletePartialMatch(prometheus.Labels{"function_name": f.name + "." + Namespace})
	m.functions.DeletePartialMatch(prometheus.Labels{"function_name": f.name + "." + Namespace})
}

// gauges collects the series that are computed from the gateway's status.
type gauges struct {
	status func() status.Status

	starts, falseMisses, loaded, waiting, inFlight, instances, gpuSeconds, slots, running, busy, memory, used, closed *prometheus.Desc
}

// Observe adds the series that are computed from the gateway's status.
func (m *Metrics) Observe(status func() status.Status) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gfaas_"+name, help, labels, nil)
	}
	m.Registry.MustRegister(&gauges{
		status:      status,
		starts:      desc("starts_total", "Dispatched calls, by kind of start (cold, host-warm, gpu-warm).", "function", "start"),
		falseMisses: desc("false_misses_total", "Dispatched calls whose start was cold or host-warm while another GPU had the function's memory.", "function"),
		loaded:      desc("loaded_gpus", "GPUs that have the function's memory.", "function"),
		waiting:     desc("queue_length", "Waiting calls.", "function"),
		inFlight:    desc("in_flight", "Running calls.", "function"),
		instances:   desc("instances", "Instances, by state.", "function", "state"),
		gpuSeconds:  desc("gpu_seconds_total", "Time that a function's instances were busy, without failed starts.", "function"),
		slots:       desc("gpu_slots", "Limit on running calls per GPU.", "gpu"),
		running:     desc("gpu_running", "Running calls per GPU.", "gpu"),
		busy:        desc("gpu_busy_ratio", "Fraction of the last window in which instances used the GPU; absent if unknown.", "gpu"),
		memory:      desc("gpu_memory_bytes", "Memory of the GPU; absent if unknown.", "gpu"),
		used:        desc("gpu_memory_used_bytes", "Used memory of the GPU; absent if unknown.", "gpu"),
		closed:      desc("gpu_closed", "1 for a GPU on which the gateway starts nothing, otherwise 0.", "gpu"),
	})
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.starts, g.falseMisses, g.loaded, g.waiting, g.inFlight, g.instances, g.gpuSeconds, g.slots, g.running, g.busy, g.memory, g.used, g.closed} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	s := g.status()
	states := map[[2]string]int{}
	for _, i := range s.Instances {
		states[[2]string{i.Function, i.State}]++
	}
	for key, n := range states {
		gauge(g.instances, float64(n), key[0], key[1])
	}
	for _, f := range s.Functions {
		counter(g.starts, float64(*f.ColdStarts), f.Function, residency.Cold.String())
		counter(g.starts, float64(*f.HostWarmStarts), f.Function, residency.HostWarm.String())
		counter(g.starts, float64(*f.GPUWarmStarts), f.Function, residency.GPUWarm.String())
		counter(g.falseMisses, float64(*f.FalseMisses), f.Function)
		gauge(g.loaded, float64(*f.LoadedGPUs), f.Function)
		counter(g.gpuSeconds, *f.GPUSeconds, f.Function)
		gauge(g.waiting, float64(*f.Waiting), f.Function)
		gauge(g.inFlight, float64(*f.InFlight), f.Function)
	}
	for _, gpu := range s.GPUs {
		gauge(g.slots, float64(*gpu.Slots), gpu.GPU)
		gauge(g.running, float64(*gpu.Running), gpu.GPU)
		for _, known := range []struct {
			desc  *prometheus.Desc
			value *float64
			unit  float64
		}{{g.busy, gpu.BusyPct, 0.01}, {g.memory, gpu.MemMiB, 1 << 20}, {g.used, gpu.MemUsedMiB, 1 << 20}} {
			if known.value != nil {
				gauge(known.desc, *known.value*known.unit, gpu.GPU)
			}
		}
		closed := 0.0
		if gpu.Closed {
			closed = 1
		}
		gauge(g.closed, closed, gpu.GPU)
	}
}
