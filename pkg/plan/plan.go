// Package plan has the inputs and the result of placement: demand, inventory, items to be packed, and plans,
// with their file formats (docs/files.md). Its main type is Plan.
package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/jsonfile"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Plan is a placement of instances on GPUs. A file must have the keys whose fields have neither omitempty nor
// the tag optional, because gfaas up cannot start an instance without them. UnmarshalJSON sets the defaults of
// the others.
type Plan struct {
	Version     int        `json:"version"`
	Algorithm   string     `json:"algorithm" optional:"yes"`
	Model       string     `json:"model" optional:"yes"` // rect, tokens or none
	Arrivals    string     `json:"arrivals,omitempty"`   // of requests to functions with an objective; steady if empty
	Headroom    float64    `json:"headroom,omitempty"`   // part of what instances are worth that is not counted on
	GPUsUsed    int        `json:"gpus_used" optional:"yes"`
	Bound       int        `json:"bound" optional:"yes"` // proven lower bound on GPUs for this demand
	BoundMethod string     `json:"bound_method" optional:"yes"`
	GPUs        []GPU      `json:"gpus"`
	Demand      []Served   `json:"demand" optional:"yes"`
	Unplaced    []Unplaced `json:"unplaced" optional:"yes"`
}

// UnmarshalJSON parses a plan. A missing gpus_used becomes the number of GPUs with instances. A missing model
// becomes tokens if there is a schedule, rect if all instances have x and y, else none.
func (p *Plan) UnmarshalJSON(data []byte) error {
	type plain Plan
	v := struct {
		*plain
		Model    *string `json:"model"`
		GPUsUsed *int    `json:"gpus_used"`
	}{plain: (*plain)(p)}
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	used, scheduled, instances, cornered := 0, false, 0, 0
	for _, g := range p.GPUs {
		used += min(len(g.Instances), 1)
		scheduled = scheduled || len(g.Schedule) > 0
		for _, in := range g.Instances {
			instances++
			if in.X != nil && in.Y != nil {
				cornered++
			}
		}
	}
	switch {
	case v.Model != nil:
		p.Model = *v.Model
	case scheduled:
		p.Model = ModelTokens
	case instances > 0 && cornered == instances:
		p.Model = ModelRect
	default:
		p.Model = ModelNone
	}
	p.GPUsUsed = used
	if v.GPUsUsed != nil {
		p.GPUsUsed = *v.GPUsUsed
	}
	return nil
}

// GPU is one GPU of a plan with its instances.
type GPU struct {
	Node      string     `json:"node" optional:"yes"` // DefaultNode if missing
	Index     int        `json:"index"`
	MemMiB    float64    `json:"mem_mib" optional:"yes"` // 0 if not known
	Model     string     `json:"model,omitempty"`        // of the GPU, as in a profile and an inventory; empty if not known
	Instances []Instance `json:"instances"`
	Models    []Model    `json:"models,omitempty"`   // with shared weights
	Schedule  []Interval `json:"schedule,omitempty"` // with model "tokens"
}

// DefaultNode is the node of a plan for a single host.
const DefaultNode = "node0"

// UnmarshalJSON parses a GPU. Node defaults to DefaultNode.
func (g *GPU) UnmarshalJSON(data []byte) error {
	type plain GPU
	v := plain{Node: DefaultNode}
	err := json.Unmarshal(data, &v)
	*g = GPU(v)
	return err
}

// Instance is an instance on one GPU. X is the start of its share of the window (a fraction), Y its lowest SM
// percentage. Both are nil unless the model is "rect".
type Instance struct {
	ID           string   `json:"id"`
	Function     string   `json:"function"`
	SMPct        float64  `json:"sm_pct" optional:"yes"`
	SMLimitPct   float64  `json:"sm_limit_pct,omitempty"` // 0: SMPct
	QuotaRequest float64  `json:"quota_request" optional:"yes"`
	QuotaLimit   float64  `json:"quota_limit" optional:"yes"`
	Batch        int      `json:"batch" optional:"yes"`
	RPS          float64  `json:"rps" optional:"yes"`
	MemMiB       float64  `json:"mem_mib" optional:"yes"`
	X            *float64 `json:"x,omitempty"`
	Y            *float64 `json:"y,omitempty"`
}

// UnmarshalJSON parses an instance. A missing SM share, quota or batch gets the default of gfaas run: all SMs,
// the whole window, and a batch of one request. If one of the two quotas is missing, it equals the other.
func (in *Instance) UnmarshalJSON(data []byte) error {
	type plain Instance
	missing := math.NaN()
	v := plain{SMPct: 100, QuotaRequest: missing, QuotaLimit: missing, Batch: 1}
	err := json.Unmarshal(data, &v)
	if math.IsNaN(v.QuotaLimit) {
		v.QuotaLimit = v.QuotaRequest
	}
	if math.IsNaN(v.QuotaLimit) {
		v.QuotaLimit = 1
	}
	if math.IsNaN(v.QuotaRequest) {
		v.QuotaRequest = v.QuotaLimit
	}
	*in = Instance(v)
	return err
}

// Config returns the instance's configuration, as in the rows of a profile.
func (in Instance) Config() profile.Config {
	return profile.Config{SMPct: in.SMPct, Quota: in.QuotaRequest, Batch: in.Batch}
}

// Interval is an entry of a GPU's timetable: the instances that may hold a lease together for that fraction of
// the window.
type Interval struct {
	Duration  float64  `json:"duration"`
	Instances []string `json:"instances"`
}

// Served is a function's demand and the throughput that the plan provides.
type Served struct {
	Function  string  `json:"function"`
	RPS       float64 `json:"rps" optional:"yes"`
	ServedRPS float64 `json:"served_rps" optional:"yes"`
	// HandOverMS is the idle time of an instance between two calls, or 0 if it is unknown. It
	// lowers the throughput of functions with an objective if calls arrive at random.
	HandOverMS float64 `json:"hand_over_ms,omitempty"`
}

// Unplaced is demand that the plan cannot serve, with the reason.
type Unplaced struct {
	Function string  `json:"function"`
	RPS      float64 `json:"rps" optional:"yes"`
	Reason   string  `json:"reason" optional:"yes"`
}

// HandOverMS returns the hand-over time of a function's demand, or 0.
func (p Plan) HandOverMS(function string) float64 {
	for _, d := range p.Demand {
		if d.Function == function {
			return d.HandOverMS
		}
	}
	return 0
}

// Version is the version of the plan format.
const Version = 1

// The models of how instances share a GPU (docs/files.md).
const (
	ModelRect   = "rect"   // each instance has a fixed rectangle of window × SMs
	ModelTokens = "tokens" // a timetable says which instances may run together
	ModelNone   = "none"   // no timetable: quotas alone decide
)

// The models of arrivals (docs/placement.md).
const (
	ArrivalsSteady  = "steady"  // one as another is answered
	ArrivalsPoisson = "poisson" // independently of each other and of the answers
)

// Read reads a plan. name is the file's name in error messages. Read checks only the form: unknown, repeated and
// missing keys, and meaningless values, are errors of the form FILE:LINE: KEY: fault, expectation. Package verify
// checks whether the plan is consistent.
func Read(r io.Reader, name string) (Plan, error) {
	var p Plan
	file, err := jsonfile.Read(r, name, &p)
	if file != nil && file.Version() > Version { // which is why it has other keys
		p.Version = int(min(file.Version(), 1<<53))
		return Plan{}, file.Fault(&p, "version", p.fault().what)
	}
	if err != nil {
		return Plan{}, err
	}
	if f := p.fault(); f != (fault{}) {
		return Plan{}, file.Fault(&p, f.path, f.what)
	}
	return p, nil
}

// fault is the first meaningless value of a plan: its path in the file and what is wrong with it.
// It is the zero fault if there is none.
type fault struct{ path, what string }

// fault returns the first fault of the plan.
func (p Plan) fault() fault {
	f := cmp.Or(
		check("version", p.Version == Version, "%d, expected %d", p.Version, Version),
		check("model", p.Model == ModelRect || p.Model == ModelTokens || p.Model == ModelNone,
			"%s, expected %s, %s or %s", csvfile.Quote(p.Model), ModelRect, ModelTokens, ModelNone),
		check("arrivals", p.Arrivals == "" || p.Arrivals == ArrivalsSteady || p.Arrivals == ArrivalsPoisson,
			"%s, expected %s or %s", csvfile.Quote(p.Arrivals), ArrivalsPoisson, ArrivalsSteady),
		check("headroom", p.Headroom >= 0 && p.Headroom < 1, "%v, expected 0 to less than 1", p.Headroom),
		checkText("algorithm", p.Algorithm),
		checkText("bound_method", p.BoundMethod),
		firstFault("gpus", p.GPUs, func(g GPU) fault { return g.fault(p.Model) }),
	)
	if f != (fault{}) {
		return f
	}
	return cmp.Or(
		p.faultOfIDs(),
		firstFault("demand", p.Demand, func(d Served) fault {
			return cmp.Or(checkName("function", d.Function), check("hand_over_ms", d.HandOverMS >= 0, "%v, expected 0 or more", d.HandOverMS))
		}),
		firstFault("unplaced", p.Unplaced, func(u Unplaced) fault {
			return cmp.Or(checkName("function", u.Function), checkText("reason", u.Reason))
		}),
	)
}

// firstFault returns the first fault of the elements of a list.
func firstFault[T any](key string, list []T, faultOf func(T) fault) fault {
	for i, item := range list {
		if f := faultOf(item); f != (fault{}) {
			return fault{strings.TrimSuffix(fmt.Sprintf("%s[%d].%s", key, i, f.path), "."), f.what}
		}
	}
	return fault{}
}

// check returns a fault unless ok.
func check(key string, ok bool, format string, args ...any) fault {
	if ok {
		return fault{}
	}
	return fault{key, fmt.Sprintf(format, args...)}
}

// smallestMem is the smallest amount of memory above 0, in MiB: about a byte.
const smallestMem = 1e-6

// checkSize checks an amount of memory in MiB.
func checkSize(key string, mib float64) fault {
	return cmp.Or(
		check(key, mib >= 0, "negative, expected 0 or more"),
		check(key, mib == 0 || mib >= smallestMem && mib <= csvfile.Largest,
			"%v MiB is out of range, expected 0, or from %v to %v", mib, smallestMem, csvfile.Largest),
	)
}

// readable raises an amount of less than a byte, a rounding error of a subtraction, to smallestMem.
func readable(mib float64) float64 {
	if mib > 0 && mib < smallestMem {
		return smallestMem
	}
	return mib
}

func checkName(key, name string) fault {
	return cmp.Or(check(key, name != "", "empty, expected a name"), checkText(key, name))
}

// checkText checks a text that is shown to users. Control characters could affect a terminal, and a
// line break would end a comment in a manifest.
func checkText(key, text string) fault {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fault{key, csvfile.Quote(text) + " has non-printable characters"}
	}
	return fault{}
}

// faultOfIDs finds an ID that two instances have. An instance on several GPUs appears once on each of them,
// equal except for its position and memory.
func (p Plan) faultOfIDs() fault {
	type place struct{ gpu, instance int }
	first := map[string]place{}
	last := map[string]int{} // GPU
	for i, g := range p.GPUs {
		for j, in := range g.Instances {
			was, twice := first[in.ID]
			if !twice {
				first[in.ID] = place{i, j}
			} else {
				one := p.GPUs[was.gpu].Instances[was.instance]
				one.X, one.Y, one.MemMiB = in.X, in.Y, in.MemMiB
				if last[in.ID] == i || one != in {
					return fault{fmt.Sprintf("gpus[%d].instances[%d].id", i, j), fmt.Sprintf(
						"%s is already the ID of gpus[%d].instances[%d], expected an ID of one instance, once on each of its GPUs", csvfile.Quote(in.ID), was.gpu, was.instance)}
				}
			}
			last[in.ID] = i
		}
	}
	return fault{}
}

func (g GPU) fault(model string) fault {
	return cmp.Or(
		checkName("node", g.Node),
		checkText("model", g.Model),
		check("index", g.Index >= 0, "%d, expected 0 or more", g.Index),
		checkSize("mem_mib", g.MemMiB),
		firstFault("instances", g.Instances, func(in Instance) fault { return in.fault(model) }),
		firstFault("models", g.Models, func(m Model) fault {
			return cmp.Or(checkText("name", m.Name), checkText("tenant", m.Tenant), checkSize("mem_mib", m.MemMiB))
		}),
		firstFault("schedule", g.Schedule, func(entry Interval) fault {
			return firstFault("instances", entry.Instances, func(id string) fault { return checkText("", id) })
		}),
	)
}

func (in Instance) fault(model string) fault {
	const notAll = "some instances have x and y, expected both for all instances or for none"
	return cmp.Or(
		checkName("id", in.ID),
		checkName("function", in.Function),
		checkSize("mem_mib", in.MemMiB),
		check("sm_limit_pct", in.SMLimitPct == 0 || in.SMLimitPct >= in.SMPct && in.SMLimitPct <= 100,
			"%v, expected at least the sm_pct of the instance, %v, and at most 100", in.SMLimitPct, in.SMPct),
		check("batch", in.Batch >= 1, "%d, expected 1 or more", in.Batch),
		check("x", model != ModelRect || in.X != nil, "the key is missing, expected a fraction for the model rect"),
		check("y", model != ModelRect || in.Y != nil, "the key is missing, expected a percentage for the model rect"),
		check("x", model != ModelNone || in.X == nil, notAll),
		check("y", model != ModelNone || in.Y == nil, notAll),
	)
}

// WriteJSON writes the plan in the form that Read accepts. Equal plans give equal bytes. Each instance is on one
// line, so that plans can be compared line by line.
func (p Plan) WriteJSON(w io.Writer) error {
	// Copy the lists: the loop below changes amounts of memory, and a nil list would be written as null.
	p.GPUs, p.Demand, p.Unplaced = append([]GPU{}, p.GPUs...), append([]Served{}, p.Demand...), append([]Unplaced{}, p.Unplaced...)
	for i := range p.GPUs {
		g := &p.GPUs[i]
		g.Instances, g.Models = append([]Instance{}, g.Instances...), slices.Clone(g.Models)
		for k := range g.Instances {
			g.Instances[k].MemMiB = readable(g.Instances[k].MemMiB)
		}
		for k := range g.Models {
			g.Models[k].MemMiB = readable(g.Models[k].MemMiB)
		}
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(p); err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	_, err := w.Write(breakLines(text.Bytes()))
	return err
}

// breakLines puts each object in a list of a compact JSON text on a line of its own, indented by its depth, and begins a
// line after each list.
func breakLines(compact []byte) (out []byte) {
	quoted, depth := false, 0
	for i := 0; i < len(compact); i++ {
		switch c := compact[i]; {
		case quoted && c == '\\': // the next character does not end the string
			out = append(out, c)
			i++
		case c == '"':
			if !quoted && i > 1 && string(compact[i-2:i]) == "]," { // the key after a list
				out = append(append(out, '\n'), strings.Repeat(" ", 2*depth-1)...)
			}
			quoted = !quoted
		case quoted:
		case c == '{':
			if depth > 0 && compact[i-1] != ':' {
				out = append(append(out, '\n'), strings.Repeat("  ", depth)...)
			}
			depth++
		case c == '}':
			depth--
		}
		out = append(out, compact[i])
	}
	return out
}

// meets is the largest gap, in windows, between turns that are joined.
const meets = 1e-9

// Turns returns the parts of the window of each instance on the GPU, by ID, in order. With the model "rect" they
// are the instance's rectangle, with "tokens" the schedule entries that name it; adjacent ones are joined. The
// result is meaningful only if package verify finds no fault in the GPU.
func (g GPU) Turns() map[string][]gpu.Turn {
	turns := map[string][]gpu.Turn{}
	give := func(id string, from, to float64) {
		from, to = max(from, 0), min(to, 1)
		if before := turns[id]; len(before) > 0 && from-before[len(before)-1].To < meets {
			before[len(before)-1].To = to
		} else if from < to {
			turns[id] = append(before, gpu.Turn{From: from, To: to})
		}
	}
	for _, in := range g.Instances {
		if in.X != nil {
			give(in.ID, *in.X, *in.X+in.QuotaRequest)
		}
	}
	at := 0.0
	for _, entry := range g.Schedule {
		for _, id := range entry.Instances {
			give(id, at, at+entry.Duration)
		}
		at += entry.Duration
	}
	return turns
}
