package async

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	pending    prometheus.GaugeFunc
	endedCalls *prometheus.CounterVec
	callbacks  *prometheus.CounterVec
}

func newMetrics(q *Queue) metrics {
	return metrics{
		pending: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "gfaas_async_pending", Help: "Accepted asynchronous calls that have not ended.",
		}, func() float64 { return float64(q.Pending()) }),
		endedCalls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gfaas_async_total", Help: "Asynchronous calls that ended, by result: done, or failed if no instance answered or the receiver did not accept the answer.",
		}, []string{"function", "result"}),
		callbacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gfaas_callbacks_total", Help: "Attempts to deliver an answer to its receiver, by result: ok, retried or failed.",
		}, []string{"result"}),
	}
}
