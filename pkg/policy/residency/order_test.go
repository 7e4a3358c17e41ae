package residency

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestOrder checks the order of evictions. In a case, "a+" starts an invocation of function a,
// "a-" ends its oldest one, "a^" prefetches the memory of a, and "clear" removes the idle
// instances. Each function uses 10 bytes.
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
		{"an active function goes last", shape{Config: Config{Pool: 2, EvictLast: onlyA}}, "a+ b+ a- b- c+", "-b"},
		{"but goes when nothing else is idle", shape{Config: Config{Pool: 2, EvictLast: onlyA}}, "a+ b+ a- c+", "-a"},
		{"a pool of none keeps nothing", shape{Config: Config{Pool: 0}}, "a+ a-", "-a"},
		{"memory goes to the host, containers stay", shape{Config: Config{Pool: Unlimited}, Mem: 20}, "a+ b+ b- a- c+", "~b"},
		{"memory of active functions goes last", shape{Config: Config{Pool: Unlimited, EvictLast: onlyA}, Mem: 20}, "a+ b+ a- b- c+", "~b"},
		{"what went needs room to come back", shape{Config: Config{Pool: Unlimited}, Mem: 20}, "a+ a- b+ b- c+ c- a+", "~a ~b"},
		{"prefetching what is there changes nothing", shape{Config: Config{Pool: Unlimited, EvictLast: onlyA}, Mem: 20}, "a+ a- b+ b- a^", ""},
		{"prefetching moves nothing away", shape{Config: Config{Pool: Unlimited, EvictLast: onlyA}, Mem: 10}, "a+ a- b+ b- a^", "~a"},
		{"the least worth goes first", shape{Config: Config{Pool: 2, Worth: worthOf(3, 1, 2)}}, "a+ b+ a- b- c+", "-b"},
		{"worth of the memory that it frees", shape{Config: Config{Pool: Unlimited, Worth: worthOf(1, 3, 2)}, Mem: 20}, "b+ a+ b- a- c+", "~a"},
		{"clearing begins with the oldest", shape{Config: Config{Pool: Unlimited, UsesClear: true}}, "a+ b+ b- a- clear", "-b -a"},
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

// shape describes a pool with its GPUs and functions.
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

// worthOf returns constant worths by function.
func worthOf(worth ...float64) func(int32, time.Duration) float64 {
	return func(function int32, _ time.Duration) float64 { return worth[function] }
}

// play performs the words and returns the evictions: "-a" for an instance, "~a" for its memory.
func play(t *testing.T, p *Pool, script string) string {
	t.Helper()
	var evicted []string
	begun := map[int32][]int32{}
	for _, word := range strings.Fields(script) {
		f := int32(word[0] - 'a')
		switch {
		case word == "clear":
			p.Clear(0)
		case word[1] == '+':
			at, ok := p.Best(f, Any, Any)
			if !ok {
				t.Fatalf("%s: Best finds no GPU, want one", word)
			}
			index, _ := p.Begin(f, at)
			begun[f] = append(begun[f], index)
		case word[1] == '-':
			p.End(begun[f][0], 0)
			begun[f] = slices.Delete(begun[f], 0, 1)
		case word[1] == '^':
			prefetch(p, f)
		}
		for _, c := range confirmAll(p) {
			mark := '~'
			if c.Verb == ToRemove {
				mark = '-'
			}
			evicted = append(evicted, fmt.Sprintf("%c%c", mark, 'a'+c.Function))
		}
	}
	return strings.Join(evicted, " ")
}

// confirmAll performs stops and moves at once, and returns them.
func confirmAll(p *Pool) (confirmed []Change) {
	for p.Changed() {
		for _, c := range slices.Clone(p.Changes()) {
			switch c.Verb {
			case ToRemove:
				p.Lost(c.Index)
			case ToOffload:
				p.Moved(c.Index, HostWarm, true)
			default: // ToBegin: the moves above made room
				continue
			}
			confirmed = append(confirmed, c)
		}
	}
	return confirmed
}

// prefetch performs a prefetch at once.
func prefetch(p *Pool, function int32) (index int32, ok bool) {
	if index, ok = p.Prefetch(function, time.Second); ok {
		p.Moved(index, GPUWarm, true)
	}
	return index, ok
}

// TestReturningIsNotEvicted checks that room for the memory of an instance on the host is not made
// by stopping that instance, although it uses some memory and finished least recently.
func TestReturningIsNotEvicted(t *testing.T) {
	s := shape{Config: Config{Pool: Unlimited}, GPUs: 1, Slots: 3, Mem: 100}
	for _, mem := range []int64{40, 40, 25} {
		s.Function = append(s.Function, Function{Duration: [3]time.Duration{3, 2, 1}, Mem: mem})
	}
	const a, b, c = int32(0), int32(1), int32(2)
	p := s.pool()
	begin := func(function int32) int32 {
		at, ok := p.Best(function, Any, Any)
		if !ok {
			t.Fatalf("function %d: Best finds no GPU, want one", function)
		}
		index, _ := p.Begin(function, at)
		return index
	}
	for _, f := range []int32{a, b} {
		index := begin(f)
		p.Measured(index, 60, 20)
		p.End(index, 0)
		confirmAll(p)
	}
	begin(c)
	confirmAll(p)
	begin(a)
	if got := changeStrings(confirmAll(p)); !slices.Equal(got, []string{"gpu 0 removes 1"}) {
		t.Errorf("evictions: got %v, want gpu 0 removes 1", got)
	}
}

// TestWithdraw checks that withdrawing an instance from the queue for room leaves the others in the
// queue. Two instances wait until the memory of two idle ones has moved to the host.
func TestWithdraw(t *testing.T) {
	s := shape{Config: Config{Pool: Unlimited}, GPUs: 1, Slots: 4, Mem: 100}
	for range 4 {
		s.Function = append(s.Function, Function{Duration: [3]time.Duration{3, 2, 1}, Mem: 50})
	}
	p := s.pool()
	begin := func(function int32) int32 {
		at, ok := p.Best(function, Any, Any)
		if !ok {
			t.Fatalf("function %d: Best finds no GPU, want one", function)
		}
		index, _ := p.Begin(function, at)
		return index
	}
	for f := range int32(2) {
		p.End(begin(f), 0)
	}
	withdrawn, waiting := begin(2), begin(3)
	if !p.IsQueued(withdrawn) || !p.IsQueued(waiting) {
		t.Fatalf("queued instances: got %v, %v; want both", p.IsQueued(withdrawn), p.IsQueued(waiting))
	}
	p.Withdraw(withdrawn)
	if !p.IsQueued(waiting) {
		t.Error("after the other one was withdrawn, the waiting instance is not queued, want it queued")
	}
	confirmAll(p)
	if p.IsQueued(waiting) {
		t.Error("after the memory of the idle instances has moved, the waiting instance is queued, want it started")
	}
}
