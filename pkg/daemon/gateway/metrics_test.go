package gateway

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestStatusSeries checks that however many different statuses a function answers with,
// /metrics has a bounded number of series for them, and each answer is counted.
func TestStatusSeries(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if status, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/")); err == nil {
			rw.WriteHeader(status)
		}
	}), nil)
	w.apply(fn("f"))
	for _, status := range []int{200, 204, 299, 299, 222, 418, 599, 799, 999} {
		if a := w.do("POST", "/function/f/"+strconv.Itoa(status), ""); a.status != status {
			t.Errorf("status of the answer: got %d, want %d", a.status, status)
		}
	}
	w.do("HEAD", "/function/f/222", "")
	f := w.dispatcher.Function("f")
	for status := 200; status < 1000; status++ {
		f.Counts.Answered(status, 0, time.Now())
		f.Counts.Probed(status)
	}
	all := w.do("GET", "/metrics", "").body
	const registered, classes = 70, 9
	for _, name := range []string{"gfaas_requests_total{", "gateway_function_invocation_total{", "gfaas_probes_total{"} {
		if n := strings.Count(all, "\n"+name); n == 0 || n > registered+classes {
			t.Errorf("%d series of %s, want at most %d", n, name, registered+classes)
		}
	}
	for _, want := range []string{
		`gfaas_requests_total{code="200",function="f"} 2.0`, `gfaas_requests_total{code="418",function="f"} 2.0`, `gfaas_requests_total{code="499",function="f"} 1.0`,
		`gfaas_requests_total{code="9xx",function="f"} 101.0`, `gateway_function_invocation_total{code="7xx",function_name="f.openfaas-fn"} 101.0`,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in\n%s", want, all)
		}
	}
}
