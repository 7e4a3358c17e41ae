// Package record writes the input and the decisions of a queueing policy (pkg/policy/queue)
// as JSON lines, and replays them. The gateway (pkg/daemon/gateway/dispatch) and the
// simulator (pkg/sim) write such lines; gfaas-sim replays records.
//
// The first line, a Header, names the policy and its parameters. After that, each step of
// the policy consists of its events (Event) and the decisions that followed (Decision).
// Records name functions, and give times in milliseconds, exact to the nanosecond, so that
// the same policy makes the same decisions in a replay.
package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
	"github.com/gfaas/gfaas/pkg/trace"
)

// Version is the version of the format. In version 1, the reason of a decision was a sentence, and
// "value" the number that it compared.
const Version = 2

// Header is the first line of a record.
type Header struct {
	Version     int               `json:"gfaas_record"`
	Policy      string            `json:"policy"`
	GPUs        int               `json:"gpus"`
	Concurrency int               `json:"concurrency"`
	Pool        int               `json:"pool"`
	GPUMemMiB   float64           `json:"gpu_mem_mib"` // memory of each GPU, if all have the same
	Set         map[string]string `json:"set"`         // parameters, as for --set
	Functions   []Costs           `json:"functions"`   // their costs at the start
}

// Costs holds the costs of a function, as in a file of function costs.
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

// Millis is a duration that is written as an exact number of milliseconds.
type Millis time.Duration

// MarshalJSON writes the milliseconds as a number.
func (m Millis) MarshalJSON() ([]byte, error) { return []byte(trace.Millis(time.Duration(m))), nil }

// UnmarshalJSON parses a number with at most six decimals.
func (m *Millis) UnmarshalJSON(text []byte) error {
	whole, fraction, _ := strings.Cut(string(text), ".")
	negative := strings.HasPrefix(whole, "-")
	if len(fraction) > 6 {
		return fmt.Errorf("%s: expected milliseconds with at most six decimals", text)
	}
	ms, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || max(ms, -ms) > math.MaxInt64/int64(time.Millisecond)-1 {
		return fmt.Errorf("%s: expected milliseconds", text)
	}
	ns := int64(0)
	if fraction != "" {
		if ns, err = strconv.ParseInt(fraction+"000000"[len(fraction):], 10, 64); err != nil || ns < 0 {
			return fmt.Errorf("%s: expected milliseconds", text)
		}
	}
	if negative {
		ns = -ns
	}
	*m = Millis(ms*int64(time.Millisecond) + ns)
	return nil
}

// Decision is a line with a decision of a policy.
type Decision struct {
	Step       *int64        `json:"step,omitempty"` // only in records
	TimeMS     Millis        `json:"time_ms"`
	Action     string        `json:"action"`
	Function   string        `json:"function,omitempty"`
	Invocation *int64        `json:"invocation,omitempty"` // index in the trace, from 0
	GPU        *int32        `json:"gpu,omitempty"`
	Container  *residency.ID `json:"container,omitempty"`
	Start      string        `json:"start,omitempty"`
	FalseMiss  bool          `json:"false_miss,omitempty"`
	WaitedMS   *Millis       `json:"waited_ms,omitempty"`
	ExpectedMS *Millis       `json:"expected_ms,omitempty"`
	AtMS       *Millis       `json:"at_ms,omitempty"`
	Reason     reason.Reason `json:"reason"`
	Waiting    int32         `json:"waiting,omitempty"`
	InFlight   int32         `json:"in_flight,omitempty"`
}

// NewDecision returns the line for an action. name returns the name of a function by its
// number.
func NewDecision(now time.Duration, a *queue.Action, name func(int32) string) Decision {
	d := Decision{TimeMS: Millis(now), Action: a.Kind.String(), Reason: a.Reason.Full(),
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
		d.Start, d.FalseMiss, d.ExpectedMS = a.Start.String(), a.FalseMiss, new(Millis(a.Expected))
		fallthrough
	case queue.Reject, queue.Assign:
		d.Invocation, d.WaitedMS = new(a.ID), new(Millis(now-a.Arrived))
	default:
	}
	return d
}

// Event is a line with an event for a policy. Zero values are omitted.
type Event struct {
	Step          int64          `json:"step"`
	TimeMS        Millis         `json:"time_ms"`
	Event         string         `json:"event"`
	Function      string         `json:"function,omitempty"`
	Invocation    *int64         `json:"invocation,omitempty"`
	GPU           *int32         `json:"gpu,omitempty"`
	Container     residency.ID   `json:"container,omitempty"`
	ExecutedMS    Millis         `json:"executed_ms,omitempty"`
	ArrivedMS     Millis         `json:"arrived_ms,omitempty"`
	DeadlineMS    Millis         `json:"deadline_ms,omitempty"`
	To            string         `json:"to,omitempty"`
	Starting      bool           `json:"starting,omitempty"`
	Short         bool           `json:"short,omitempty"` // the start failed for lack of GPU memory
	Again         bool           `json:"again,omitempty"`
	Bound         bool           `json:"bound,omitempty"` // arrived: the call is bound to the instance Container
	Fault         bool           `json:"fault,omitempty"`
	Renew         bool           `json:"renew,omitempty"`
	Class         int32          `json:"class,omitempty"` // learned: only for GPUs of this class
	Slice         float64        `json:"slice,omitempty"`
	Pinned        bool           `json:"pinned,omitempty"`
	Busy          float64        `json:"busy,omitempty"`
	Times         float64        `json:"times,omitempty"`     // sized: how many times as long as usual the batch should take
	Mem           int64          `json:"mem_bytes,omitempty"` // for occupied, measured and adopted
	Stays         int64          `json:"stays_bytes,omitempty"`
	EachMS        Millis         `json:"each_ms,omitempty"` // for an instance of a plan: execution time of a call on it
	Batch         int32          `json:"batch,omitempty"`   // for an instance of a plan: the plan's batch, if above 1
	Spec          *Spec          `json:"spec,omitempty"`
	GPUProperties *GPUProperties `json:"machine,omitempty"`
	RPS           float64        `json:"rps,omitempty"`       // for Load
	Instances     *int           `json:"instances,omitempty"` // for Load: the number that the scaler wants
}

// Load is the kind of event that states the load of a function in the past second, and the number
// of instances that its scaler then wants. It is not an input of the policy: Replay skips it.
const Load = "load"

// Spec holds a function's properties for a policy.
type Spec struct {
	WarmMS   Millis  `json:"warm_ms"`
	ColdMS   Millis  `json:"cold_ms"`
	LoadMS   Millis  `json:"load_ms"`
	Mem      int64   `json:"mem_bytes"`
	Need     int64   `json:"need_bytes,omitempty"` // measured memory of an instance
	Weight   float64 `json:"weight"`
	Model    int32   `json:"model"`  // from older gateways; ignored
	Tenant   int32   `json:"tenant"` // number of the tenant
	Queue    int32   `json:"queue,omitempty"`
	Inflight int32   `json:"inflight,omitempty"`
	Min      int32   `json:"min,omitempty"`
	Max      int32   `json:"max,omitempty"`
	Slice    float64 `json:"slice,omitempty"`
	IdleMS   Millis  `json:"idle_ms,omitempty"`
	Placed   bool    `json:"placed,omitempty"` // the gateway chooses the GPU of each instance

	SharedModel   int32 `json:"shared_model,omitempty"`   // queue.Function.Model
	BatchesItself bool  `json:"batches_itself,omitempty"` // instances of plans run batch calls at once

	// BatchWindowMS is the batch window, if instances run batches. Without it, calls join a running instance only
	// while no other call needs a slot, as in gateways before.
	BatchWindowMS *Millis `json:"batch_window_ms,omitempty"`
	BatchSlope    float64 `json:"batch_slope,omitempty"` // queue.Function.BatchSlope
}

// GPUProperties holds a GPU's properties for a policy.
type GPUProperties struct {
	Slots int   `json:"slots"`
	Mem   int64 `json:"mem_bytes"`
	Class int32 `json:"class,omitempty"` // GPUs with the same number have the same model; 0: all have
}

// kinds maps each kind of event to its required fields.
var kinds = map[string]struct{ function, invocation, gpu, properties, spec bool }{
	"completed": {function: true, invocation: true}, "failed": {function: true, invocation: true}, "started": {function: true, invocation: true},
	"sized": {function: true, invocation: true}, "cancelled": {function: true, invocation: true}, "arrived": {function: true, invocation: true}, "woke": {}, "used": {gpu: true},
	"function": {function: true, spec: true}, "function-gone": {function: true}, "learned": {function: true, spec: true},
	"gpu": {gpu: true, properties: true}, "gpu-gone": {gpu: true}, "ready": {function: true}, "adopted": {function: true, gpu: true},
	"lost": {function: true}, "moved": {function: true}, "occupied": {gpu: true}, "measured": {function: true},
	"start-requested": {function: true, gpu: true}, "retired": {function: true}, "sliced": {function: true},
}

// NewEvent returns the line for an event. name returns the name of a function by its
// number.
func NewEvent(step int64, now time.Duration, ev queue.Event, name func(int32) string) Event {
	var e Event
	switch ev := ev.(type) {
	case *queue.Completed:
		e = Event{Event: "completed", Function: name(ev.Function), Invocation: new(ev.ID), Container: ev.Instance,
			ExecutedMS: Millis(ev.Executed)}
	case *queue.Failed:
		e = Event{Event: "failed", Function: name(ev.Function), Invocation: new(ev.ID), Container: ev.Instance,
			ExecutedMS: Millis(ev.Executed), DeadlineMS: Millis(ev.Deadline), Starting: ev.Starting, Short: ev.OutOfMemory, Again: ev.Requeue}
	case *queue.Started:
		e = Event{Event: "started", Function: name(ev.Function), Invocation: new(ev.ID), Container: ev.Instance}
	case *queue.Sized:
		e = Event{Event: "sized", Function: name(ev.Function), Invocation: new(ev.ID), Container: ev.Instance, Times: ev.Times}
	case *queue.Cancelled:
		e = Event{Event: "cancelled", Function: name(ev.Function), Invocation: new(ev.ID)}
	case *queue.Arrived:
		e = Event{Event: "arrived", Function: name(ev.Function), Invocation: new(ev.ID),
			ArrivedMS: Millis(ev.At), DeadlineMS: Millis(ev.Deadline), Bound: ev.Bound, Container: ev.Instance}
	case *queue.Woke:
		e = Event{Event: "woke"}
	case *queue.Used:
		e = Event{Event: "used", GPU: new(ev.GPU), Busy: ev.Busy}
	case *queue.FunctionSet:
		e = Event{Event: "function", Function: name(ev.Function), Spec: specOf(&ev.Spec), Renew: ev.Renew}
	case *queue.FunctionRemoved:
		e = Event{Event: "function-gone", Function: name(ev.Function)}
	case *queue.Learned:
		e = Event{Event: "learned", Function: name(ev.Function), Spec: specOf(&ev.Spec), Class: ev.Class}
		if ev.Only > 0 {
			e.GPU = new(ev.Only - 1)
		}
	case *queue.GPUSet:
		e = Event{Event: "gpu", GPU: new(ev.GPU), GPUProperties: &GPUProperties{ev.Slots, ev.Mem, ev.Class}}
	case *queue.GPURemoved:
		e = Event{Event: "gpu-gone", GPU: new(ev.GPU)}
	case *queue.Ready:
		e = Event{Event: "ready", Function: name(ev.Function), Container: ev.Instance, EachMS: Millis(ev.Warm), Batch: ev.Batch}
	case *queue.Adopted:
		e = Event{Event: "adopted", Function: name(ev.Function), GPU: new(ev.GPU), Container: ev.Instance,
			To: ev.To.String(), Mem: ev.Mem, EachMS: Millis(ev.Warm), Batch: ev.Batch, Pinned: ev.Pinned, Starting: ev.Starting}
	case *queue.Lost:
		e = Event{Event: "lost", Function: name(ev.Function), Container: ev.Instance, Short: ev.OutOfMemory}
	case *queue.Moved:
		e = Event{Event: "moved", Function: name(ev.Function), Container: ev.Instance, To: ev.To.String(), Fault: ev.Failed}
	case *queue.Occupied:
		e = Event{Event: "occupied", GPU: new(ev.GPU), Mem: ev.Mem}
	case *queue.StartRequested:
		e = Event{Event: "start-requested", Function: name(ev.Function), GPU: new(ev.GPU)}
	case *queue.Sliced:
		e = Event{Event: "sliced", Function: name(ev.Function), Container: ev.Instance, Slice: ev.Slice}
	case *queue.Retired:
		e = Event{Event: "retired", Function: name(ev.Function), Container: ev.Instance}
	case *queue.Measured:
		e = Event{Event: "measured", Function: name(ev.Function), Container: ev.Instance, Mem: ev.Mem, Stays: ev.Residual}
	}
	e.Step, e.TimeMS = step, Millis(now)
	return e
}

func specOf(f *queue.Function) *Spec {
	s := &Spec{WarmMS: Millis(f.Warm), ColdMS: Millis(f.Cold), LoadMS: Millis(f.Load), Mem: f.Mem, Need: f.MeasuredMem, Weight: f.Weight, SharedModel: f.Model, Tenant: f.Tenant,
		Queue: f.Queue, Inflight: f.Inflight, Min: f.Min, Max: f.Max, Slice: f.Slice, IdleMS: Millis(f.Idle), Placed: f.Placed, BatchesItself: f.BatchesItself, BatchSlope: f.BatchSlope}
	if f.Batches {
		s.BatchWindowMS = new(Millis(f.BatchWindow))
	}
	return s
}

// function returns the queue.Function with the given name.
func (s *Spec) function(name string) queue.Function {
	f := queue.Function{Name: name, Warm: time.Duration(s.WarmMS), Cold: time.Duration(s.ColdMS), Load: time.Duration(s.LoadMS),
		Mem: s.Mem, MeasuredMem: s.Need, Weight: s.Weight, Tenant: s.Tenant, Queue: s.Queue, Inflight: s.Inflight, Min: s.Min, Max: s.Max,
		Model: s.SharedModel, Slice: s.Slice, Idle: time.Duration(s.IdleMS), Placed: s.Placed, BatchesItself: s.BatchesItself, BatchSlope: s.BatchSlope}
	if s.BatchWindowMS != nil {
		f.Batches, f.BatchWindow = true, time.Duration(max(*s.BatchWindowMS, 0))
	}
	return f
}

// event returns the event of a line. number returns the number of a function by its name.
func (e *Event) event(number func(string) int32) (queue.Event, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	var function, gpu int32
	var id int64
	if kinds[e.Event].function {
		function = number(e.Function)
	}
	if e.Invocation != nil {
		id = *e.Invocation
	}
	if e.GPU != nil {
		gpu = *e.GPU
	}
	var to residency.Start
	switch e.To {
	case "":
	case residency.GPUWarm.String():
		to = residency.GPUWarm
	default:
		to = residency.HostWarm
	}
	instance, execution := e.Container, queue.Execution{Function: function, Instance: e.Container, ID: id, Executed: time.Duration(e.ExecutedMS)}
	deadline, each := time.Duration(e.DeadlineMS), time.Duration(max(e.EachMS, 0))
	switch e.Event {
	case "completed":
		return &queue.Completed{Execution: execution}, nil
	case "failed":
		return &queue.Failed{Execution: execution, Starting: e.Starting, OutOfMemory: e.Short, Requeue: e.Again, Deadline: deadline}, nil
	case "started":
		return &queue.Started{Function: function, Instance: instance, ID: id}, nil
	case "sized":
		return &queue.Sized{Function: function, Instance: instance, ID: id, Times: e.Times}, nil
	case "cancelled":
		return &queue.Cancelled{Function: function, ID: id}, nil
	case "arrived":
		return &queue.Arrived{Function: function, ID: id, At: time.Duration(e.ArrivedMS), Deadline: deadline, Bound: e.Bound, Instance: instance}, nil
	case "used":
		return &queue.Used{GPU: gpu, Busy: e.Busy}, nil
	case "function":
		return &queue.FunctionSet{Function: function, Spec: e.Spec.function(e.Function), Renew: e.Renew}, nil
	case "function-gone":
		return &queue.FunctionRemoved{Function: function}, nil
	case "learned":
		learned := &queue.Learned{Function: function, Spec: e.Spec.function(e.Function), Class: e.Class}
		if e.GPU != nil {
			learned.Only = *e.GPU + 1
		}
		return learned, nil
	case "gpu":
		return &queue.GPUSet{GPU: gpu, Slots: e.GPUProperties.Slots, Mem: e.GPUProperties.Mem, Class: e.GPUProperties.Class}, nil
	case "gpu-gone":
		return &queue.GPURemoved{GPU: gpu}, nil
	case "ready":
		return &queue.Ready{Function: function, Instance: instance, Warm: each, Batch: max(e.Batch, 0)}, nil
	case "adopted":
		return &queue.Adopted{Function: function, GPU: gpu, Instance: instance, To: to, Mem: e.Mem, Pinned: e.Pinned, Starting: e.Starting, Warm: each, Batch: max(e.Batch, 0)}, nil
	case "lost":
		return &queue.Lost{Function: function, Instance: instance, OutOfMemory: e.Short}, nil
	case "moved":
		return &queue.Moved{Function: function, Instance: instance, To: to, Failed: e.Fault}, nil
	case "occupied":
		return &queue.Occupied{GPU: gpu, Mem: e.Mem}, nil
	case "start-requested":
		return &queue.StartRequested{Function: function, GPU: gpu}, nil
	case "sliced":
		return &queue.Sliced{Function: function, Instance: instance, Slice: e.Slice}, nil
	case "retired":
		return &queue.Retired{Function: function, Instance: instance}, nil
	case "measured":
		return &queue.Measured{Function: function, Instance: instance, Mem: e.Mem, Residual: e.Stays}, nil
	}
	return &queue.Woke{}, nil
}

// check returns an error if the line has an unknown event or lacks a required field.
func (e *Event) check() error {
	required, known := kinds[e.Event]
	switch {
	case !known:
		return fmt.Errorf("there is no event %q", e.Event)
	case required.function && e.Function == "":
		return fmt.Errorf("function: missing")
	case required.invocation && e.Invocation == nil:
		return fmt.Errorf("invocation: missing")
	case required.gpu && (e.GPU == nil || *e.GPU < 0 || *e.GPU >= maxGPUs):
		return fmt.Errorf("gpu: expected a number from 0 to %d", maxGPUs-1)
	case required.properties && (e.GPUProperties == nil || e.GPUProperties.Slots < 1 || e.GPUProperties.Slots > maxSlots || e.GPUProperties.Mem < 0):
		return fmt.Errorf("machine: expected slots and mem_bytes")
	case required.spec && !e.Spec.valid():
		return fmt.Errorf("spec: expected what the function costs")
	case e.Slice < 0 || e.Slice > 1:
		return fmt.Errorf("slice: expected 0 to 1")
	case e.Event == "sized" && !(e.Times > 0 && e.Times < maxNumber):
		return fmt.Errorf("times: expected more than 0 and less than %d", maxNumber)
	case e.Mem < 0:
		return fmt.Errorf("mem_bytes: expected 0 or more")
	case e.Stays < 0 || e.Stays > e.Mem:
		return fmt.Errorf("stays_bytes: expected 0 to mem_bytes")
	}
	return nil
}

// Limits that keep a damaged record from exhausting the memory.
const (
	maxGPUs   = 1 << 16
	maxSlots  = 1 << 16
	maxNumber = 1 << 20 // of tenants and models
)

// valid reports whether the values are valid for a policy.
func (s *Spec) valid() bool {
	return s != nil && s.WarmMS >= 0 && s.ColdMS >= 0 && s.LoadMS >= 0 && s.Mem >= 0 && s.Need >= 0 && s.Weight > 0 && s.BatchSlope >= 0 && s.Slice >= 0 && s.Slice <= 1 &&
		s.Model >= 0 && s.Model < maxNumber && s.Tenant >= 0 && s.Tenant < maxNumber && s.IdleMS >= 0 &&
		min(s.Queue, s.Inflight, s.Min, s.Max) >= 0 && max(s.Inflight, s.Min, s.Max) < maxNumber
}

// Append writes a line to a buffer.
func Append(to *bytes.Buffer, line any) error {
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	return enc.Encode(line)
}
