// Package plan reads and writes what a placement is made from and what it
// comes to: demand, inventory, plan, and rectangles to be packed (docs/files.md).
package plan

import (
	"bytes"
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

// Plan says what runs where. A file needs the keys whose fields have neither omitempty nor
// the tag optional: those without which gfaas up could not start an instance. UnmarshalJSON
// gives the others their meaning.
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

// UnmarshalJSON reads a plan. Without gpus_used it counts the GPUs with instances. Without a
// model it is tokens if there is a schedule, rect if all instances have x and y, else none.
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

// GPU is one GPU of a plan and what it hosts.
type GPU struct {
	Node      string     `json:"node" optional:"yes"` // DefaultNode if missing
	Index     int        `json:"index"`
	MemMiB    float64    `json:"mem_mib" optional:"yes"` // 0 if not known
	Model     string     `json:"model,omitempty"`        // of the GPU, as in a profile and an inventory; empty if not known
	Instances []Instance `json:"instances"`
	Models    []Model    `json:"models,omitempty"`   // with shared weights
	Schedule  []Interval `json:"schedule,omitempty"` // with model "tokens"
}

// DefaultNode is the node of a plan for one machine.
const DefaultNode = "node0"

// UnmarshalJSON reads a GPU. Without a node it is one of DefaultNode.
func (g *GPU) UnmarshalJSON(data []byte) error {
	type plain GPU
	v := plain{Node: DefaultNode}
	err := json.Unmarshal(data, &v)
	*g = GPU(v)
	return err
}

// Instance is one instance on one GPU. X is where its share of the window
// starts (fraction) and Y its lowest SM percentage; both are absent unless the
// model is "rect".
type Instance struct {
	ID           string   `json:"id"`
	Function     string   `json:"function"`
	SMPct        float64  `json:"sm_pct" optional:"yes"`
	QuotaRequest float64  `json:"quota_request" optional:"yes"`
	QuotaLimit   float64  `json:"quota_limit" optional:"yes"`
	Batch        int      `json:"batch" optional:"yes"`
	RPS          float64  `json:"rps" optional:"yes"`
	MemMiB       float64  `json:"mem_mib" optional:"yes"`
	X            *float64 `json:"x,omitempty"`
	Y            *float64 `json:"y,omitempty"`
}

// UnmarshalJSON reads an instance. Without a share of the SMs, a quota or a batch it has
// those of gfaas run: all SMs, all of the window, and one request a batch. One of
// the two quotas stands for both.
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

// Config returns the configuration that the instance runs in, as rows of a profile
// name it.
func (in Instance) Config() profile.Config {
	return profile.Config{SMPct: in.SMPct, Quota: in.QuotaRequest, Batch: in.Batch}
}

// Interval is one entry of a GPU's timetable: the instances that may hold a
// token together for that fraction of the window.
type Interval struct {
	Duration  float64  `json:"duration"`
	Instances []string `json:"instances"`
}

// Served is a function's demand and what the plan gives it.
type Served struct {
	Function  string  `json:"function"`
	RPS       float64 `json:"rps" optional:"yes"`
	ServedRPS float64 `json:"served_rps" optional:"yes"`
	// HandOverMS is for how long an instance has nothing to do between two calls, where
	// that is known. It was counted on where calls come at random to functions with an
	// objective.
	HandOverMS float64 `json:"hand_over_ms,omitempty"`
}

// Unplaced is demand the plan could not serve, and why.
type Unplaced struct {
	Function string  `json:"function"`
	RPS      float64 `json:"rps" optional:"yes"`
	Reason   string  `json:"reason" optional:"yes"`
}

// HandOverMS is that of a function's demand; 0 where it has none.
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

// Models of what a GPU can host side by side (docs/files.md).
const (
	ModelRect   = "rect"   // each instance has a fixed rectangle of window × SMs
	ModelTokens = "tokens" // a timetable says which instances may run together
	ModelNone   = "none"   // no timetable: quotas alone decide
)

// How requests arrive (docs/placement.md).
const (
	ArrivalsSteady  = "steady"  // one as another is answered
	ArrivalsPoisson = "poisson" // independently of each other and of the answers
)

// Read reads a plan; name is what messages call it. It accepts what has the
// form of a plan: keys that are unknown, repeated or missing, and values
// without a meaning, are errors of the form FILE:LINE: KEY: what is wrong,
// what was expected. Whether the plan holds together is for a verification.
func Read(r io.Reader, name string) (Plan, error) {
	var p Plan
	file, err := jsonfile.Read(r, name, &p)
	if file != nil && file.Version() > Version { // which is why it has other keys
		p.Version = int(min(file.Version(), 1<<53))
		_, what := p.fault()
		return Plan{}, file.Fault(&p, "version", what)
	}
	if err != nil {
		return Plan{}, err
	}
	if path, what := p.fault(); what != "" {
		return Plan{}, file.Fault(&p, path, what)
	}
	return p, nil
}

// fault is the first value without a meaning: its path and what is wrong.
func (p Plan) fault() (path, what string) {
	switch {
	case p.Version != Version:
		return "version", fmt.Sprintf("%d, expected %d", p.Version, Version)
	case p.Model != ModelRect && p.Model != ModelTokens && p.Model != ModelNone:
		return "model", fmt.Sprintf("%s, expected %s, %s or %s", csvfile.Quote(p.Model), ModelRect, ModelTokens, ModelNone)
	}
	if p.Arrivals != "" && p.Arrivals != ArrivalsSteady && p.Arrivals != ArrivalsPoisson {
		return "arrivals", fmt.Sprintf("%s, expected %s or %s", csvfile.Quote(p.Arrivals), ArrivalsPoisson, ArrivalsSteady)
	}
	if p.Headroom < 0 || p.Headroom >= 1 {
		return "headroom", fmt.Sprintf("%v, expected 0 to less than 1", p.Headroom)
	}
	if what := textFault(p.Algorithm); what != "" {
		return "algorithm", what
	}
	if what := textFault(p.BoundMethod); what != "" {
		return "bound_method", what
	}
	for i, g := range p.GPUs {
		if key, what := g.fault(p.Model); what != "" {
			return fmt.Sprintf("gpus[%d].%s", i, key), what
		}
	}
	if path, what := p.faultOfIDs(); what != "" {
		return path, what
	}
	for i, d := range p.Demand {
		if what := nameFault(d.Function); what != "" {
			return fmt.Sprintf("demand[%d].function", i), what
		}
		if d.HandOverMS < 0 {
			return fmt.Sprintf("demand[%d].hand_over_ms", i), fmt.Sprintf("%v, expected 0 or more", d.HandOverMS)
		}
	}
	for i, u := range p.Unplaced {
		if what := nameFault(u.Function); what != "" {
			return fmt.Sprintf("unplaced[%d].function", i), what
		}
		if what := textFault(u.Reason); what != "" {
			return fmt.Sprintf("unplaced[%d].reason", i), what
		}
	}
	return "", ""
}

// smallestMem is the least memory, in MiB, that is more than none: about a byte.
const smallestMem = 1e-6

// sizeFault returns what is wrong with an amount of memory in MiB, empty if nothing is.
func sizeFault(mib float64) string {
	switch {
	case mib < 0:
		return "negative, expected 0 or more"
	case mib > 0 && mib < smallestMem, mib > csvfile.Largest:
		return fmt.Sprintf("%v MiB is out of range, expected 0, or from %v to %v", mib, smallestMem, csvfile.Largest)
	}
	return ""
}

// readable raises what is left of a subtraction, and is less than a byte, to what a plan
// can have.
func readable(mib float64) float64 {
	if mib > 0 && mib < smallestMem {
		return smallestMem
	}
	return mib
}

// nameFault is what is wrong with a name.
func nameFault(name string) string {
	if name == "" {
		return "empty, expected a name"
	}
	return textFault(name)
}

// textFault is what is wrong with a text that is shown to people: a terminal would obey
// what does not print, and a manifest's comment end at a line's.
func textFault(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return csvfile.Quote(text) + " has characters that do not print, expected none"
	}
	return ""
}

// faultOfIDs finds an id that two instances have: one that spans GPUs is once on each,
// the same but for its place and its memory.
func (p Plan) faultOfIDs() (path, what string) {
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
					return fmt.Sprintf("gpus[%d].instances[%d].id", i, j), fmt.Sprintf(
						"%s is that of gpus[%d].instances[%d] already, expected each only once on a GPU, and of one instance", csvfile.Quote(in.ID), was.gpu, was.instance)
				}
			}
			last[in.ID] = i
		}
	}
	return "", ""
}

func (g GPU) fault(model string) (key, what string) {
	if what := nameFault(g.Node); what != "" {
		return "node", what
	}
	if what := textFault(g.Model); what != "" {
		return "model", what
	}
	switch {
	case g.Index < 0:
		return "index", fmt.Sprintf("%d, expected 0 or more", g.Index)
	}
	if what := sizeFault(g.MemMiB); what != "" {
		return "mem_mib", what
	}
	for i, in := range g.Instances {
		at := func(key string) string { return fmt.Sprintf("instances[%d].%s", i, key) }
		if what := nameFault(in.ID); what != "" {
			return at("id"), what
		}
		if what := nameFault(in.Function); what != "" {
			return at("function"), what
		}
		if what := sizeFault(in.MemMiB); what != "" {
			return at("mem_mib"), what
		}
		switch {
		case in.Batch < 1:
			return at("batch"), fmt.Sprintf("%d, expected 1 or more", in.Batch)
		case model == ModelRect && in.X == nil:
			return at("x"), "the key is missing, expected a fraction with the model rect"
		case model == ModelRect && in.Y == nil:
			return at("y"), "the key is missing, expected a percentage with the model rect"
		case model == ModelNone && in.X != nil:
			return at("x"), "not all instances have x and y, expected both of all, or of none"
		case model == ModelNone && in.Y != nil:
			return at("y"), "not all instances have x and y, expected both of all, or of none"
		}
	}
	for i, m := range g.Models {
		if what := textFault(m.Name); what != "" {
			return fmt.Sprintf("models[%d].name", i), what
		}
		if what := textFault(m.Tenant); what != "" {
			return fmt.Sprintf("models[%d].tenant", i), what
		}
		if what := sizeFault(m.MemMiB); what != "" {
			return fmt.Sprintf("models[%d].mem_mib", i), what
		}
	}
	for i, entry := range g.Schedule {
		for j, id := range entry.Instances {
			if what := textFault(id); what != "" {
				return fmt.Sprintf("schedule[%d].instances[%d]", i, j), what
			}
		}
	}
	return "", ""
}

// WriteJSON writes the plan as Read reads it: the same plan gives the same
// bytes, one line an instance so that plans can be compared line by line.
func (p Plan) WriteJSON(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"version\":%d,\"algorithm\":%s,\"model\":%s,\n", p.Version, text(p.Algorithm), text(p.Model))
	if p.Arrivals != "" {
		fmt.Fprintf(&b, " \"arrivals\":%s,\n", text(p.Arrivals))
	}
	if p.Headroom != 0 {
		fmt.Fprintf(&b, " \"headroom\":%s,\n", csvfile.Format(p.Headroom))
	}
	fmt.Fprintf(&b, " \"gpus_used\":%d,\"bound\":%d,\"bound_method\":%s,\n", p.GPUsUsed, p.Bound, text(p.BoundMethod))
	b.WriteString(" \"gpus\":[")
	for i, g := range p.GPUs {
		separate(&b, i, "\n  ")
		if err := g.write(&b); err != nil {
			return err
		}
	}
	b.WriteString("],\n \"demand\":[")
	if err := lines(&b, p.Demand, "\n  "); err != nil {
		return err
	}
	b.WriteString("],\n \"unplaced\":[")
	if err := lines(&b, p.Unplaced, "\n  "); err != nil {
		return err
	}
	b.WriteString("]}\n")
	_, err := w.Write(b.Bytes())
	return err
}

func (g GPU) write(b *bytes.Buffer) error {
	g.Instances, g.Models = slices.Clone(g.Instances), slices.Clone(g.Models)
	for i := range g.Instances {
		g.Instances[i].MemMiB = readable(g.Instances[i].MemMiB)
	}
	for i := range g.Models {
		g.Models[i].MemMiB = readable(g.Models[i].MemMiB)
	}
	mem, err := compact(g.MemMiB)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, `{"node":%s,"index":%d,"mem_mib":%s`, text(g.Node), g.Index, mem)
	if g.Model != "" {
		fmt.Fprintf(b, `,"model":%s`, text(g.Model))
	}
	b.WriteString(`,"instances":[`)
	if err := lines(b, g.Instances, "\n    "); err != nil {
		return err
	}
	b.WriteString("]")
	if len(g.Models) > 0 {
		b.WriteString(",\n   \"models\":[")
		if err := lines(b, g.Models, "\n    "); err != nil {
			return err
		}
		b.WriteString("]")
	}
	if len(g.Schedule) > 0 {
		b.WriteString(",\n   \"schedule\":[")
		if err := lines(b, g.Schedule, "\n    "); err != nil {
			return err
		}
		b.WriteString("]")
	}
	b.WriteString("}")
	return nil
}

// lines writes the items of a list, each after a line break and indent.
func lines[T any](b *bytes.Buffer, items []T, indent string) error {
	for i, item := range items {
		separate(b, i, indent)
		line, err := compact(item)
		if err != nil {
			return err
		}
		b.Write(line)
	}
	return nil
}

func separate(b *bytes.Buffer, i int, indent string) {
	if i > 0 {
		b.WriteByte(',')
	}
	b.WriteString(indent)
}

// compact is the value as JSON on one line, with < and & as they are.
func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write plan: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// text is a string as JSON; strings always encode.
func text(s string) []byte {
	b, _ := compact(s)
	return b
}

// meets is how far apart, in windows, turns may be that are one.
const meets = 1e-9

// Turns are the parts of the window that the plan gives each instance on the
// GPU, by id, in order: under the model "rect" what its rectangle covers, under
// "tokens" the entries of the schedule that name it, as one where they meet.
// They mean something only on a GPU without a fault of verify's.
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
