package objects_test

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/objects"
)

func TestOrderOfEviction(t *testing.T) {
	c := objects.New[int](100)
	for id := range 5 {
		c.Add(id, 20)
		c.Leave(id)
	}
	for _, id := range []int{1, 0} { // used twice, so they are evicted last, 1 before 0
		c.Use(id)
		c.Leave(id)
	}
	c.Use(3) // and is in use
	if got, ok := c.Room(0); len(got) != 0 || !ok {
		t.Errorf("room for 0 bytes: got evictions %v, %v; want none, true", got, ok)
	}
	if got, ok := c.Room(1); !ok || !reflect.DeepEqual(got, []int{2}) {
		t.Errorf("room for 1 byte: got evictions %v, %v; want [2], true", got, ok)
	}
	if got, ok := c.Room(80); !ok || !reflect.DeepEqual(got, []int{2, 4, 1, 0}) {
		t.Errorf("room for 80 bytes, all that is not in use: got evictions %v, %v; want [2 4 1 0], true", got, ok)
	}
	if _, ok := c.Room(81); ok {
		t.Error("room for 81 bytes, of which 20 are in use: got true, want false")
	}
	c.Remove(3)
	if c.Used() != 80 || c.Len() != 4 {
		t.Errorf("after object 3 was removed: got %d bytes in %d objects, want 80 in 4", c.Used(), c.Len())
	}
}

// TestAgainstList checks that the cache evicts in the same order as a simple list
// of all uses.
func TestAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type object struct {
			id         int
			size       int64
			uses, pins int
			lastUse    int // the time of the last Leave
		}
		const budget = 100
		c := objects.New[int](budget)
		var all []*object
		var clock int
		var used int64
		next := 0
		want := func(bytes int64) (out []int, ok bool) {
			idle := slices.DeleteFunc(slices.Clone(all), func(o *object) bool { return o.pins > 0 })
			slices.SortFunc(idle, func(a, b *object) int {
				if once := a.uses == 1; once != (b.uses == 1) {
					if once {
						return -1
					}
					return 1
				}
				return a.lastUse - b.lastUse
			})
			missing := used + bytes - budget
			for _, o := range idle {
				if missing <= 0 {
					break
				}
				out = append(out, o.id)
				missing -= o.size
			}
			return out, missing <= 0
		}
		remove := func(o *object) {
			c.Remove(o.id)
			used -= o.size
			all = slices.DeleteFunc(all, func(p *object) bool { return p == o })
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			clock++
			some := rapid.IntRange(0, 1<<20).Draw(t, "which")
			switch what := rapid.IntRange(0, 3).Draw(t, "what"); {
			case what == 0:
				size := rapid.Int64Range(1, 60).Draw(t, "size")
				evicted, ok := c.Room(size)
				wanted, fits := want(size)
				if !slices.Equal(evicted, wanted) || ok != fits {
					t.Fatalf("room for %d bytes: got evictions %v, %v; want %v, %v", size, evicted, ok, wanted, fits)
				}
				if !ok {
					continue
				}
				for _, id := range evicted {
					remove(all[slices.IndexFunc(all, func(o *object) bool { return o.id == id })])
				}
				c.Add(next, size)
				all = append(all, &object{id: next, size: size, uses: 1, pins: 1})
				used += size
				next++
			case len(all) == 0:
			case what == 1:
				o := all[some%len(all)]
				c.Use(o.id)
				o.uses++
				o.pins++
			case what == 2:
				if o := all[some%len(all)]; o.pins > 0 {
					c.Leave(o.id)
					o.pins--
					o.lastUse = clock
				}
			default:
				remove(all[some%len(all)])
			}
			if c.Used() != used || c.Len() != len(all) {
				t.Fatalf("cache: got %d bytes in %d objects, want %d in %d", c.Used(), c.Len(), used, len(all))
			}
		}
	})
}
