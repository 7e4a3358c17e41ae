package model

import "github.com/prometheus/client_golang/prometheus"

// metrics is what the daemon counts. What is known of models is read off when
// somebody asks.
type metrics struct {
	d         *Daemon
	seconds   prometheus.Histogram
	hits      *prometheus.Desc
	loads     *prometheus.Desc
	failures  *prometheus.Desc
	evictions *prometheus.Desc
	capacity  *prometheus.Desc
	used      *prometheus.Desc
	models    *prometheus.Desc
	holders   *prometheus.Desc
	clients   *prometheus.Desc
}

func newMetrics(d *Daemon) (*prometheus.Registry, *metrics) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gfaas_model_"+name, help, labels, nil)
	}
	m := &metrics{
		d: d,
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gfaas_model_load_seconds", Help: "Time to load a model into GPU memory.", Buckets: prometheus.ExponentialBuckets(0.01, 3, 10),
		}),
		hits:      desc("hits_total", "Requests for a model that was on the GPU."),
		loads:     desc("loads_total", "Models loaded."),
		failures:  desc("load_failures_total", "Loads that failed."),
		evictions: desc("evictions_total", "Copies given up to make room."),
		capacity:  desc("capacity_bytes", "GPU memory that models may have."),
		used:      desc("used_bytes", "GPU memory that models have."),
		models:    desc("models", "Models by state.", "state"),
		holders:   desc("holders", "Holders of all models."),
		clients:   desc("clients", "Connections."),
	}
	r := prometheus.NewRegistry()
	r.MustRegister(m.seconds, m)
	return r, m
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.hits, m.loads, m.failures, m.evictions, m.capacity, m.used, m.models, m.holders, m.clients} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.d.mu.Lock()
	t, all, clients, failures := m.d.totals(), m.d.statuses(""), len(m.d.conns), m.d.counts.failures
	m.d.mu.Unlock()
	counter := func(d *prometheus.Desc, v int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	counter(m.hits, t.Hits)
	counter(m.loads, t.Loads)
	counter(m.failures, failures)
	counter(m.evictions, t.Evictions)
	gauge(m.capacity, t.Capacity)
	gauge(m.used, t.Used)
	gauge(m.holders, int64(t.Refs))
	gauge(m.clients, int64(clients))
	states := map[string]int64{}
	for _, s := range all {
		states[s.State]++
	}
	for _, state := range []string{"gpu", "loading", "file"} {
		gauge(m.models, states[state], state)
	}
}
