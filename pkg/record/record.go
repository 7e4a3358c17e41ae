// Package record writes down what a queueing policy was told and what it decided,
// as JSON lines, and has it decide again.
//
// The first line says what policy it was, and how it was set. Then, for each call
// of the policy, a step, come the events it was told and the decisions they led
// to. Functions have their names, times are in milliseconds to the nanosecond, so
// that the same policy comes to the same decisions.
package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/trace"
)

// Version is that of the format.
const Version = 1

// Header is the first line.
type Header struct {
	Version     int               `json:"gfaas_record"`
	Policy      string            `json:"policy"`
	GPUs        int               `json:"gpus"`
	Concurrency int               `json:"concurrency"`
	Pool        int               `json:"pool"`
	GPUMemMiB   float64           `json:"gpu_mem_mib"` // of each, where that is the same for all
	Set         map[string]string `json:"set"`         // parameters, as --set has them
	Functions   []Costs           `json:"functions"`   // what was known of them at the start
}

// Costs is what a function costs, as function costs have it.
type Costs struct {
	Function string  `json:"function"`
	WarmMS   Millis  `json:"warm_ms"`
	ColdMS   Millis  `json:"cold_ms"`
	LoadMS   Millis  `json:"load_ms"`
	MemMiB   float64 `json:"mem_mib"`
	Weight   float64 `json:"weight"`
	Tenant   string  `json:"tenant,omitempty"`
	Model    string  `json:"model,omitempty"`
}

// Millis is a duration that is written in milliseconds, exactly.
type Millis time.Duration

// MarshalJSON writes a number.
func (m Millis) MarshalJSON() ([]byte, error) { return []byte(trace.Millis(time.Duration(m))), nil }

// UnmarshalJSON reads a number of at most six decimals.
func (m *Millis) UnmarshalJSON(text []byte) error {
	whole, part, _ := strings.Cut(string(text), ".")
	negative := strings.HasPrefix(whole, "-")
	if len(part) > 6 {
		return fmt.Errorf("%s: expected milliseconds with at most six decimals", text)
	}
	ms, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || max(ms, -ms) > math.MaxInt64/int64(time.Millisecond)-1 {
		return fmt.Errorf("%s: expected milliseconds", text)
	}
	ns := int64(0)
	if part != "" {
		if ns, err = strconv.ParseInt(part+"000000"[len(part):], 10, 64); err != nil || ns < 0 {
			return fmt.Errorf("%s: expected milliseconds", text)
		}
	}
	if negative {
		ns = -ns
	}
	*m = Millis(ms*int64(time.Millisecond) + ns)
	return nil
}

// Decision is a line about something that a policy decided.
type Decision struct {
	Step       *int64        `json:"step,omitempty"` // of a record
	TimeMS     Millis        `json:"time_ms"`
	Action     string        `json:"action"`
	Function   string        `json:"function,omitempty"`
	Invocation *int64        `json:"invocation,omitempty"` // its place in the trace, from 0
	GPU        *int32        `json:"gpu,omitempty"`
	Container  *residency.ID `json:"container,omitempty"`
	Start      string        `json:"start,omitempty"`
	FalseMiss  bool          `json:"false_miss,omitempty"`
	WaitedMS   *Millis       `json:"waited_ms,omitempty"`
	ExpectedMS *Millis       `json:"expected_ms,omitempty"`
	AtMS       *Millis       `json:"at_ms,omitempty"`
	Reason     string        `json:"reason"`
	Value      float64       `json:"value,omitempty"` // what the reason compares
	Waiting    int32         `json:"waiting,omitempty"`
	InFlight   int32         `json:"in_flight,omitempty"`
}

// Decide is the line about an action; name is whose a number of a function is.
func Decide(now time.Duration, a *queue.Action, name func(int32) string) Decision {
	d := Decision{TimeMS: Millis(now), Action: a.Kind.String(), Reason: a.Reason.Rule, Value: a.Reason.Value,
		Waiting: a.Reason.Waiting, InFlight: a.Reason.InFlight}
	if a.Kind == queue.Wake {
		d.AtMS = new(Millis(a.At))
		return d
	}
	d.Function = name(a.Function)
	if a.GPU >= 0 {
		d.GPU = new(a.GPU)
	}
	if a.Instance != residency.None {
		d.Container = new(a.Instance)
	}
	switch a.Kind {
	case queue.Run:
		d.Start, d.FalseMiss, d.ExpectedMS = a.Start.String(), a.Elsewhere, new(Millis(a.Expected))
		fallthrough
	case queue.Reject, queue.Assign:
		d.Invocation, d.WaitedMS = new(a.ID), new(Millis(now-a.Arrived))
	default:
	}
	return d
}

// kinds are what events are called.
var kinds = []string{
	queue.Completed: "completed", queue.Failed: "failed", queue.Started: "started", queue.Cancelled: "cancelled", queue.Arrived: "arrived",
	queue.Woke: "woke", queue.Used: "used", queue.FunctionSet: "function", queue.FunctionGone: "function-gone", queue.Learned: "learned",
	queue.GPUSet: "gpu", queue.GPUGone: "gpu-gone", queue.Ready: "ready", queue.Adopted: "adopted", queue.Lost: "lost", queue.Moved: "moved",
	queue.Occupied: "occupied", queue.Measured: "measured",
}

// Event is a line about something that a policy was told. What is at its zero is
// left out.
type Event struct {
	Step       int64        `json:"step"`
	TimeMS     Millis       `json:"time_ms"`
	Event      string       `json:"event"`
	Function   string       `json:"function,omitempty"`
	Invocation *int64       `json:"invocation,omitempty"`
	GPU        *int32       `json:"gpu,omitempty"`
	Container  residency.ID `json:"container,omitempty"`
	ExecutedMS Millis       `json:"executed_ms,omitempty"`
	ArrivedMS  Millis       `json:"arrived_ms,omitempty"`
	DeadlineMS Millis       `json:"deadline_ms,omitempty"`
	To         string       `json:"to,omitempty"`
	Starting   bool         `json:"starting,omitempty"`
	Short      bool         `json:"short,omitempty"` // the start failed for want of GPU memory
	Again      bool         `json:"again,omitempty"`
	Fault      bool         `json:"fault,omitempty"`
	Renew      bool         `json:"renew,omitempty"`
	Pinned     bool         `json:"pinned,omitempty"`
	Busy       float64      `json:"busy,omitempty"`
	Mem        int64        `json:"mem_bytes,omitempty"` // occupied, measured, adopted
	Stays      int64        `json:"stays_bytes,omitempty"`
	EachMS     Millis       `json:"each_ms,omitempty"` // of an instance of a plan: what a call takes on it
	Spec       *Spec        `json:"spec,omitempty"`
	Machine    *Machine     `json:"machine,omitempty"`
}

// Spec is what a policy is told of a function.
type Spec struct {
	WarmMS   Millis  `json:"warm_ms"`
	ColdMS   Millis  `json:"cold_ms"`
	LoadMS   Millis  `json:"load_ms"`
	Mem      int64   `json:"mem_bytes"`
	Need     int64   `json:"need_bytes,omitempty"` // what an instance was measured to take
	Weight   float64 `json:"weight"`
	Model    int32   `json:"model"`  // a number of older gateways'; each function has instances of its own
	Tenant   int32   `json:"tenant"` // a number
	Queue    int32   `json:"queue,omitempty"`
	Inflight int32   `json:"inflight,omitempty"`
	Min      int32   `json:"min,omitempty"`
	Max      int32   `json:"max,omitempty"`
	Slice    float64 `json:"slice,omitempty"`
	IdleMS   Millis  `json:"idle_ms,omitempty"`
}

// Machine is what a policy is told of a GPU.
type Machine struct {
	Slots int   `json:"slots"`
	Mem   int64 `json:"mem_bytes"`
}

// carry says what else than its kind an event has.
var carry = [...]struct{ function, invocation, gpu, container bool }{
	queue.Completed: {true, true, false, true}, queue.Failed: {true, true, false, true}, queue.Started: {true, true, false, true},
	queue.Cancelled: {true, true, false, false}, queue.Arrived: {true, true, false, false}, queue.Used: {gpu: true},
	queue.FunctionSet: {function: true}, queue.FunctionGone: {function: true}, queue.Learned: {function: true},
	queue.GPUSet: {gpu: true}, queue.GPUGone: {gpu: true}, queue.Ready: {function: true, container: true},
	queue.Adopted: {true, false, true, true}, queue.Lost: {function: true, container: true}, queue.Moved: {function: true, container: true},
	queue.Occupied: {gpu: true}, queue.Measured: {function: true, container: true},
}

// Tell is the line about an event.
func Tell(step int64, now time.Duration, ev *queue.Event, name func(int32) string) Event {
	has := carry[ev.Kind]
	e := Event{Step: step, TimeMS: Millis(now), Event: kinds[ev.Kind], ExecutedMS: Millis(ev.Executed), DeadlineMS: Millis(ev.Deadline),
		Starting: ev.Starting, Short: ev.Short, Again: ev.Again, Fault: ev.Fault, Renew: ev.Renew, Pinned: ev.Pinned, Busy: ev.Busy, Mem: ev.Mem, Stays: ev.Stays}
	if has.function {
		e.Function = name(ev.Function)
	}
	if has.invocation {
		e.Invocation = new(ev.ID)
	}
	if has.gpu {
		e.GPU = new(ev.GPU)
	}
	if has.container {
		e.Container = ev.Instance
	}
	switch ev.Kind {
	case queue.Arrived:
		e.ArrivedMS = Millis(ev.At)
	case queue.Adopted, queue.Moved:
		e.To = ev.To.String()
		e.each(ev.Spec)
	case queue.Ready:
		e.each(ev.Spec)
	case queue.FunctionSet, queue.Learned:
		f := ev.Spec
		e.Spec = &Spec{Millis(f.Warm), Millis(f.Cold), Millis(f.Load), f.Mem, f.Need, f.Weight, f.Model, f.Tenant, f.Queue, f.Inflight, f.Min, f.Max, f.Slice, Millis(f.Idle)}
	case queue.GPUSet:
		e.Machine = &Machine{ev.Machine.Slots, ev.Machine.Mem}
	default:
	}
	return e
}

// each notes what a call takes on an instance of a plan, if that is known.
func (e *Event) each(spec *queue.Function) {
	if spec != nil {
		e.EachMS = Millis(spec.Warm)
	}
}

// event is what a line says, as the policy is told it.
func (e *Event) event(number func(string) int32) (queue.Event, error) {
	kind := slices.Index(kinds, e.Event)
	if kind < 0 {
		return queue.Event{}, fmt.Errorf("there is no event %q", e.Event)
	}
	ev := queue.Event{Kind: queue.EventKind(kind), Instance: e.Container, At: time.Duration(e.ArrivedMS), Deadline: time.Duration(e.DeadlineMS),
		Executed: time.Duration(e.ExecutedMS), Starting: e.Starting, Short: e.Short, Again: e.Again, Fault: e.Fault, Renew: e.Renew, Pinned: e.Pinned, Busy: e.Busy, Mem: e.Mem, Stays: e.Stays}
	has := carry[kind]
	switch {
	case has.function && e.Function == "":
		return ev, fmt.Errorf("function: missing")
	case has.invocation && e.Invocation == nil:
		return ev, fmt.Errorf("invocation: missing")
	case has.gpu && (e.GPU == nil || *e.GPU < 0 || *e.GPU >= maxGPUs):
		return ev, fmt.Errorf("gpu: expected a number from 0 to %d", maxGPUs-1)
	case ev.Kind == queue.GPUSet && (e.Machine == nil || e.Machine.Slots < 1 || e.Machine.Slots > maxSlots || e.Machine.Mem < 0):
		return ev, fmt.Errorf("machine: expected slots and mem_bytes")
	case (ev.Kind == queue.FunctionSet || ev.Kind == queue.Learned) && !e.Spec.sound():
		return ev, fmt.Errorf("spec: expected what the function costs")
	case e.Mem < 0:
		return ev, fmt.Errorf("mem_bytes: expected 0 or more")
	case e.Stays < 0 || e.Stays > e.Mem:
		return ev, fmt.Errorf("stays_bytes: expected 0 to mem_bytes")
	}
	if has.function {
		ev.Function = number(e.Function)
	}
	if has.invocation {
		ev.ID = *e.Invocation
	}
	if has.gpu {
		ev.GPU = *e.GPU
	}
	if e.To == residency.GPUWarm.String() {
		ev.To = residency.GPUWarm
	} else if e.To != "" {
		ev.To = residency.HostWarm
	}
	if f := e.Spec; f != nil {
		ev.Spec = &queue.Function{Name: e.Function, Warm: time.Duration(f.WarmMS), Cold: time.Duration(f.ColdMS), Load: time.Duration(f.LoadMS),
			Mem: f.Mem, Need: f.Need, Weight: f.Weight, Tenant: f.Tenant, Queue: f.Queue, Inflight: f.Inflight, Min: f.Min, Max: f.Max,
			Slice: f.Slice, Idle: time.Duration(f.IdleMS)}
	}
	if e.EachMS > 0 && (ev.Kind == queue.Adopted || ev.Kind == queue.Ready) {
		ev.Spec = &queue.Function{Warm: time.Duration(e.EachMS)}
	}
	if m := e.Machine; m != nil {
		ev.Machine = &queue.GPU{Slots: m.Slots, Mem: m.Mem}
	}
	return ev, nil
}

// Bounds of what a record may say, which keep a damaged one from taking all memory.
const (
	maxGPUs   = 1 << 16
	maxSlots  = 1 << 16
	maxNumber = 1 << 20 // of a tenant or model
)

// sound says whether a policy can be told so.
func (s *Spec) sound() bool {
	return s != nil && s.WarmMS >= 0 && s.ColdMS >= 0 && s.LoadMS >= 0 && s.Mem >= 0 && s.Need >= 0 && s.Weight > 0 && s.Slice >= 0 && s.Slice <= 1 &&
		s.Model >= 0 && s.Model < maxNumber && s.Tenant >= 0 && s.Tenant < maxNumber && s.IdleMS >= 0 &&
		min(s.Queue, s.Inflight, s.Min, s.Max) >= 0 && max(s.Inflight, s.Min, s.Max) < maxNumber
}

// Append writes a line.
func Append(to *bytes.Buffer, line any) error {
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	return enc.Encode(line)
}
