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

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// TestFaasCLI sends what faas-cli sends, in its order.
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
		{"POST", "/system/scale-function/figlet", `{"replicas":4}`, 400, "scale.max of 3"},
		{"POST", "/system/scale-function/figlet", `{"replicas":-1}`, 400, "expected 0 or more"},
		{"POST", "/system/scale-function/figlet", `{}`, 400, "expected 0 or more"},
		{"POST", "/system/scale-function/nobody", `{"replicas":1}`, 404, `"code":"no-function"`},
		{"POST", "/system/scale-function/figlet", `{"replicas":1,"namespace":"other"}`, 404, `"code":"no-function"`},
		// what is not here
		{"GET", "/system/secrets?namespace=openfaas-fn", "", 501, `"code":"not-implemented"`},
		{"POST", "/system/secrets", `{"name":"x"}`, 501, `"code":"not-implemented"`},
		{"POST", "/system/namespace/other", `{}`, 501, `"code":"not-implemented"`},
		{"GET", "/system/alert", "", 404, `"code":"no-path"`},
		{"PATCH", "/system/functions", "", 405, `"code":"method"`},
		// bad requests
		{"POST", "/system/functions", `{`, 400, "the request's body"},
		{"POST", "/system/functions", `{"service":"x"}`, 400, "image: missing"},
		{"POST", "/system/functions", `{"image":"x"}`, 400, "service: missing"},
		{"POST", "/system/functions", `{"service":"X_y","image":"x"}`, 400, "is not a name"},
		{"POST", "/system/functions", `{"service":"x","image":"x","namespace":"other"}`, 400, "there is no other"},
		{"POST", "/system/functions", `{"service":"x","image":"x","secrets":["s"]}`, 400, "secrets: s"},
		{"POST", "/system/functions", `{"service":"x","image":"x","annotations":{"gfaas.nonsense":"1"}}`, 400, "nonsense: unknown key"},
		{"POST", "/system/functions", `{"service":"x","image":"x","annotations":{"gfaas.slo":""}}`, 400, "annotations.gfaas.slo: empty"},
		{"POST", "/system/functions", `{"service":"x","image":"x","annotations":{"gfaas.slo":"soon"}}`, 400, "slo: "},
		{"POST", "/system/functions", `{"service":"x","image":"x","annotations":{"gfaas.name":"y"}}`, 400, "annotations.gfaas.name"},
		{"POST", "/system/functions", `{"service":"x","image":"x","annotations":{"gfaas.slo":"1s\nimage: y"}}`, 400, "annotations.gfaas.slo"},
		{"POST", "/system/functions", `{"service":"x","image":"x","labels":{"com.openfaas.scale.min":"many"}}`, 400, "scale.min"},
		{"POST", "/system/functions", `{"service":"x","image":"x","labels":{"com.openfaas.scale.min":"9","com.openfaas.scale.max":"2"}}`, 400, "scale.max"},
		{"POST", "/system/functions", `{"service":"x","image":"x","limits":{"memory":"lots"}}`, 400, "limits.memory"},
		{"POST", "/system/functions", `{"service":"x","image":"x","envVars":{"A":"` + strings.Repeat("x", maxDeployment) + `"}}`, 413, "too large"},
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
		l, err := w.catalog.Look(context.Background())
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

// TestDeployedAgain: what is listed of a function can be deployed as it is.
func TestDeployedAgain(t *testing.T) {
	whole := fn("f", func(f *function.Function) {
		f.Image, f.Command, f.GPUMem, f.SLO = "x", []string{"./a", "b c"}, gpu.GiB, 69*time.Millisecond
		f.Model = &function.Model{Name: "m", Size: gpu.MiB}
		f.Limits = function.Limits{Memory: gpu.GiB, Pids: 9}
		f.Restart, f.Inflight, f.Queue, f.Timeout, f.Unmanaged = "always", 4, 7, time.Minute, "stop"
		f.Probes, f.KeepUpgraded = function.Probes{Paths: []string{"/a"}, Methods: []string{}}, true
		f.Labels, f.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d: e"}
	})
	again, err := deployment{Service: "f", Image: "x", Labels: labelsOf(whole), Annotations: annotationsOf(whole)}.function()
	if err != nil || !reflect.DeepEqual(again, whole) {
		t.Errorf("%+v, %v\nwant %+v", again, err, whole)
	}
}

// TestScaleToZero: what is idle stops at once, what runs goes on.
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
		var d deployed
		if err := json.Unmarshal([]byte(w.do("GET", "/system/function/f", "").body), &d); err != nil {
			t.Fatal(err)
		}
		return d.AvailableReplicas
	}
	w.until("two are ready", func() bool { return ready() == 2 })
	answered := make(chan answer, 1)
	go func() {
		a, _ := w.try(context.Background(), "GET", "/function/f/wait", "")
		answered <- a
	}()
	<-began
	if a := w.do("POST", "/system/scale-function/f", `{"replicas":0}`); a.status != 202 {
		t.Errorf("%+v", a)
	}
	w.until("the idle one is gone", func() bool { return ready() == 1 })
	close(release)
	if a := <-answered; a.status != 200 {
		t.Errorf("the call: %+v", a)
	}
	// The rest idles as long as its function lets it.
	if ready() != 1 {
		t.Errorf("%d are ready, want 1", ready())
	}
	if a := w.do("POST", "/system/scale-function/f", `{"replicas":0}`); a.status != 202 {
		t.Errorf("%+v", a)
	}
	w.until("none is left", func() bool { return ready() == 0 })
}

// TestRemoveInUse: a function that gfaas up has instances of stays.
func TestRemoveInUse(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	if err := w.catalog.Reserve(context.Background(), instance.Record{ID: "f-0", Function: "f", State: instance.Starting}); err != nil {
		t.Fatal(err)
	}
	if a := w.do("DELETE", "/system/functions", `{"functionName":"f"}`); a.status != 409 || a.reason() != "in-use" || !strings.Contains(a.body, "gfaas down") {
		t.Errorf("%+v", a)
	}
}

// TestSystemIsGuarded: /system/ wants the password, and no page of another site
// gets in without one.
func TestSystemIsGuarded(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	for _, path := range []string{"/system/functions", "/system/async/x", "/system/logs"} {
		if a := w.do("GET", path, "", "Origin", "http://elsewhere"); a.status != 403 || a.reason() != "auth" {
			t.Errorf("%s of another site: %+v", path, a)
		}
	}
	w = newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Auth = NewCredentials("u", "p") })
	for header, status := range map[string]int{"": 401, "Basic dTpw": 200, "Basic dTpx": 401, "Bearer dTpw": 401} {
		if a := w.do("GET", "/system/functions", "", "Authorization", header); a.status != status {
			t.Errorf("%q: %+v", header, a)
		}
	}
}

// TestPasswordStaysHere: functions see their callers' credentials, never the
// gateway's own, whether calls need them or not.
func TestPasswordStaysHere(t *testing.T) {
	const own, other = "Basic dTpw", "Basic dTpx"
	seen := make(chan string, 1)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			seen <- strings.Join(r.Header["Authorization"], ", ")
		}
	})
	for _, functions := range []bool{false, true} {
		w := newWorld(t, handler, func(c *Config) {
			withAsync(t)(c)
			c.Auth, c.AuthFunctions = NewCredentials("u", "p"), functions
		})
		w.apply(fn("f"))
		for _, c := range []struct{ sent, seen string }{{own, ""}, {"Basic  dTpw", ""}, {other, other}, {"Bearer dTpw", "Bearer dTpw"}, {"", ""}} {
			if functions && c.seen != "" || functions && c.sent == "" {
				continue // it is refused
			}
			for path, status := range map[string]int{"/function/f": 200, "/async-function/f": 202, "/function/f?several": 200} {
				headers := []string{"Authorization", c.sent}
				if strings.Contains(path, "several") && c.seen == "" && c.sent != "" {
					headers = append([]string{"Authorization", other}, headers...)
				}
				if a := w.do("POST", path, "", headers...); a.status != status {
					t.Errorf("%s: %+v", path, a)
					continue
				}
				if got := <-seen; got != c.seen {
					t.Errorf("%s with %q, --auth-functions %v: the function sees %q, want %q", path, c.sent, functions, got, c.seen)
				}
			}
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
	// Followed from before there is an instance.
	lines := w.follow("/system/logs?name=f.openfaas-fn&follow=true")
	if a := w.do("POST", "/function/f", "x"); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	for _, want := range []string{"line 1", "line 2"} {
		var l logLine
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &l) != nil || l.Text != want || l.Name != "f" || l.Namespace != "openfaas-fn" || l.Instance != "f.1" {
			t.Fatalf("%q, %v, want %s", lines.Text(), lines.Err(), want)
		}
	}
	a := w.do("GET", "/system/logs?name=f&tail=1&instance=f.1", "")
	if strings.Count(a.body, "\n") != 1 || !strings.Contains(a.body, `"text":"listening"`) || a.header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("%+v", a)
	}
	if a := w.do("GET", "/system/logs?name=f&tail=0", ""); strings.Count(a.body, "\n") != 21 {
		t.Errorf("%+v", a)
	}
	if a := w.do("GET", "/system/logs?name=f&instance=f.2", ""); a.body != "" {
		t.Errorf("%+v", a)
	}
}

// TestLogsOfFailedStarts: what an instance printed whose start failed is shown, unless its id
// is a running instance's, and followed if the start fails later.
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
			t.Fatalf("%s: %+v", query, a)
		}
		return a.body
	}
	if text := ofLog("f"); strings.Count(text, `"instance":"f.7"`) != 1 || !strings.Contains(text, `"name":"f"`) || !strings.Contains(text, "no such model") || strings.Contains(text, "runs now") {
		t.Errorf("f: %s", text)
	}
	if text := ofLog("f&instance=f.7"); strings.Count(text, "\n") != 1 || !strings.Contains(text, "no such model") {
		t.Errorf("f.7: %s", text)
	}
	if text := ofLog("g") + ofLog("f&instance=f.8"); text != "" {
		t.Errorf("others: %s", text)
	}
	lines := w.follow("/system/logs?name=f&instance=f.9&follow=true")
	fail("f.9", "too late")
	if !lines.Scan() || !strings.Contains(lines.Text(), `"instance":"f.9"`) || !strings.Contains(lines.Text(), "too late") {
		t.Errorf("followed: %q, %v", lines.Text(), lines.Err())
	}
}

// follow requests a path and returns the lines of the answer, which may go on until the
// test ends.
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
