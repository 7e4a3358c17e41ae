package plan

import (
	"fmt"
	"io"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/jsonfile"
)

// Version is the version of the plan format.
const Version = 1

// Models of what a GPU can host side by side (docs/files.md).
const (
	ModelRect   = "rect"   // each instance has a fixed rectangle of window × SMs
	ModelTokens = "tokens" // a timetable says which instances may run together
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
	case p.Model != ModelRect && p.Model != ModelTokens:
		return "model", fmt.Sprintf("%s, expected %s or %s", csvfile.Quote(p.Model), ModelRect, ModelTokens)
	}
	for i, g := range p.GPUs {
		if key, what := g.fault(p.Model); what != "" {
			return fmt.Sprintf("gpus[%d].%s", i, key), what
		}
	}
	for i, d := range p.Demand {
		if d.Function == "" {
			return fmt.Sprintf("demand[%d].function", i), "empty, expected a name"
		}
	}
	for i, u := range p.Unplaced {
		if u.Function == "" {
			return fmt.Sprintf("unplaced[%d].function", i), "empty, expected a name"
		}
	}
	return "", ""
}

func (g GPU) fault(model string) (key, what string) {
	switch {
	case g.Node == "":
		return "node", "empty, expected a name"
	case g.Index < 0:
		return "index", fmt.Sprintf("%d, expected 0 or more", g.Index)
	case g.MemMiB < 0:
		return "mem_mib", "negative, expected 0 or more"
	}
	for i, in := range g.Instances {
		at := func(key string) string { return fmt.Sprintf("instances[%d].%s", i, key) }
		switch {
		case in.ID == "":
			return at("id"), "empty, expected a name"
		case in.Function == "":
			return at("function"), "empty, expected a name"
		case in.Batch < 1:
			return at("batch"), fmt.Sprintf("%d, expected 1 or more", in.Batch)
		case model == ModelRect && in.X == nil:
			return at("x"), "the key is missing, expected a fraction with the model rect"
		case model == ModelRect && in.Y == nil:
			return at("y"), "the key is missing, expected a percentage with the model rect"
		}
	}
	return "", ""
}
