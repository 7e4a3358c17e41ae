package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// The types of OpenFaaS's API (https://github.com/openfaas/faas/blob/master/api-docs).
// Request fields without a meaning here are ignored, as in OpenFaaS's own providers.

// deployment is a request to deploy a function.
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

// deployed describes a deployed function and its state.
type deployed struct {
	Name              string            `json:"name"`
	Image             string            `json:"image"`
	Namespace         string            `json:"namespace"`
	EnvProcess        string            `json:"envProcess"`
	Replicas          int               `json:"replicas"`          // wanted or existing instances, whichever is more
	AvailableReplicas int               `json:"availableReplicas"` // ready instances
	InvocationCount   int64             `json:"invocationCount"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	CreatedAt         time.Time         `json:"createdAt"` // when this gateway learned of the function
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
	Policy   string   `json:"policy"` // queueing policy; an extension to OpenFaaS's API
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

// maxDeployment limits the body of a request to /system/, in bytes.
const maxDeployment = 1 << 20

// openFaaS serves OpenFaaS's API.
type openFaaS struct{ *API }

func (o *openFaaS) routes() {
	o.handle("GET /system/functions", o.listFunctions)
	o.handle("POST /system/functions", o.deploy)
	o.handle("PUT /system/functions", o.deploy)
	o.handle("DELETE /system/functions", o.removeFunction)
	o.handle("GET /system/function/{name}", o.describeFunction)
	o.handle("POST /system/scale-function/{name}", o.scaleFunction)
	o.handle("GET /system/info", func(*http.Request) (int, any, error) {
		v := version{Release: o.cfg.Version}
		return http.StatusOK, info{provider{"gfaas", "docker", v}, v, runtime.GOARCH, o.cfg.Policy}, nil
	})
	o.handle("GET /system/namespaces", func(*http.Request) (int, any, error) { return http.StatusOK, []string{namespace}, nil })
	o.system.HandleFunc("GET /system/logs", o.serveLogs)
	for _, path := range []string{"/system/secrets", "/system/namespace/"} {
		o.system.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			e := &refusal.Error{Code: refusal.NotImplemented, Message: "this part of OpenFaaS's API is not implemented: " + r.URL.Path,
				Hint: "instead of secrets, set env in the function file; the only namespace is " + namespace}
			o.refuse(w, r, e)
		})
	}
}

// stateFault returns the refusal that corresponds to an error.
func stateFault(err error) *refusal.Error {
	var own *refusal.Error
	var missing *ports.NotFoundError
	var used *ports.InUseError
	var clash *function.ClashError
	var locked interface{ Locked() bool }
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &missing):
		return refusal.UnknownFunction(strings.Join(missing.Names, ", "))
	case errors.As(err, &used):
		return &refusal.Error{Code: refusal.InUse, Message: err.Error(), Hint: used.Hint()}
	case errors.As(err, &clash):
		return &refusal.Error{Code: refusal.NameTaken, Message: err.Error(), Hint: clash.Hint()}
	case errors.As(err, &locked) && locked.Locked(), errors.Is(err, context.DeadlineExceeded):
		return &refusal.Error{Code: refusal.State, Message: err.Error(), Retry: time.Second}
	}
	return &refusal.Error{Status: http.StatusInternalServerError, Code: refusal.State, Message: err.Error()}
}

// decode parses a request's JSON body.
func decode(r *http.Request, into any) error {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err // the *refusal.Error of inbound.Upload
	}
	if err := json.Unmarshal(text, into); err != nil {
		return refusal.Bad("invalid request body: %v", err)
	}
	return nil
}

// isNamespace reports whether each name is empty or the gateway's only namespace.
func isNamespace(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return name != "" && name != namespace })
}

func (o *openFaaS) listFunctions(r *http.Request) (int, any, error) {
	all := []deployed{}
	if !isNamespace(r.URL.Query().Get("namespace")) {
		return http.StatusOK, all, nil
	}
	for _, f := range o.cfg.Dispatcher.Functions() {
		all = append(all, deployedOf(f))
	}
	return http.StatusOK, all, nil
}

// named returns the function in a request's path.
func (o *openFaaS) named(r *http.Request, namespaces ...string) (*dispatch.Function, error) {
	name, _ := splitName(r.PathValue("name"))
	t := o.cfg.Dispatcher.Function(name)
	if t == nil || !isNamespace(append(namespaces, r.URL.Query().Get("namespace"))...) {
		return nil, refusal.UnknownFunction(name)
	}
	return t, nil
}

func (o *openFaaS) describeFunction(r *http.Request) (int, any, error) {
	t, err := o.named(r)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, deployedOf(t.Info()), nil
}

func deployedOf(f dispatch.Info) deployed {
	fn := f.Definition
	return deployed{Name: fn.Name, Image: fn.Image, Namespace: namespace, EnvProcess: fn.Env[envProcess], AvailableReplicas: f.Ready,
		Replicas: max(f.Instances, fn.Scale.Min), InvocationCount: f.Invocations, CreatedAt: f.Since.UTC(), Labels: labelsOf(fn), Annotations: annotationsOf(fn)}
}

// deploy applies the function in a request. PUT only changes an applied function.
func (o *openFaaS) deploy(r *http.Request) (int, any, error) {
	var d deployment
	if err := decode(r, &d); err != nil {
		return 0, nil, err
	}
	if !isNamespace(d.Namespace, r.URL.Query().Get("namespace")) {
		return 0, nil, refusal.Bad("namespace: expected %s, the only namespace", namespace)
	}
	fn, err := d.function()
	if err != nil {
		return 0, nil, refusal.Bad("%v", err)
	}
	if why := o.cfg.Dispatcher.Unsupported(fn); why != "" {
		return 0, nil, refusal.Bad("the gateway cannot start function %s: %s", fn.Name, why)
	}
	status := http.StatusAccepted
	err = o.change(r.Context(), func(ctx context.Context) (function.Function, error) {
		if r.Method != http.MethodPut {
			return fn, o.cfg.Catalog.Apply(ctx, fn)
		}
		status = http.StatusOK
		return fn, o.cfg.Catalog.Change(ctx, fn.Name, func(now *function.Function) error { *now = fn; return nil })
	})
	if err != nil {
		return 0, nil, err
	}
	return status, nil, nil
}

// changeTime is how long a request waits for the gateway to learn of its change. The change
// takes effect in any case.
const changeTime = 2 * time.Second

// change changes a function in the state, in one transaction, and waits until the gateway
// knows the change.
func (o *openFaaS) change(ctx context.Context, do func(context.Context) (function.Function, error)) error {
	limited, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	fn, err := do(limited)
	if err != nil {
		return err
	}
	await(ctx, func() bool {
		t := o.cfg.Dispatcher.Function(fn.Name)
		return t != nil && reflect.DeepEqual(t.Info().Definition, fn)
	})
	return nil
}

// await polls done until it reports true, for at most changeTime.
func await(ctx context.Context, done func() bool) {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	poll(ctx, done)
}

func (o *openFaaS) removeFunction(r *http.Request) (int, any, error) {
	var d deletion
	if err := decode(r, &d); err != nil {
		return 0, nil, err
	}
	name, _ := splitName(d.FunctionName)
	if !isNamespace(d.Namespace, r.URL.Query().Get("namespace")) {
		return 0, nil, refusal.UnknownFunction(name)
	}
	ctx, cancel := context.WithTimeout(r.Context(), stateTime)
	defer cancel()
	if err := o.cfg.Catalog.Remove(ctx, name); err != nil {
		return 0, nil, err
	}
	await(ctx, func() bool { return o.cfg.Dispatcher.Function(name) == nil })
	return http.StatusAccepted, nil, nil
}

// scaleFunction sets scale.min, the number of instances to keep ready. With 0, it also
// stops idle instances.
func (o *openFaaS) scaleFunction(r *http.Request) (int, any, error) {
	var s scaling
	if err := decode(r, &s); err != nil {
		return 0, nil, err
	}
	t, err := o.named(r, s.Namespace)
	if err != nil {
		return 0, nil, err
	}
	err = o.change(r.Context(), func(ctx context.Context) (fn function.Function, err error) {
		err = o.cfg.Catalog.Change(ctx, t.Name(), func(now *function.Function) error {
			switch {
			case s.Replicas == nil || *s.Replicas < 0:
				return refusal.Bad("replicas: expected 0 or more")
			case *s.Replicas > 0 && t.Unstartable() != "":
				return refusal.Bad("replicas: the gateway cannot start function %s: %s", t.Name(), t.Unstartable())
			case *s.Replicas > now.Scale.Max:
				return refusal.Bad("replicas: %d exceeds scale.max of function %s, %d", *s.Replicas, t.Name(), now.Scale.Max)
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
		t.StopIdle()
	}
	return http.StatusAccepted, nil, nil
}
