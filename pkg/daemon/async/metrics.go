package async

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	pending   prometheus.GaugeFunc
	ended     *prometheus.CounterVec
	callbacks *prometheus.CounterVec
}

func newMetrics(q *Queue) metrics {
	return metrics{
		pending: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "gfaas_async_pending", Help: "Accepted asynchronous calls that have not ended.",
		}, func() float64 { return float64(q.Pending()) }),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gfaas_async_total", Help: "Asynchronous calls that ended: done, or failed when no instance answered or the answer was not taken.",
		}, []string{"function", "result"}),
		callbacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gfaas_callbacks_total", Help: "Answers sent to where callers want them: ok, retried when they are to be sent again, failed.",
		}, []string{"result"}),
	}
}

func (m metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.pending, m.ended, m.callbacks}
}
