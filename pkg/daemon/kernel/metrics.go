package kernel

import (
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics is what the daemon counts; how it stands is read off when somebody asks.
type metrics struct {
	d        *Daemon
	requests *prometheus.CounterVec
	queue    prometheus.Histogram
	total    prometheus.Histogram
	up       atomic.Int64

	bytesUp, hostBytes, requestBytes, gpuBytes, gpuBusy, faults, waiting *prometheus.Desc
}

func newMetrics(d *Daemon) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gfaas_kernel_"+name, help, labels, nil)
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "gfaas_kernel_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(1e-5, 4, 12)})
	}
	return &metrics{
		d:            d,
		requests:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gfaas_kernel_requests_total", Help: "Requests that ran, by what they came to."}, []string{"code"}),
		queue:        seconds("queue_seconds", "Time from a request's coming to its beginning."),
		total:        seconds("request_seconds", "Time from a request's coming to its end."),
		bytesUp:      desc("uploaded_bytes_total", "Bytes copied to GPUs."),
		hostBytes:    desc("host_bytes", "Bytes of all objects."),
		requestBytes: desc("request_bytes", "Bytes that requests take which are not over."),
		gpuBytes:     desc("gpu_bytes", "Bytes kept on a GPU.", "gpu"),
		gpuBusy:      desc("gpu_busy_seconds_total", "Time that a GPU ran requests.", "gpu"),
		faults:       desc("executor_faults_total", "Executors that ended with a request.", "gpu"),
		waiting:      desc("waiting", "Requests that have come and do not run."),
	}
}

// observe counts a request that ran. Locked.
func (m *metrics) observe(r *request, p *Problem) {
	code := "ok"
	if p != nil {
		code = p.Code
	}
	m.requests.WithLabelValues(code).Inc()
	m.queue.Observe(r.answer.QueueMS / 1e3)
	m.total.Observe(r.answer.TotalMS / 1e3)
	m.up.Add(r.answer.Cache.BytesUp)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	m.requests.Describe(to)
	m.queue.Describe(to)
	m.total.Describe(to)
	for _, d := range []*prometheus.Desc{m.bytesUp, m.hostBytes, m.requestBytes, m.gpuBytes, m.gpuBusy, m.faults, m.waiting} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	m.requests.Collect(to)
	m.queue.Collect(to)
	m.total.Collect(to)
	d := m.d
	d.mu.Lock()
	defer d.mu.Unlock()
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	counter := func(desc *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, v, labels...)
	}
	counter(m.bytesUp, float64(m.up.Load()))
	gauge(m.hostBytes, float64(d.hostUsed))
	used, _ := d.held.has()
	gauge(m.requestBytes, float64(used))
	waiting := 0
	for _, c := range d.clients {
		waiting += c.waiting
	}
	gauge(m.waiting, float64(waiting))
	for _, dev := range d.devices {
		gpu := strconv.Itoa(int(dev.number))
		gauge(m.gpuBytes, float64(dev.cache.Used()), gpu)
		counter(m.gpuBusy, dev.ran.Seconds(), gpu)
		counter(m.faults, float64(dev.faults), gpu)
	}
}
