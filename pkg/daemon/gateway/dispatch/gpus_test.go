package dispatch

import (
	"slices"
	"testing"
)

// GPUs keep their numbers while they come and go, and the classes of models keep theirs.
func TestGPUsSet(t *testing.T) {
	d := newDispatcher(t, nil, func(c *Config, _ *Settings) { c.GPUs = []GPU{{Name: "a/0", Mem: 1 << 30, Model: "L4"}} })
	var closed []bool
	state := func() []bool {
		closed = nil
		for _, g := range d.Status().GPUs {
			closed = append(closed, g.Closed)
		}
		return closed
	}
	b := GPU{Name: "b/0", Mem: 2 << 30, Model: "H200"}
	d.GPUs.Set([]GPU{b})
	if got := state(); !slices.Equal(got, []bool{true, false}) {
		t.Errorf("node a lost, node b joined: closed %v, want the first", got)
	}
	if got := []int32{d.GPUs.classOf(0), d.GPUs.classOf(1)}; got[0] == 0 || got[1] == 0 || got[0] == got[1] {
		t.Errorf("classes of two models: %v, want two", got)
	}
	before := d.GPUs.classOf(1)
	d.GPUs.Set([]GPU{b, {Name: "c/0", Model: "A100"}, {Name: "a/0", Mem: 1 << 30, Model: "L4"}})
	if got := state(); !slices.Equal(got, []bool{false, false, false}) || d.GPUs.list[2].Name != "c/0" {
		t.Errorf("node a back, node c joined: closed %v, GPUs %v", got, d.GPUs.list)
	}
	if d.GPUs.classOf(1) != before {
		t.Errorf("class of b/0: %d, then %d", before, d.GPUs.classOf(1))
	}
	d.GPUs.Set(nil)
	if got := state(); !slices.Equal(got, []bool{true, true, true}) {
		t.Errorf("no node: closed %v, want all", got)
	}
}
