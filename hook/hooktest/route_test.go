package hooktest

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ways are the ways to find a function of the driver.
var ways = []string{"link", "dlsym", "default", "next", "plugin-default", "plugin-next", "plugin-deep", "namespace", "plugin-namespace", "proc", "proc2", "proc-of-proc"}

// TestRoutes sends work by every function that there is, found in every way,
// under a real daemon: the results are right, which the program checks, and
// every kernel is counted.
func TestRoutes(t *testing.T) {
	const count = 3
	h := newHost(t)
	h.start()
	rows, _ := symbols(t)
	version := simVersion(t)
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			h := h.within(t)
			p := h.run(h.register(way, whole), "check/route", way, "all", fmt.Sprint(count))
			h.eventually("the program is done", func() bool { h.alive(p, way); return strings.HasSuffix(p.out.String(), "done\n") })
			ok, absent, launches := routed(p.out.String())
			h.eventually("every launch is counted", func() bool {
				row, ok := h.row(way)
				return ok && row.Launches >= launches
			})
			if row, _ := h.row(way); row.Launches != launches {
				t.Errorf("%d launches counted, of %d", row.Launches, launches)
			}
			for name := range absent {
				t.Errorf("the driver lacks %s", name)
			}
			for _, s := range rows {
				// The driver's own lookup knows nothing that is newer than it is.
				known := s.inSim && !(strings.HasPrefix(way, "proc") && s.since > version)
				for _, name := range s.all() {
					if known && (slices.Contains(rowWork, s.hook) && !ok[name] || absent[name]) {
						t.Errorf("no call of %s was made", name)
					}
				}
			}
			if err := p.wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// simVersion is the CUDA version that the simulated driver says it is of.
func simVersion(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("../sim/sim.h")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`#define SIM_DRIVER_VERSION (\d+)`).FindSubmatch(text)
	if m == nil {
		t.Fatal("sim.h names no version")
	}
	version, _ := strconv.Atoi(string(m[1]))
	return version
}

// routed reads what check/route says: the functions called and those that the
// driver lacks, without what is particular about the call, and the kernels
// launched.
func routed(out string) (ok, absent map[string]bool, launches uint64) {
	ok, absent = map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(out) {
		var call string
		var n uint64
		if _, err := fmt.Sscanf(line, "ok %s %d", &call, &n); err == nil {
			name, _, _ := strings.Cut(call, "+")
			ok[name] = true
			launches += n
		} else if _, err := fmt.Sscanf(line, "absent %s", &call); err == nil {
			name, _, _ := strings.Cut(call, "+")
			absent[name] = true
		}
	}
	return ok, absent, launches
}

// TestGated sends work by every function, found in every way, to a gate that is
// shut: nothing comes through until it opens, and then the result is right. The
// kernels are counted when they were launched. The last driver answers lookups
// with addresses that none of its exports has.
func TestGated(t *testing.T) {
	t.Parallel()
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			gated(t, way)
		})
	}
	for _, way := range []string{"proc", "proc2", "proc-of-proc"} {
		t.Run("hidden-"+way, func(t *testing.T) {
			t.Parallel()
			gated(t, way, hidden(t)...)
		})
	}
}

func gated(t *testing.T, way string, env ...string) {
	k := newKeeper(t)
	h := &host{t: t}
	k.allow()
	c := &talk{h: h, p: h.run(append(k.environ(), env...), "check/route", way, "step", "1")}
	calls := 0
	for said := c.next(); said != "done"; said = c.next() {
		name, ok := strings.CutPrefix(said, "ready ")
		if !ok {
			continue // absent: TestRoutes says which may be
		}
		calls++
		k.shut()
		before, _ := k.account()
		c.says()
		if said := c.line(k.waits); said != "" {
			t.Fatalf("%s went through a shut gate: %s", name, said)
		}
		k.allow()
		said = c.next()
		k.shut()
		after, _ := k.account()
		k.allow()
		if want := fmt.Sprintf("ok %s %d", name, after-before); said != want {
			t.Fatalf("%q, want %q", said, want)
		}
	}
	if calls < 60 {
		t.Errorf("only %d calls", calls)
	}
	if err := c.p.wait(); err != nil {
		t.Error(err)
	}
}

// TestSaysUncancelled has the library say something in a thread that is to be
// cancelled at the next occasion: that is none.
func TestSaysUncancelled(t *testing.T) {
	k := newKeeper(t)
	h := &host{t: t}
	p := h.run(k.environ(), "check/cancelled")
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(p.errout.String(), "RTLD_DEEPBIND") {
		t.Errorf("it said %q", p.errout.String())
	}
}
