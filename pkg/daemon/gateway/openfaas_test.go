package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// TestFaasCLI sends the requests of faas-cli, in its order.
func TestFaasCLI(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	const deploy = `{"service":"figlet","image":"registry/figlet:1","namespace":"openfaas-fn","envProcess":"figlet","envVars":{"A":"b"},` +
		`"constraints":["node.platform.os == linux"],"secrets":[],"labels":{"com.openfaas.scale.min":"0","com.openfaas.scale.max":"3","com.openfaas.scale.zero-duration":"90s","team":"x"},` +
		`"annotations":{"topic":"text","gfaas.gpu_mem":"512MiB","gfaas.model":"{name: m, size: 98MiB}","gfaas.weight":"2"},"limits":{"memory":"128Mi","cpu":"250m"},"requests":null,"readOnlyRootFilesystem":true}`
	steps := []struct {
		method, path, body string
		status             int
		holds              string
	}{
		// faas-cli deploy
		{"PUT", "/system/functions", deploy, 404, `"code":"no-function"`},
		{"POST", "/system/functions", deploy, 202, ""},
		{"PUT", "/system/functions", deploy, 200, ""},
		// faas-cli list, describe, version, namespaces
		{"GET", "/system/functions?namespace=openfaas-fn", "", 200, `"name":"figlet","image":"registry/figlet:1","namespace":"openfaas-fn","envProcess":"figlet","replicas":0,"availableReplicas":0,"invocationCount":0`},
		{"GET", "/system/functions?namespace=other", "", 200, "[]\n"},
		{"GET", "/system/function/figlet?namespace=openfaas-fn", "", 200, `"topic":"text"`},
		{"GET", "/system/function/figlet.openfaas-fn", "", 200, `"gfaas.gpu_mem":"512MiB"`},
		{"GET", "/system/function/nobody", "", 404, `"code":"no-function"`},
		{"GET", "/system/function/figlet?namespace=other", "", 404, `"code":"no-function"`},
		{"GET", "/system/info", "", 200, `"provider":{"provider":"gfaas"`},
		{"GET", "/system/namespaces", "", 200, `["openfaas-fn"]`},
		// faas-cli invoke
		{"POST", "/function/figlet.openfaas-fn", "hello", 200, "hello"},
		{"GET", "/system/function/figlet", "", 200, `"availableReplicas":1,"invocationCount":1`},
		// faas-cli scale
		{"POST", "/system/scale-function/figlet", `{"serviceName":"figlet","replicas":2,"namespace":"openfaas-fn"}`, 202, ""},
		{"GET", "/system/function/figlet", "", 200, `"com.openfaas.scale.min":"2"`},
		{"POST", "/system/scale-function/figlet", `{"replicas":4}`, 400, "exceeds scale.max of function figlet, 3"},
		{"POST", "/system/scale-function/figlet", `{"replicas":-1}`, 400, "expected 0 or more"},
		{"POST", "/system/scale-function/figlet", `{}`, 400, "expected 0 or more"},
		{"POST", "/system/scale-function/nobody", `{"replicas":1}`, 404, `"code":"no-function"`},
		{"POST", "/system/scale-function/figlet", `{"replicas":1,"namespace":"other"}`, 404, `"code":"no-function"`},
		// requests that the gateway does not implement
		{"GET", "/system/secrets?namespace=openfaas-fn", "", 501, `"code":"not-implemented"`},
		{"POST", "/system/secrets", `{"name":"x"}`, 501, `"code":"not-implemented"`},
		{"POST", "/system/namespace/other", `{}`, 501, `"code":"not-implemented"`},
		{"GET", "/system/alert", "", 404, `"code":"no-path"`},
		{"PATCH", "/system/functions", "", 405, `"code":"method"`},
		// invalid requests
		{"POST", "/system/functions", `{`, 400, "invalid request body"},
		{"POST", "/system/functions", `{"service":"x"}`, 400, "image: missing"},
		{"POST", "/system/functions", `{"image":"x"}`, 400, "service: missing"},
		{"POST", "/system/functions", `{"service":"X_y","image":"x"}`, 400, "is not a name"},
		{"POST", "/system/functions", `{"service":"x","image":"x","namespace":"other"}`, 400, "the only namespace"},
		{"POST", "/system/functions", `{"service":"x","image":"x","secrets":["s"]}`, 400, "secrets: s"},
		{"POST", "/system/functions", `{"service":"x","image":"x","annotations":{"gfaas.nonsense":"1"}}`, 400, "nonsense: unknown key"},
		{"POST", "/system/functions", `{"service":"x","image":"x","annotations":{"gfaas.slo":""}}`, 400, "annotations.gfaas.slo: empty"},
		{"POST", "/system/functions", `{"service":"x","image":"x","annotations":{"gfaas.slo":"soon"}}`, 400, "slo: "},
		{"POST", "/system/functions", `{"service":"x","image":"x","annotations":{"gfaas.name":"y"}}`, 400, "annotations.gfaas.name"},
		{"POST", "/system/functions", `{"service":"x","image":"x","annotations":{"gfaas.slo":"1s\nimage: y"}}`, 400, "annotations.gfaas.slo"},
		{"POST", "/system/functions", `{"service":"x","image":"x","labels":{"com.openfaas.scale.min":"many"}}`, 400, "scale.min"},
		{"POST", "/system/functions", `{"service":"x","image":"x","labels":{"com.openfaas.scale.min":"9","com.openfaas.scale.max":"2"}}`, 400, "scale.max"},
		{"POST", "/system/functions", `{"service":"x","image":"x","limits":{"memory":"lots"}}`, 400, "limits.memory"},
		{"POST", "/system/functions", `{"service":"x","image":"x","envVars":{"A":"` + strings.Repeat("x", 1<<20) + `"}}`, 413, "too large"},
		// faas-cli remove
		{"DELETE", "/system/functions?namespace=other", `{"functionName":"figlet"}`, 404, `"code":"no-function"`},
		{"DELETE", "/system/functions?namespace=openfaas-fn", `{"functionName":"figlet"}`, 202, ""},
		{"DELETE", "/system/functions", `{"functionName":"figlet"}`, 404, `"code":"no-function"`},
		{"POST", "/function/figlet", "", 404, `"code":"no-function"`},
	}
	for _, s := range steps {
		if a := w.do(s.method, s.path, s.body); a.status != s.status || !strings.Contains(a.body, s.holds) || s.holds == "" && a.body != "" {
			t.Fatalf("%s %s %.200s: %d %s, want %d with %s", s.method, s.path, s.body, a.status, a.body, s.status, s.holds)
		}
		if s.method != "POST" || s.status != 202 || s.path != "/system/functions" {
			continue
		}
		l, err := w.catalog.List(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		got, err := l.Function("figlet")
		want := function.Function{
			Name: "figlet", Image: "registry/figlet:1", Env: map[string]string{"A": "b", "fprocess": "figlet"}, Port: 8080, Contract: "auto", Kind: "inference",
			GPUMem: 512 * gpu.MiB, GPUs: 1, Weight: 2, Tenant: "default", Model: &function.Model{Name: "m", Size: 98 * gpu.MiB},
			Scale: function.Scale{Min: 0, Max: 3, Idle: 90 * time.Second}, Inflight: 1, Restart: "no", Unmanaged: "report", Limits: function.Limits{Memory: 128 * gpu.MiB, CPUs: 0.25}, ReadOnly: true,
			Labels: map[string]string{"team": "x"}, Annotations: map[string]string{"topic": "text"},
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("deployed %+v, %v\nwant %+v", got, err, want)
		}
	}
}

// TestScaleToZero checks that scaling to zero stops idle instances at once, and running
// calls continue.
func TestScaleToZero(t *testing.T) {
	release := make(chan struct{})
	began := make(chan struct{}, 2)
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			began <- struct{}{}
			<-release
		}
	}), nil)
	w.apply(fn("f", func(f *function.Function) { f.Scale = function.Scale{Min: 2, Max: 4, Idle: time.Hour} }))
	ready := func() (n int) {
		var d struct{ AvailableReplicas int }
		if err := json.Unmarshal([]byte(w.do("GET", "/system/function/f", "").body), &d); err != nil {
			t.Fatal(err)
		}
		return d.AvailableReplicas
	}
	w.until("two instances are ready", func() bool { return ready() == 2 })
	answered := make(chan answer, 1)
	go func() {
		a, _ := w.try(context.Background(), "GET", "/function/f/wait", "")
		answered <- a
	}()
	<-began
	if a := w.do("POST", "/system/scale-function/f", `{"replicas":0}`); a.status != 202 {
		t.Errorf("got %+v; want status 202", a)
	}
	w.until("the idle instance is stopped", func() bool { return ready() == 1 })
	close(release)
	if a := <-answered; a.status != 200 {
		t.Errorf("the call: got %+v; want status 200", a)
	}
	// Instances beyond that stop after scale.idle.
	if ready() != 1 {
		t.Errorf("%d are ready, want 1", ready())
	}
	if a := w.do("POST", "/system/scale-function/f", `{"replicas":0}`); a.status != 202 {
		t.Errorf("got %+v; want status 202", a)
	}
	w.until("no instance is ready", func() bool { return ready() == 0 })
}

// TestRemoveInUse checks that a function with instances of gfaas up cannot be removed.
func TestRemoveInUse(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	if err := w.catalog.Reserve(context.Background(), instance.Record{ID: "f-0", Function: "f", State: instance.Starting}); err != nil {
		t.Fatal(err)
	}
	if a := w.do("DELETE", "/system/functions", `{"functionName":"f"}`); a.status != 409 || a.reason() != "in-use" || !strings.Contains(a.body, "gfaas down") {
		t.Errorf(`got %+v; want status 409, reason in-use, a body with "gfaas down"`, a)
	}
}

// TestSystemIsGuarded checks that /system/ requires the password. Without one, it refuses
// pages of other sites.
func TestSystemIsGuarded(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	for _, path := range []string{"/system/functions", "/system/async/x", "/system/logs"} {
		if a := w.do("GET", path, "", "Origin", "http://elsewhere"); a.status != 403 || a.reason() != "auth" {
			t.Errorf("%s of another site: got %+v; want status 403, reason auth", path, a)
		}
	}
	w = newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Auth = api.NewCredentials("u", "p") })
	for header, status := range map[string]int{"": 401, "Basic dTpw": 200, "Basic dTpx": 401, "Bearer dTpw": 401} {
		if a := w.do("GET", "/system/functions", "", "Authorization", header); a.status != status {
			t.Errorf("%q: got %+v; want status %v", header, a, status)
		}
	}
}

func TestSystemLogs(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	for path, want := range map[string]string{
		"/system/logs?name=nobody":         "404 no-function",
		"/system/logs":                     "404 no-function",
		"/system/logs?name=f&namespace=x":  "404 no-function",
		"/system/logs?name=f&tail=x":       "400 bad-request",
		"/system/logs?name=f&tail=1x":      "400 bad-request",
		"/system/logs?name=f&since=monday": "400 bad-request",
		"/system/logs?name=f&follow=maybe": "400 bad-request",
		"/system/logs?name=f&follow=false": "200 ",
	} {
		if a := w.do("GET", path, ""); fmt.Sprintf("%d %s", a.status, a.reason()) != want {
			t.Errorf("%s: %d %s, want %s", path, a.status, a.body, want)
		}
	}
	// The caller follows the log before an instance exists.
	lines := w.follow("/system/logs?name=f.openfaas-fn&follow=true")
	if a := w.do("POST", "/function/f", "x"); a.status != 200 {
		t.Fatalf("got %+v; want status 200", a)
	}
	for _, want := range []string{"line 1", "line 2"} {
		var l struct{ Name, Namespace, Instance, Text string }
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &l) != nil || l.Text != want || l.Name != "f" || l.Namespace != "openfaas-fn" || l.Instance != "f.1" {
			t.Fatalf("line of the logs: got %q, %v; want %s", lines.Text(), lines.Err(), want)
		}
	}
	a := w.do("GET", "/system/logs?name=f&tail=1&instance=f.1", "")
	if strings.Count(a.body, "\n") != 1 || !strings.Contains(a.body, `"text":"listening"`) || a.header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("got %+v; want one line of x-ndjson with the text listening", a)
	}
	if a := w.do("GET", "/system/logs?name=f&tail=0", ""); strings.Count(a.body, "\n") != 21 {
		t.Errorf("got %+v; want 21 lines", a)
	}
	if a := w.do("GET", "/system/logs?name=f&instance=f.2", ""); a.body != "" {
		t.Errorf("got %+v; want no body", a)
	}
}

// TestLogsOfFailedStarts checks that the logs include the output of an instance whose
// start failed, unless a running instance has its ID. A follower also receives the output
// of starts that fail later.
func TestLogsOfFailedStarts(t *testing.T) {
	var mu sync.Mutex
	var failed []FailedStart
	fail := func(id, text string) {
		mu.Lock()
		defer mu.Unlock()
		failed = append(failed, FailedStart{ID: id, Logs: func(context.Context, ports.LogOptions) ports.LogLines {
			return func(yield func(ports.LogLine, error) bool) { yield(ports.LogLine{Text: text}, nil) }
		}})
	}
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
		c.FailedStarts = func(function string) []FailedStart {
			mu.Lock()
			defer mu.Unlock()
			if function != "f" {
				return nil
			}
			return slices.Clone(failed)
		}
	})
	w.apply(fn("f"), fn("g"))
	w.answers("f")
	fail("f.7", "no such model")
	fail("f.1", "of an instance that runs now")
	ofLog := func(query string) string {
		a := w.do("GET", "/system/logs?name="+query, "")
		if a.status != 200 {
			t.Fatalf("%s: got %+v; want status 200", query, a)
		}
		return a.body
	}
	if text := ofLog("f"); strings.Count(text, `"instance":"f.7"`) != 1 || !strings.Contains(text, `"name":"f"`) || !strings.Contains(text, "no such model") || strings.Contains(text, "runs now") {
		t.Errorf("log of f: got %s, want one line of f.7 and no line of f.8", text)
	}
	if text := ofLog("f&instance=f.7"); strings.Count(text, "\n") != 1 || !strings.Contains(text, "no such model") {
		t.Errorf("log of f.7: got %s, want one line", text)
	}
	if text := ofLog("g") + ofLog("f&instance=f.8"); text != "" {
		t.Errorf("log of g and f.8: got %s, want none", text)
	}
	lines := w.follow("/system/logs?name=f&instance=f.9&follow=true")
	fail("f.9", "too late")
	if !lines.Scan() || !strings.Contains(lines.Text(), `"instance":"f.9"`) || !strings.Contains(lines.Text(), "too late") {
		t.Errorf("followed log: got %q, %v; want the line of f.9", lines.Text(), lines.Err())
	}
}

// follow requests a path and returns the lines of the answer, which may continue until
// the test ends.
func (w *world) follow(path string) *bufio.Scanner {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	w.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", w.url(path), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	transport := &http.Transport{}
	w.t.Cleanup(transport.CloseIdleConnections)
	stream, err := transport.RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = stream.Body.Close() })
	return bufio.NewScanner(stream.Body)
}

// A function that the gateway can never start is refused when it is deployed, called or scaled, and scale.min starts
// none of its instances.
func TestUnsupportedFunction(t *testing.T) {
	const why = "it spans several GPUs"
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
		c.GPUs = []GPU{{Name: "a/0"}, {Name: "b/0"}}
		c.Unsupported = func(fn function.Function) string {
			if fn.GPUs > 1 {
				return why
			}
			return ""
		}
	})
	w.apply(fn("wide", func(f *function.Function) { f.GPUs, f.Scale.Min = 2, 1 }))
	w.apply(fn("f"))
	for _, step := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/function/f", "x", 200, "x"}, // the policy has handled scale.min
		{"POST", "/system/functions", `{"service":"other","image":"x","annotations":{"gfaas.gpus":"2"}}`, 400, "cannot start function other: " + why},
		{"PUT", "/system/functions", `{"service":"f","image":"x","annotations":{"gfaas.gpus":"2"}}`, 400, "cannot start function f: " + why},
		{"POST", "/system/scale-function/wide", `{"replicas":1}`, 400, why},
		{"POST", "/function/wide", "x", 502, "cannot start function wide: " + why},
		{"POST", "/function/f", "x", 200, "x"},
	} {
		a := w.do(step.method, step.path, step.body)
		if a.status != step.status || !strings.Contains(a.body, step.want) {
			t.Errorf("%s %s %s: %d %s, want %d with %q", step.method, step.path, step.body, a.status, a.body, step.status, step.want)
		}
	}
	for _, i := range w.Status().Instances {
		if i.Function == "wide" {
			t.Errorf("instance %+v of a function that the gateway cannot start", i)
		}
	}
}
