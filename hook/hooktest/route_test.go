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

// variants lists the ways to find a function of the driver.
var variants = []string{"link", "dlsym", "default", "next", "plugin-default", "plugin-next", "plugin-deep", "namespace", "plugin-namespace", "proc", "proc2", "proc-of-proc"}

// TestRoutes sends work by every function, found in every way, under a real daemon. The
// results are right, which the program checks, and every kernel is counted.
func TestRoutes(t *testing.T) {
	t.Parallel()
	const count = 3
	h := newHost(t)
	h.start()
	rows, _ := symbols(t)
	version := simVersion(t)
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			h := h.within(t)
			p := h.run(h.register(variant, whole), "check/route", variant, "all", fmt.Sprint(count))
			h.eventually("the program has made all calls", func() bool { h.alive(p, variant); return strings.HasSuffix(p.out.String(), "done\n") })
			ok, absent, launches := routed(p.out.String())
			h.eventually("every launch is counted", func() bool {
				row, ok := h.row(variant)
				return ok && row.Launches >= launches
			})
			if row, _ := h.row(variant); row.Launches != launches {
				t.Errorf("counted launches of %s: got %d, want %d", variant, row.Launches, launches)
			}
			for name := range absent {
				t.Errorf("functions of the driver: got no %s, want it", name)
			}
			for _, s := range rows {
				// The driver's own lookup does not find functions newer than the
				// driver.
				known := s.inSim && !(strings.HasPrefix(variant, "proc") && s.since > version)
				for _, name := range s.exportedNames() {
					if known && (slices.Contains(rowWork, s.hook) && !ok[name] || absent[name]) {
						t.Errorf("calls of %s: got none, want one", name)
					}
				}
			}
			if err := p.wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// simVersion returns the CUDA version of the simulated driver.
func simVersion(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("../sim/sim.h")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`#define SIM_DRIVER_VERSION (\d+)`).FindSubmatch(text)
	if m == nil {
		t.Fatal("../sim/sim.h does not define SIM_DRIVER_VERSION, want a number")
	}
	version, _ := strconv.Atoi(string(m[1]))
	return version
}

// routed parses the output of check/route. It returns the called and the missing
// functions, without their variants, and the number of launched kernels.
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

// TestGated sends work by every function, found in every way, to a closed gate. No work
// passes until the gate opens, and then the result is right. Kernels are counted after
// they were launched. The last driver's cuGetProcAddress returns addresses that it does
// not export.
func TestGated(t *testing.T) {
	t.Parallel()
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			checkGated(t, variant)
		})
	}
	for _, variant := range []string{"proc", "proc2", "proc-of-proc"} {
		t.Run("hidden-"+variant, func(t *testing.T) {
			t.Parallel()
			checkGated(t, variant, hidden(t)...)
		})
	}
}

func checkGated(t *testing.T, variant string, env ...string) {
	k := newKeeper(t)
	h := &host{t: t}
	k.openGate()
	c := &talk{h: h, p: h.run(append(k.environ(), env...), "check/route", variant, "step", "1")}
	calls := 0
	for output := c.next(); output != "done"; output = c.next() {
		name, ok := strings.CutPrefix(output, "ready ")
		if !ok {
			continue // absent: TestRoutes checks which functions may be
		}
		calls++
		k.drain()
		before, _ := k.account()
		c.sendLine()
		if output := c.line(k.waits); output != "" {
			t.Fatalf("%s at a closed gate: got the output %s, want a wait", name, output)
		}
		k.openGate()
		output = c.next()
		k.drain()
		after, _ := k.account()
		k.openGate()
		if want := fmt.Sprintf("ok %s %d", name, after-before); output != want {
			t.Fatalf("%s at an open gate: got %q, want %q", name, output, want)
		}
	}
	if calls < 60 {
		t.Errorf("gated calls: got %d, want at least 60", calls)
	}
	if err := c.p.wait(); err != nil {
		t.Error(err)
	}
}

// TestMessageIsNoCancellationPoint lets the library print a message in a thread that
// has a pending cancellation. The message is no cancellation point.
func TestMessageIsNoCancellationPoint(t *testing.T) {
	t.Parallel()
	k := newKeeper(t)
	h := &host{t: t}
	p := h.run(k.environ(), "check/cancelled")
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(p.errout.String(), "RTLD_DEEPBIND") {
		t.Errorf(`messages of the program: got %q, want a text with "RTLD_DEEPBIND"`, p.errout.String())
	}
}
