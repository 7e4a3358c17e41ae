package model

import "github.com/prometheus/client_golang/prometheus"

// metrics exports the daemon's counters and, on each scrape, the state of its models.
type metrics struct{ *server }

func newMetrics(srv *server) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(srv.seconds, metrics{srv})
	return r
}

// Describe implements prometheus.Collector.
func (m metrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	t, all, clients, failures := m.totals(), m.statuses(""), len(m.conns), m.counts.failures
	m.mu.Unlock()
	export := func(kind prometheus.ValueType, name, help string, v int64, labels prometheus.Labels) {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("gfaas_model_"+name, help, nil, labels), kind, float64(v))
	}
	export(prometheus.CounterValue, "hits_total", "Requests for a model that was on the GPU.", t.Hits, nil)
	export(prometheus.CounterValue, "loads_total", "Models loaded.", t.Loads, nil)
	export(prometheus.CounterValue, "load_failures_total", "Loads that failed.", failures, nil)
	export(prometheus.CounterValue, "evictions_total", "Copies evicted to make room.", t.Evictions, nil)
	export(prometheus.GaugeValue, "capacity_bytes", "Limit on the GPU memory of all models.", t.Capacity, nil)
	export(prometheus.GaugeValue, "used_bytes", "GPU memory in use by models.", t.Used, nil)
	export(prometheus.GaugeValue, "holders", "Number of holders of all models.", int64(t.Refs), nil)
	export(prometheus.GaugeValue, "clients", "Connections.", int64(clients), nil)
	states := map[string]int64{}
	for _, s := range all {
		states[s.State]++
	}
	for _, state := range []string{"gpu", "loading", "file"} {
		export(prometheus.GaugeValue, "models", "Models by state.", states[state], prometheus.Labels{"state": state})
	}
}
