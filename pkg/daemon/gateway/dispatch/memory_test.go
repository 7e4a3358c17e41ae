package dispatch

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// The use of a GPU is known only while its node reports it, and processes of different nodes may have equal PIDs.
func TestMeasuredByNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total, pid = 16 << 30, 7
		d := newDispatcher(t, fakeShell{}, func(c *Config, _ *Settings) {
			c.GPUs = []GPU{{Name: "a/0", Mem: total}, {Name: "b/0", Mem: total}}
		})
		run(t, d, time.Second)
		ran := d.Status().Instances[0]
		other := map[string]string{"a/0": "b/0", "b/0": "a/0"}[ran.GPU]
		s := &wire.Status{GPUs: []wire.GPUStatus{{GPU: ran.GPU, Clients: []wire.ClientStatus{{Instance: ran.ID, PID: pid, MemUsedMiB: 1024, SMPct: 100, Used: 0.5}}}, {GPU: other}}}
		on := Memory{Total: total, Free: total - 1<<30, Processes: map[int]int64{pid: 1 << 30}}
		report := func(s *wire.Status, drivers map[string]Memory) {
			d.SetUsage(s)
			d.Measured(s, drivers)
			time.Sleep(2 * MemoryEvery)
		}
		figures := func(name string) (busy, used, others float64, known bool) {
			for _, g := range d.Status().GPUs {
				if g.GPU == name && g.BusyPct != nil && g.MemOtherMiB != nil {
					return *g.BusyPct, *g.MemUsedMiB, *g.MemOtherMiB, true
				}
			}
			return 0, 0, 0, false
		}
		report(s, map[string]Memory{ran.GPU: on, other: on})
		if busy, used, others, known := figures(ran.GPU); !known || busy != 50 || used != 1024 || others != 0 {
			t.Errorf("%s: %v%% busy, %v MiB used, %v by others, known %v; want 50%%, 1024 and 0", ran.GPU, busy, used, others, known)
		}
		if busy, used, others, known := figures(other); !known || busy != 0 || used != 1024 || others != 1024 {
			t.Errorf("%s: %v%% busy, %v MiB used, %v by others, known %v; want 0%%, 1024 and 1024: its process with the PID of the instance is another one", other, busy, used, others, known)
		}
		d.mu.Lock()
		if use := d.memory.use(int32(strings.Index("ab", other[:1]))); !strings.HasSuffix(use, "other programs use 1GiB (process 7: 1GiB)") {
			t.Errorf("use of %s: %q, want no name of a process of this machine", other, use)
		}
		d.mu.Unlock()

		s.GPUs = s.GPUs[1:] // the node of the instance does not answer
		report(s, map[string]Memory{ran.GPU: on, other: on})
		if _, _, _, known := figures(ran.GPU); known {
			t.Errorf("the use of %s is known without a report of its node", ran.GPU)
		}
		if _, known := BusyOf(s, ran.GPU); known {
			t.Errorf("the utilization of %s is known without a report of its node", ran.GPU)
		}
	})
}
