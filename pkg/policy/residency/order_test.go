package residency

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestOrder tells what leaves a GPU, in a few words a case: "a+" starts an
// invocation of function a, "a-" ends the one that began first, "a^" brings the
// memory of a back, "clear" removes what idles. Each function has 10 bytes.
func TestOrder(t *testing.T) {
	const a = int32(0)
	onlyA := func(function int32) bool { return function == a }
	for _, c := range []struct {
		name  string
		shape shape
		does  string
		want  string
	}{
		{"least recently finished is removed first", shape{Config: Config{Pool: 2}}, "a+ b+ b- a- c+", "-b"},
		{"what began first is not what counts", shape{Config: Config{Pool: 2}}, "a+ b+ a- b- c+", "-a"},
		{"what runs stays, beyond the limit", shape{Config: Config{Pool: 1}}, "a+ b+ c+", ""},
		{"and the limit holds once something ends", shape{Config: Config{Pool: 1}}, "a+ b+ a- c+ b-", "-a -b"},
		{"an active function goes last", shape{Config: Config{Pool: 2, Keep: onlyA}}, "a+ b+ a- b- c+", "-b"},
		{"but goes when nothing else is idle", shape{Config: Config{Pool: 2, Keep: onlyA}}, "a+ b+ a- c+", "-a"},
		{"a pool of none keeps nothing", shape{Config: Config{Pool: 0}}, "a+ a-", "-a"},
		{"memory goes to the host, containers stay", shape{Config: Config{Pool: Unlimited}, Mem: 20}, "a+ b+ b- a- c+", "~b"},
		{"memory of active functions goes last", shape{Config: Config{Pool: Unlimited, Keep: onlyA}, Mem: 20}, "a+ b+ a- b- c+", "~b"},
		{"what went needs room to come back", shape{Config: Config{Pool: Unlimited}, Mem: 20}, "a+ a- b+ b- c+ c- a+", "~a ~b"},
		{"prefetching what is there changes nothing", shape{Config: Config{Pool: Unlimited, Keep: onlyA}, Mem: 20}, "a+ a- b+ b- a^", ""},
		{"prefetching moves nothing away", shape{Config: Config{Pool: Unlimited, Keep: onlyA}, Mem: 10}, "a+ a- b+ b- a^", "~a"},
		{"the least worth goes first", shape{Config: Config{Pool: 2, Worth: worthOf(3, 1, 2)}}, "a+ b+ a- b- c+", "-b"},
		{"worth of the memory that it frees", shape{Config: Config{Pool: Unlimited, Worth: worthOf(1, 3, 2)}, Mem: 20}, "b+ a+ b- a- c+", "~a"},
		{"clearing begins with the oldest", shape{Config: Config{Pool: Unlimited, Clears: true}}, "a+ b+ b- a- clear", "-b -a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.shape.GPUs, c.shape.Slots = 1, 3
			for range 4 {
				c.shape.Function = append(c.shape.Function, Function{Duration: [3]time.Duration{3, 2, 1}, Mem: 10})
			}
			if got := play(t, c.shape.pool(), c.does); got != c.want {
				t.Errorf("%s: %s went, want %s", c.does, got, c.want)
			}
		})
	}
}

// shape is a pool with its machine and functions.
type shape struct {
	Config
	GPUs, Slots int
	Mem         int64
	Function    []Function
}

func (s shape) pool() *Pool {
	p := New(s.Config)
	for g := range s.GPUs {
		p.SetGPU(int32(g), s.Slots, s.Mem)
	}
	for i, f := range s.Function {
		p.SetFunction(int32(i), f)
	}
	return p
}

// worthOf is a worth that does not depend on time.
func worthOf(worth ...float64) func(int32, time.Duration) float64 {
	return func(function int32, _ time.Duration) float64 { return worth[function] }
}

// play does what the words say and tells what left: "-a" a container, "~a" its
// memory.
func play(t *testing.T, p *Pool, does string) string {
	t.Helper()
	var out []string
	begun := map[int32][]int32{}
	for _, word := range strings.Fields(does) {
		f := int32(word[0] - 'a')
		switch {
		case word == "clear":
			p.Clear(0)
		case word[1] == '+':
			at, ok := p.Best(f, Any, Any)
			if !ok {
				t.Fatalf("%s: no room", word)
			}
			slot, _ := p.Begin(f, at)
			begun[f] = append(begun[f], slot)
		case word[1] == '-':
			p.End(begun[f][0], 0)
			begun[f] = slices.Delete(begun[f], 0, 1)
		case word[1] == '^':
			prefetch(p, f)
		}
		for _, c := range answered(p) {
			mark := '~'
			if c.Verb == Removed {
				mark = '-'
			}
			out = append(out, fmt.Sprintf("%c%c", mark, 'a'+c.Function))
		}
	}
	return strings.Join(out, " ")
}

// answered has instances stop and move as soon as they are told to, and returns what they
// were told.
func answered(p *Pool) (out []Change) {
	for p.Changed() {
		for _, c := range slices.Clone(p.Changes()) {
			switch c.Verb {
			case Removed:
				p.Lost(c.Slot)
			case Offloaded:
				p.Moved(c.Slot, HostWarm, true)
			default: // Placed: there was to be room for it
				continue
			}
			out = append(out, c)
		}
	}
	return out
}

// prefetch has the memory of an instance come back as soon as it is told to.
func prefetch(p *Pool, function int32) (slot int32, ok bool) {
	if slot, ok = p.Prefetch(function, time.Second); ok {
		p.Moved(slot, GPUWarm, true)
	}
	return slot, ok
}
