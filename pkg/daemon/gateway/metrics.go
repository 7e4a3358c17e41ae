package gateway

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// metrics is what the gateway counts. What is known of functions and instances is
// read off when somebody asks. Names that nobody has applied are no labels.
type metrics struct {
	g         *Gateway
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	queued    *prometheus.HistogramVec
	rejected  *prometheus.CounterVec
	evictions *prometheus.CounterVec
	probes    *prometheus.CounterVec
	invoked   *prometheus.CounterVec   // as OpenFaaS calls them
	functions *prometheus.HistogramVec // the same

	starts     *prometheus.Desc
	waiting    *prometheus.Desc
	inFlight   *prometheus.Desc
	instances  *prometheus.Desc
	gpuSeconds *prometheus.Desc
	slots      *prometheus.Desc
	running    *prometheus.Desc
}

func newMetrics(g *Gateway) (*prometheus.Registry, *metrics) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(1e-3, 2.5, 14)}, labels)
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gfaas_"+name, help, labels, nil)
	}
	m := &metrics{
		g:         g,
		requests:  counter("gfaas_requests_total", "Calls, by the status of their answer; 499 is of a caller that left.", "function", "code"),
		duration:  histogram("gfaas_request_seconds", "Time from a call's coming to the end of its answer.", "function"),
		queued:    histogram("gfaas_queue_seconds", "Time that a call waited for a place on an instance.", "function"),
		rejected:  counter("gfaas_rejected_total", "Calls that no instance was given, by the code of the answer.", "function", "reason"),
		evictions: counter("gfaas_evictions_total", "Instances that were stopped, or had their memory moved to the host, by the policy.", "function", "kind"),
		probes:    counter("gfaas_probes_total", "Probes, such as health checks, by the status of their answer; they are no calls.", "function", "code"),
		invoked:   counter("gateway_function_invocation_total", "Calls, as OpenFaaS counts them.", "function_name", "code"),
		functions: histogram("gateway_functions_seconds", "Time that calls took, as OpenFaaS counts it.", "function_name"),

		starts:     desc("starts_total", "Dispatches, by what they found.", "function", "start"),
		waiting:    desc("queue_length", "Calls that wait.", "function"),
		inFlight:   desc("in_flight", "Calls that run.", "function"),
		instances:  desc("instances", "Instances, by state.", "function", "state"),
		gpuSeconds: desc("gpu_seconds_total", "Time that a function's instances were busy, without starts that failed.", "function"),
		slots:      desc("gpu_slots", "Calls that a GPU runs at once.", "gpu"),
		running:    desc("gpu_running", "Calls that a GPU runs now.", "gpu"),
	}
	r := prometheus.NewRegistry()
	r.MustRegister(m.requests, m.duration, m.queued, m.rejected, m.evictions, m.probes, m.invoked, m.functions, m)
	return r, m
}

// series are those of one function, found once.
type series struct {
	duration, queued, functions prometheus.Observer
	last                        atomic.Pointer[counted]
}

// counted are the calls of a function whose answers had a status.
type counted struct {
	status            int
	requests, invoked prometheus.Counter
}

func (m *metrics) of(t *target) {
	s := &t.series
	s.duration, s.queued, s.functions = m.duration.WithLabelValues(t.name), m.queued.WithLabelValues(t.name), m.functions.WithLabelValues(t.name+"."+namespace)
}

// answered counts a call that is over.
func (m *metrics) answered(t *target, status int, queued, took time.Duration) {
	if t.forgotten.Load() {
		return // its name is no label any more
	}
	n := t.series.last.Load()
	if n == nil || n.status != status { // most calls of a function end as the one before
		code := codeLabel(status)
		n = &counted{status, m.requests.WithLabelValues(t.name, code), m.invoked.WithLabelValues(t.name+"."+namespace, code)}
		t.series.last.Store(n)
	}
	n.requests.Inc()
	n.invoked.Inc()
	t.series.duration.Observe(took.Seconds())
	t.series.functions.Observe(took.Seconds())
	t.series.queued.Observe(queued.Seconds())
}

// codeLabel returns the label of a status: its number if it is registered (or
// statusCancelled), else its class, as in 2xx. A function may answer with any status, and
// each label is a series for as long as the gateway runs.
func codeLabel(status int) string {
	if http.StatusText(status) != "" || status == statusCancelled {
		return strconv.Itoa(status)
	}
	return strconv.Itoa(status/100) + "xx"
}

// probed counts a probe that is over.
func (m *metrics) probed(t *target, status int) {
	if !t.forgotten.Load() {
		m.probes.WithLabelValues(t.name, codeLabel(status)).Inc()
	}
}

// refused counts a call that the gateway answered itself.
func (m *metrics) refused(t *target, e *Error, queued, took time.Duration) {
	if t.forgotten.Load() {
		return
	}
	m.answered(t, e.Status, queued, took)
	switch e.Code {
	case codeTimeout, codeInstanceDied, codeBadAnswer, codeCancelled: // it had a place
	default:
		m.rejected.WithLabelValues(t.name, e.Code).Inc()
	}
}

func (m *metrics) evicted(t *target, kind string) { m.evictions.WithLabelValues(t.name, kind).Inc() }

// forget drops what was counted of a function that is gone.
func (m *metrics) forget(name string) {
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.requests, m.duration, m.queued, m.rejected, m.evictions, m.probes} {
		v.DeletePartialMatch(prometheus.Labels{"function": name})
	}
	m.invoked.DeletePartialMatch(prometheus.Labels{"function_name": name + "." + namespace})
	m.functions.DeletePartialMatch(prometheus.Labels{"function_name": name + "." + namespace})
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.starts, m.waiting, m.inFlight, m.instances, m.gpuSeconds, m.slots, m.running} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	s := m.g.status()
	states := map[[2]string]int{}
	for _, i := range s.Instances {
		states[[2]string{i.Function, i.State}]++
	}
	for key, n := range states {
		gauge(m.instances, float64(n), key[0], key[1])
	}
	for _, f := range s.Functions {
		counter(m.starts, float64(*f.ColdStarts), f.Function, residency.Cold.String())
		counter(m.starts, float64(*f.HostWarmStarts), f.Function, residency.HostWarm.String())
		counter(m.starts, float64(*f.GPUWarmStarts), f.Function, residency.GPUWarm.String())
		counter(m.gpuSeconds, *f.GPUSeconds, f.Function)
		gauge(m.waiting, float64(*f.Waiting), f.Function)
		gauge(m.inFlight, float64(*f.InFlight), f.Function)
	}
	for _, g := range s.GPUs {
		gauge(m.slots, float64(*g.Slots), g.GPU)
		gauge(m.running, float64(*g.Running), g.GPU)
	}
}
