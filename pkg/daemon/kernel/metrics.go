package kernel

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// metrics holds the daemon's counters. collector reads the other values from the state.
type metrics struct {
	requests *prometheus.CounterVec
	queue    prometheus.Histogram
	total    prometheus.Histogram
	phases   *prometheus.HistogramVec
	byPhase  [len(phaseNames)]prometheus.Observer // the histograms of phases
	bytesUp  prometheus.Counter
}

func newMetrics() *metrics {
	options := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: "gfaas_kernel_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(1e-5, 4, 12)}
	}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gfaas_kernel_requests_total", Help: "Finished requests, by result."}, []string{"code"}),
		queue:    prometheus.NewHistogram(options("queue_seconds", "Time from the arrival of a request to its start.")),
		total:    prometheus.NewHistogram(options("request_seconds", "Time from the arrival of a request to its end.")),
		phases:   prometheus.NewHistogramVec(options("phase_seconds", "Time of completed requests by phase: queue, link, copy-in, run, copy-out."), []string{"phase"}),
		bytesUp:  prometheus.NewCounter(prometheus.CounterOpts{Name: "gfaas_kernel_uploaded_bytes_total", Help: "Bytes copied to GPUs."}),
	}
	for i, name := range phaseNames {
		m.byPhase[i] = m.phases.WithLabelValues(name)
	}
	return m
}

// observe records a request that ran. The caller holds the lock.
func (m *metrics) observe(r *request, p *kgraph.Problem) {
	code := "ok"
	if p != nil {
		code = p.Code
	}
	m.requests.WithLabelValues(code).Inc()
	m.queue.Observe(r.answer.QueueMS / 1e3)
	m.total.Observe(r.answer.TotalMS / 1e3)
	if p == nil {
		for i, d := range r.phases {
			m.byPhase[i].Observe(d.Seconds())
		}
	}
	m.bytesUp.Add(float64(r.answer.Cache.BytesUp))
}

// collector exports the daemon's state.
type collector struct{ *scheduler }

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	export := func(kind prometheus.ValueType, name, help string, v float64, labels prometheus.Labels) {
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc("gfaas_kernel_"+name, help, nil, labels), kind, v)
	}
	requestBytes, _ := c.requestMemory.usage()
	waiting, runs := 0, 0
	for _, client := range c.clients {
		waiting += client.waiting
		runs += len(client.runs)
	}
	export(prometheus.GaugeValue, "host_bytes", "Bytes of all objects.", float64(c.bytes), nil)
	export(prometheus.GaugeValue, "request_bytes", "Bytes of host memory that requests in progress use.", float64(requestBytes), nil)
	export(prometheus.GaugeValue, "waiting", "Queued requests.", float64(waiting), nil)
	export(prometheus.GaugeValue, "runs", "Asynchronous runs, finished ones included.", float64(runs), nil)
	for _, dev := range c.devices {
		gpu := prometheus.Labels{"gpu": strconv.Itoa(int(dev.number))}
		export(prometheus.GaugeValue, "gpu_bytes", "Bytes in use for buffers on a GPU.", float64(dev.cache.Used()), gpu)
		export(prometheus.CounterValue, "gpu_busy_seconds_total", "Time for which a GPU ran requests.", dev.ran.Seconds(), gpu)
		export(prometheus.CounterValue, "executor_faults_total", "Executors that were killed after a failed job.", float64(dev.faults), gpu)
	}
}
