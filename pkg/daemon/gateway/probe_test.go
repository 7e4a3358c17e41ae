package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// contracted returns a function with the given contract.
func contracted(name, contract string) function.Function {
	return fn(name, func(f *function.Function) { f.Contract = contract })
}

// TestColdProbes checks that the gateway refuses a probe of a function without an
// instance at once and starts none. Every other request starts an instance.
func TestColdProbes(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	own := func(paths, methods []string) function.Function {
		return fn("f", func(f *function.Function) { f.Probes = function.Probes{Paths: paths, Methods: methods} })
	}
	none := []string{}
	for i, c := range []struct {
		function function.Function
		request  string // METHOD PATH of /function/f, or of /v2/models/f
		probe    bool
	}{
		{fn("f"), "GET /health", true}, {fn("f"), "GET /healthz", true}, {fn("f"), "GET /ready", true}, {fn("f"), "GET /metrics", true},
		{fn("f"), "GET /v1/models", true}, {fn("f"), "GET /health/", true}, {fn("f"), "GET /health?verbose=1", true},
		{fn("f"), "HEAD ", true}, {fn("f"), "HEAD /any/path", true}, {fn("f"), "OPTIONS ", true}, {fn("f"), "OPTIONS /v1/chat/completions", true},
		{contracted("f", "openfaas"), "GET /_/health", true}, {contracted("f", "openfaas"), "GET /_/ready", true},
		{contracted("f", "kserve-v2"), "GET /v2/health/ready", true}, {contracted("f", "kserve-v2"), "GET /v2/health/live", true},
		{contracted("f", "auto"), "GET /_/health", true}, {contracted("f", "auto"), "GET /v2/health/ready", true},
		{own([]string{"/poll", "/"}, nil), "GET /poll", true}, {own([]string{"/poll", "/"}, nil), "GET ", true}, {own([]string{"/poll"}, nil), "HEAD /x", true},
		{own(nil, []string{"GET"}), "GET /anything", true}, {own(nil, none), "GET /health", true},

		{fn("f"), "GET ", false}, {fn("f"), "POST /health", false}, {fn("f"), "GET /healthy", false}, {fn("f"), "GET /x/health", false}, {fn("f"), "PUT /metrics", false},
		{fn("f"), "GET /_/health", false}, {fn("f"), "GET /v2/health/ready", false}, {fn("f"), "GET //health", false},
		{own(none, none), "GET /health", false}, {own(none, none), "HEAD /health", false}, {own([]string{"/poll"}, nil), "GET /health", false},
		{own(nil, none), "OPTIONS /x", false}, {own(nil, []string{"HEAD"}), "OPTIONS /x", false},
	} {
		f := c.function
		f.Name = fmt.Sprint("f", i)
		w.apply(f)
		method, path, _ := strings.Cut(c.request, " ")
		a := w.do(method, "/function/"+f.Name+path, "")
		switch started := w.dispatcher.Function(f.Name).Info().Instances; {
		case c.probe && (a.status != 503 || a.reason() != refusal.NotLoaded || a.header.Get("Retry-After") == "" || a.header.Get("Gfaas-Attempts") != "0" || started != 0):
			t.Errorf("%s of %+v: %d %s, %d instances started, want 503 %s and none", c.request, f.Probes, a.status, a.reason(), started, refusal.NotLoaded)
		case !c.probe && (a.status != 200 || started != 1):
			t.Errorf("%s of %+v: %d %s, %d instances started, want 200 and one", c.request, f.Probes, a.status, a.reason(), started)
		}
		if err := w.catalog.Remove(context.Background(), f.Name); err != nil {
			t.Fatal(err)
		}
	}
	w.apply(contracted("k", "kserve-v2"))
	if a := w.do("HEAD", "/v2/models/k/infer", ""); a.status != 503 || a.reason() != refusal.NotLoaded {
		t.Errorf("HEAD of a model's path: got %d %s; want status 503, reason %v", a.status, a.reason(), refusal.NotLoaded)
	}
}

// TestProbesAreNoCalls checks that the instance of a loaded function answers a probe even
// if it is busy. The probe counts only as a probe.
func TestProbesAreNoCalls(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, pathHandlers{"/slow": func(http.ResponseWriter, *http.Request) { <-release }, "/health": func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Seen-Upgrade", r.Header.Get("Upgrade"))
		rw.WriteHeader(599)
		_, _ = io.WriteString(rw, "ill")
	}}, nil)
	w.apply(fn("f"))
	w.do("POST", "/function/f", "")
	done := make(chan answer, 1)
	go func() {
		a, _ := w.try(context.Background(), "POST", "/function/f/slow", "")
		done <- a
	}()
	w.until("the call occupies the instance", func() bool { return *w.Status().GPUs[0].Running == 1 })
	for range 20 {
		a := w.do("GET", "/function/f/health", "", "Connection", "Upgrade", "Upgrade", "own")
		if a.status != 599 || a.body != "ill" || a.header.Get("Gfaas-Instance") != "f.1" || a.reason() != "probe" || a.header.Get("Seen-Upgrade") != "" {
			t.Fatalf(`got %+v; want status 599, body "ill", Gfaas-Instance f.1, reason probe, no header Seen-Upgrade`, a)
		}
	}
	close(release)
	if a := <-done; a.status != 200 {
		t.Errorf("got %+v; want status 200", a)
	}
	w.until("the metrics count all probes", func() bool {
		return *w.Status().Functions[0].InFlight == 0 && strings.Contains(w.do("GET", "/metrics", "").body, `gfaas_probes_total{code="5xx",function="f"} 20`)
	})
	w.apply(fn("g"))
	w.do("HEAD", "/function/g", "")
	for _, f := range w.Status().Functions {
		if want := map[string]int64{"f": 1, "g": 0}[f.Function]; int64(*f.ColdStarts) != want || *f.Errors != 0 || *f.Rejected != 0 {
			t.Errorf("%s: got %d cold starts, %d errors, %d rejected; want %d, 0 and 0", f.Function, *f.ColdStarts, *f.Errors, *f.Rejected, want)
		}
	}
	all := w.do("GET", "/metrics", "").body
	for _, want := range []string{`gfaas_probes_total{code="5xx",function="f"} 20`, `gfaas_probes_total{code="503",function="g"} 1`, `gfaas_requests_total{code="200",function="f"} 2`} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in\n%s", want, all)
		}
	}
	if strings.Contains(all, `gfaas_requests_total{code="5`) || strings.Contains(all, `gateway_function_invocation_total{code="5`) || strings.Contains(all, "gfaas_rejected_total{") {
		t.Errorf("metrics: got calls with errors, want none, because probes are no calls:\n%s", all)
	}
}

// TestProbesKeepNoInstance checks that an instance that receives only probes stops like
// an idle instance.
func TestProbesKeepNoInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f", func(f *function.Function) { f.Scale.Idle = 200 * time.Millisecond }))
	w.do("POST", "/function/f", "")
	for _, request := range []string{"GET /healthz", "HEAD /x", "OPTIONS /x"} {
		method, path, _ := strings.Cut(request, " ")
		w.do("POST", "/function/f", "")
		w.until("the idle instance is stopped", func() bool {
			a := w.do(method, "/function/f"+path, "")
			if a.status != 200 && (a.status != 503 || a.reason() != refusal.NotLoaded) {
				t.Errorf("%s: got %+v; want status 200, or 503 not-loaded", request, a)
			}
			return a.status == 503
		})
	}
}

// TestProbesDisplaceNoInstance checks that probes of a function do not displace another
// function's instance.
func TestProbesDisplaceNoInstance(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.GPUs[0].Mem = int64(16 * gpu.GiB) })
	large := func(f *function.Function) { f.GPUMem = 10 * gpu.GiB }
	w.apply(fn("x", large), fn("y", large))
	for range 3 {
		if a := w.do("POST", "/function/x", ""); a.status != 200 || a.header.Get("Gfaas-Instance") != "x.1" {
			t.Errorf("got %+v; want status 200, Gfaas-Instance x.1", a)
		}
		for _, request := range []string{"GET /health", "HEAD /", "OPTIONS /"} {
			method, path, _ := strings.Cut(request, " ")
			if a := w.do(method, "/function/y"+path, ""); a.status != 503 {
				t.Errorf("%s: got %+v; want status 503", request, a)
			}
		}
	}
}

// TestProbeDuringInstanceEnd checks that if the instance ends during a probe, the probe
// is refused as if the function had no instance.
func TestProbeDuringInstanceEnd(t *testing.T) {
	w := newWorld(t, pathHandlers{"/health": hangUp}, nil)
	w.apply(fn("f"))
	w.do("POST", "/function/f", "")
	if a := w.do("GET", "/function/f/health", ""); a.status != 503 || a.reason() != refusal.NotLoaded {
		t.Errorf("got %+v; want status 503, reason %v", a, refusal.NotLoaded)
	}
}
