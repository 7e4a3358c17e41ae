package place

import (
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/plan"
)

// maxID is the longest ID, in bytes.
const maxID = 63

// ids makes unique IDs of instances.
type ids struct {
	used  map[string]bool
	count map[string]int
}

// next returns a new ID for an instance of the function: the function's name and the next number.
func (i *ids) next(function string) string {
	name := idName(function)
	for {
		n := strconv.Itoa(i.count[name])
		i.count[name]++
		id := name[:min(len(name), maxID-1-len(n))] + "-" + n
		if !i.used[id] {
			i.used[id] = true
			return id
		}
	}
}

// idName returns a function's name with the characters that IDs may not have replaced by dashes.
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

// ValidIDs replaces the IDs of a plan that are not valid for instances, such as IDs made from
// function names with blanks or slashes. It changes p in place and returns it.
func ValidIDs(p plan.Plan) plan.Plan {
	unique := ids{map[string]bool{}, map[string]int{}}
	invalid := false
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			unique.used[in.ID] = true
			invalid = invalid || !instance.ValidID(in.ID)
		}
	}
	if !invalid {
		return p
	}
	names := map[string]string{}
	for _, g := range p.GPUs {
		for i := range g.Instances {
			in := &g.Instances[i]
			if !instance.ValidID(in.ID) {
				if names[in.ID] == "" {
					names[in.ID] = unique.next(in.Function)
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
