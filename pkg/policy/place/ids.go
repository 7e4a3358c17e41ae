package place

import (
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/plan"
)

// maxID is the longest id, in bytes.
const maxID = 63

// ids makes ids of instances that no other has.
type ids struct {
	taken map[string]bool
	count map[string]int
}

// next is a new id for an instance of the function: its name with the next
// number. What ids may not have becomes a dash.
func (i *ids) next(function string) string {
	name := idName(function)
	for {
		n := strconv.Itoa(i.count[name])
		i.count[name]++
		id := name[:min(len(name), maxID-1-len(n))] + "-" + n
		if !i.taken[id] {
			i.taken[id] = true
			return id
		}
	}
}

// idName is a function's name in the letters that ids have.
func idName(function string) string {
	if instance.ValidID(function) {
		return function
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, function)
	name = strings.TrimLeft(name, ".-_")
	if name == "" {
		name = "f"
	}
	return name
}

// ValidIDs replaces the ids of a plan that no instance may have, as those made
// of a function's name with blanks or slashes; the plan is changed in place.
func ValidIDs(p plan.Plan) plan.Plan {
	made := ids{map[string]bool{}, map[string]int{}}
	bad := false
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			made.taken[in.ID] = true
			bad = bad || !instance.ValidID(in.ID)
		}
	}
	if !bad {
		return p
	}
	names := map[string]string{}
	for _, g := range p.GPUs {
		for i := range g.Instances {
			in := &g.Instances[i]
			if !instance.ValidID(in.ID) {
				if names[in.ID] == "" {
					names[in.ID] = made.next(in.Function)
				}
				in.ID = names[in.ID]
			}
		}
		for _, entry := range g.Schedule {
			for i, id := range entry.Instances {
				if name, renamed := names[id]; renamed {
					entry.Instances[i] = name
				}
			}
		}
	}
	return p
}
