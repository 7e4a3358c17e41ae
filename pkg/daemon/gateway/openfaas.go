package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// What OpenFaaS's clients ask and are told
// (https://github.com/openfaas/faas/blob/master/api-docs). Of what they send,
// fields that mean nothing here are ignored, as OpenFaaS's own providers do.

// deployment is what a function is to be.
type deployment struct {
	Service     string            `json:"service"`
	Image       string            `json:"image"`
	Namespace   string            `json:"namespace"`
	EnvProcess  string            `json:"envProcess"`
	EnvVars     map[string]string `json:"envVars"`
	Secrets     []string          `json:"secrets"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	Limits      *resources        `json:"limits"`
	ReadOnly    bool              `json:"readOnlyRootFilesystem"`
}

type resources struct {
	Memory string `json:"memory"`
	CPU    string `json:"cpu"`
}

// deployed is what a function is, and how it stands.
type deployed struct {
	Name              string            `json:"name"`
	Image             string            `json:"image"`
	Namespace         string            `json:"namespace"`
	EnvProcess        string            `json:"envProcess"`
	Replicas          int               `json:"replicas"`          // instances there are to be
	AvailableReplicas int               `json:"availableReplicas"` // instances that are ready
	InvocationCount   int64             `json:"invocationCount"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	CreatedAt         time.Time         `json:"createdAt"` // since when this gateway knows it
}

type deletion struct {
	FunctionName string `json:"functionName"`
	Namespace    string `json:"namespace"`
}

type scaling struct {
	Replicas  *int   `json:"replicas"`
	Namespace string `json:"namespace"`
}

type info struct {
	Provider provider `json:"provider"`
	Version  version  `json:"version"`
	Arch     string   `json:"arch"`
	Policy   string   `json:"policy"` // of the queues; OpenFaaS has none
}

type provider struct {
	Name          string  `json:"provider"`
	Orchestration string  `json:"orchestration"`
	Version       version `json:"version"`
}

type version struct {
	Release string `json:"release"`
	SHA     string `json:"sha"`
}

// maxDeployment is the largest body of a request to /system/.
const maxDeployment = 1 << 20

// deploymentSize returns the largest size that the body of a request to /system/ may have.
func deploymentSize(r *http.Request) int64 {
	if r.ContentLength >= 0 {
		return min(r.ContentLength, maxDeployment)
	}
	return maxDeployment
}

func (g *Gateway) openFaaSRoutes() {
	handle := func(pattern string, do func(r *http.Request) (status int, value any, err error)) {
		g.system.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if r.Body != nil && r.Body != http.NoBody {
				from := g.upload(w, r, maxDeployment)
				defer from.keep(0)
				if fault := g.open(r.Context(), from, nil, deploymentSize(r)); fault != nil {
					g.refuse(w, r, fault)
					return
				}
				r.Body = from
			}
			status, value, err := do(r)
			switch {
			case err != nil:
				g.refuse(w, r, stateFault(err))
			case value == nil:
				w.WriteHeader(status)
			default:
				writeJSON(w, status, value)
			}
		})
	}
	handle("GET /system/functions", g.listFunctions)
	handle("POST /system/functions", g.deploy)
	handle("PUT /system/functions", g.deploy)
	handle("DELETE /system/functions", g.removeFunction)
	handle("GET /system/function/{name}", g.describeFunction)
	handle("POST /system/scale-function/{name}", g.scaleFunction)
	handle("GET /system/info", func(*http.Request) (int, any, error) {
		v := version{Release: g.cfg.Version}
		return http.StatusOK, info{provider{"gfaas", "docker", v}, v, runtime.GOARCH, g.cfg.Policy.Policy}, nil
	})
	handle("GET /system/namespaces", func(*http.Request) (int, any, error) { return http.StatusOK, []string{namespace}, nil })
	g.system.HandleFunc("GET /system/logs", g.serveLogs)
	for _, path := range []string{"/system/secrets", "/system/namespace/"} {
		g.system.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			e := &Error{Status: http.StatusNotImplemented, Code: codeNotHere, Message: r.URL.Path + " is of OpenFaaS's API, and not here",
				Hint: "set env in a function's file; there is one namespace, " + namespace}
			g.refuse(w, r, e)
		})
	}
}

// stateFault is the answer that an error is.
func stateFault(err error) *Error {
	var own *Error
	var missing *ports.NotFoundError
	var used *ports.InUseError
	var locked interface{ Locked() bool }
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &missing):
		return noFunction(strings.Join(missing.Names, ", "))
	case errors.As(err, &used):
		return &Error{Status: http.StatusConflict, Code: codeInUse, Message: err.Error(), Hint: used.Hint()}
	case errors.As(err, &locked) && locked.Locked(), errors.Is(err, context.DeadlineExceeded):
		return &Error{Status: http.StatusServiceUnavailable, Code: codeState, Message: err.Error(), Retry: time.Second}
	}
	return &Error{Status: http.StatusInternalServerError, Code: codeState, Message: err.Error()}
}

// decode reads a request's JSON.
func decode(r *http.Request, into any) error {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err // the sender's *Error
	}
	if err := json.Unmarshal(text, into); err != nil {
		return badRequest("the request's body: %v", err)
	}
	return nil
}

// here says whether all of these namespaces are the one there is; empty is it.
func here(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return name != "" && name != namespace })
}

func (g *Gateway) listFunctions(r *http.Request) (int, any, error) {
	all := []deployed{}
	if !here(r.URL.Query().Get("namespace")) {
		return http.StatusOK, all, nil
	}
	e := &g.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.inOrder() {
		if !t.gone {
			all = append(all, e.deployed(t))
		}
	}
	slices.SortFunc(all, func(a, b deployed) int { return cmp.Compare(a.Name, b.Name) })
	return http.StatusOK, all, nil
}

// named is the function that a request's path names.
func (g *Gateway) named(r *http.Request, namespaces ...string) (*target, error) {
	name, _ := splitName(r.PathValue("name"))
	t := (*g.names.Load())[name]
	if t == nil || !here(append(namespaces, r.URL.Query().Get("namespace"))...) {
		return nil, noFunction(name)
	}
	return t, nil
}

func (g *Gateway) describeFunction(r *http.Request) (int, any, error) {
	t, err := g.named(r)
	if err != nil {
		return 0, nil, err
	}
	e := &g.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	return http.StatusOK, e.deployed(t), nil
}

// deployed is how a function stands. Locked.
func (e *engine) deployed(t *target) deployed {
	ready := 0
	for _, s := range e.servers {
		if s.target == t && s.state == serverReady {
			ready++
		}
	}
	fn := t.function
	d := deployed{Name: t.name, Image: fn.Image, Namespace: namespace, EnvProcess: fn.Env[envProcess], AvailableReplicas: ready,
		Replicas: max(t.instances, fn.Scale.Min), CreatedAt: t.since.UTC(), Labels: labelsOf(fn), Annotations: annotationsOf(fn)}
	for _, n := range t.found {
		d.InvocationCount += n
	}
	return d
}

// deploy makes a function what a request says. PUT is for one that is there.
func (g *Gateway) deploy(r *http.Request) (int, any, error) {
	var d deployment
	if err := decode(r, &d); err != nil {
		return 0, nil, err
	}
	if !here(d.Namespace, r.URL.Query().Get("namespace")) {
		return 0, nil, badRequest("namespace: expected %s: there is no other", namespace)
	}
	fn, err := d.function()
	if err != nil {
		return 0, nil, badRequest("%v", err)
	}
	status := http.StatusAccepted
	err = g.change(r.Context(), func(ctx context.Context) (function.Function, error) {
		if r.Method != http.MethodPut {
			return fn, g.cfg.Catalog.Apply(ctx, fn)
		}
		status = http.StatusOK
		return fn, g.cfg.Catalog.Change(ctx, fn.Name, func(now *function.Function) error { *now = fn; return nil })
	})
	if err != nil {
		return 0, nil, err
	}
	return status, nil, nil
}

// known is how long a request waits for the gateway to know what it changed; it
// does so later all the same.
const known = 2 * time.Second

// change changes a function in the state, in one transaction, and returns when the
// gateway knows it as it is then.
func (g *Gateway) change(ctx context.Context, do func(context.Context) (function.Function, error)) error {
	limited, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	fn, err := do(limited)
	if err != nil {
		return err
	}
	g.await(ctx, func() bool {
		t := (*g.names.Load())[fn.Name]
		if t == nil {
			return false
		}
		g.engine.mu.Lock()
		defer g.engine.mu.Unlock()
		return reflect.DeepEqual(t.function, fn)
	})
	return nil
}

// await waits a while for something to be so.
func (g *Gateway) await(ctx context.Context, so func() bool) {
	for deadline := time.Now().Add(known); !so() && time.Now().Before(deadline); {
		if !pause(ctx, 5*time.Millisecond) {
			return
		}
	}
}

func (g *Gateway) removeFunction(r *http.Request) (int, any, error) {
	var d deletion
	if err := decode(r, &d); err != nil {
		return 0, nil, err
	}
	name, _ := splitName(d.FunctionName)
	if !here(d.Namespace, r.URL.Query().Get("namespace")) {
		return 0, nil, noFunction(name)
	}
	ctx, cancel := context.WithTimeout(r.Context(), stateTime)
	defer cancel()
	if err := g.cfg.Catalog.Remove(ctx, name); err != nil {
		return 0, nil, err
	}
	g.await(ctx, func() bool { return (*g.names.Load())[name] == nil })
	return http.StatusAccepted, nil, nil
}

// scaleFunction sets how many instances are kept ready. With none those that are
// idle stop.
func (g *Gateway) scaleFunction(r *http.Request) (int, any, error) {
	var s scaling
	if err := decode(r, &s); err != nil {
		return 0, nil, err
	}
	t, err := g.named(r, s.Namespace)
	if err != nil {
		return 0, nil, err
	}
	err = g.change(r.Context(), func(ctx context.Context) (fn function.Function, err error) {
		err = g.cfg.Catalog.Change(ctx, t.name, func(now *function.Function) error {
			switch {
			case s.Replicas == nil || *s.Replicas < 0:
				return badRequest("replicas: expected 0 or more")
			case *s.Replicas > 0 && now.GPUs > 1:
				return badRequest("replicas: function %s spans %d GPUs: its instances are those of a plan (gfaas up)", t.name, now.GPUs)
			case *s.Replicas > now.Scale.Max:
				return badRequest("replicas: %d, and function %s has a scale.max of %d", *s.Replicas, t.name, now.Scale.Max)
			}
			now.Scale.Min = *s.Replicas
			fn = *now
			return nil
		})
		return fn, err
	})
	if err != nil {
		return 0, nil, err
	}
	if *s.Replicas == 0 {
		g.engine.stopIdle(t)
	}
	return http.StatusAccepted, nil, nil
}

// stopIdle stops the instances of a function that have nothing to do: for the time
// of a step they need not have idled for long.
func (e *engine) stopIdle(t *target) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.gone {
		return
	}
	now := t.spec
	now.Min, now.Idle = 0, 1
	usual := e.spec(t)
	t.spec = usual
	e.step(queue.Event{Kind: queue.FunctionSet, Function: t.number, Spec: &now})
	e.step(queue.Event{Kind: queue.FunctionSet, Function: t.number, Spec: &usual})
}

// serveLogs answers with what a function's instances print, a JSON object a line.
func (g *Gateway) serveLogs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	wanted, err := logOptions(q.Get("tail"), q.Get("since"), q.Get("follow"))
	if err != nil {
		g.refuse(w, r, stateFault(err))
		return
	}
	name, _ := splitName(q.Get("name"))
	t := (*g.names.Load())[name]
	if t == nil || !here(q.Get("namespace")) {
		g.refuse(w, r, noFunction(name))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	_ = control.Flush()
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	for l := range g.logs(r.Context(), t, q.Get("instance"), wanted) {
		line.Reset()
		_ = enc.Encode(l)
		_ = control.SetWriteDeadline(time.Now().Add(logPause))
		if _, err := w.Write(line.Bytes()); err != nil {
			return
		}
		if wanted.Follow && control.Flush() != nil {
			return
		}
	}
}

// logPause is how long whoever reads a log may take for a line.
const logPause = 30 * time.Second

func logOptions(tail, since, follow string) (o ports.LogOptions, err error) {
	o.Tail = -1
	if tail != "" {
		if _, err := fmt.Sscanf(tail+"\n", "%d\n", &o.Tail); err != nil {
			return o, badRequest("tail: expected a number of lines")
		}
		if o.Tail == 0 {
			o.Tail = -1 // to OpenFaaS none is no limit
		}
	}
	if since != "" {
		if o.Since, err = time.Parse(time.RFC3339Nano, since); err != nil {
			return o, badRequest("since: expected a time like 2026-01-02T15:04:05Z")
		}
	}
	switch follow {
	case "true", "1":
		o.Follow = true
	case "", "false", "0":
	default:
		return o, badRequest("follow: expected true or false")
	}
	return o, nil
}
