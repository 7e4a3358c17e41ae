package instancetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// longGrace exceeds the time limit of every test, so a Stop that uses it up has failed.
const longGrace = 5 * time.Minute

func testServes(t *testing.T, p *probe) {
	begin := time.Now()
	h := p.serving(p.spec("serves"))
	if h.Runtime != p.runtime.Name() {
		t.Errorf("Handle.Runtime = %q, Name = %q", h.Runtime, p.runtime.Name())
	}
	if h.Started.Before(begin.Add(-time.Second)) || h.Started.After(time.Now().Add(time.Second)) {
		t.Errorf("Started = %v, want about %v", h.Started, begin)
	}
	if !p.state(h).Running {
		t.Errorf("State = %+v, want running", p.state(h))
	}
	p.eventually("its last lines are in the log", func() bool {
		return p.logs(h, 2) == "line 20\nlistening\n"
	})
	if all := p.logs(h, 1000); !strings.HasPrefix(all, "line 1\n") {
		t.Errorf("the whole log begins %q, want line 1", all)
	}
}

func testLogs(t *testing.T, p *probe) {
	begin := time.Now().Add(-time.Second)
	h := p.serving(p.spec("logs"))
	p.eventually("all is in the log", func() bool { return strings.HasSuffix(p.logs(h, -1), "listening\n") })
	var lines []ports.LogLine
	for line, err := range p.runtime.Logs(p.ctx, h, ports.LogOptions{Tail: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		if line.Time.Before(begin) || line.Time.After(time.Now().Add(time.Second)) {
			t.Errorf("%+v, want a time from %v on", line, begin)
		}
		begin = line.Time
		lines = append(lines, line)
	}
	if len(lines) != 21 || lines[0].Text != "line 1" || lines[20].Text != "listening" {
		t.Errorf("the log is %+v", lines)
	}
	if len(lines) > 0 && h.Started.After(lines[0].Time) {
		t.Errorf("Started = %v, want no time after its first line, %v", h.Started, lines[0].Time)
	}
	for line, err := range p.runtime.Logs(p.ctx, h, ports.LogOptions{Tail: -1, Since: begin}) {
		if err != nil || line.Time.Before(begin) {
			t.Errorf("since %v: %+v, %v", begin, line, err)
		}
	}
	for line, err := range p.runtime.Logs(p.ctx, h, ports.LogOptions{Tail: -1, Since: begin.Add(time.Hour)}) {
		t.Errorf("since later: %+v, %v", line, err)
	}
	for line := range p.runtime.Logs(p.ctx, h, ports.LogOptions{Tail: -1, Follow: true}) {
		if line.Text == "line 3" {
			break
		}
	}
}

func testFollow(t *testing.T, p *probe) {
	h := p.serving(p.spec("follows"))
	p.eventually("all is in the log", func() bool { return strings.HasSuffix(p.logs(h, -1), "listening\n") })
	ctx, cancel := context.WithCancel(p.ctx)
	var given error
	for line, err := range p.runtime.Logs(ctx, h, ports.LogOptions{Tail: 1, Follow: true}) {
		if given = err; line.Text == "listening" {
			cancel()
		}
	}
	cancel()
	if !errors.Is(given, context.Canceled) {
		t.Errorf("following with a cancelled context ends with %v", given)
	}
	stopped := make(chan error, 1)
	var first ports.LogLine
	for line, err := range p.runtime.Logs(p.ctx, h, ports.LogOptions{Tail: 1, Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if first.Text == "" {
			first = line
			go func() { stopped <- p.runtime.Stop(p.ctx, h, longGrace) }()
		}
	}
	if err := <-stopped; err != nil || first.Text != "listening" {
		t.Errorf("Stop: %v, followed from %+v on", err, first)
	}
	if text := p.logs(h, -1); text != "" {
		t.Errorf("Logs after Stop: %q, want none", text)
	}
}

func testLongLine(t *testing.T, p *probe) {
	const size = 2*ports.MaxLogLine + 1000
	h := p.start(p.spec("long", "PROBE_EXIT=0", fmt.Sprint("PROBE_LONG=", size)))
	if state := <-p.waiting(p.ctx, h); state.err != nil {
		t.Fatal(state.err)
	}
	want := strings.Repeat("x", size) + "\nexiting\n"
	p.eventually("all is in the log", func() bool { return len(p.logs(h, -1)) >= len(want) })
	if text := p.logs(h, -1); text != want {
		t.Errorf("%d bytes, want %d of which the first %d are x", len(text), len(want), size)
	}
}

func testEnvironment(t *testing.T, p *probe) {
	spec := p.spec("environment")
	spec.Oversubscribe = gpu.SwapOrdered
	h := p.serving(spec)
	for name, want := range map[string]string{
		"PROBE_GREETING":                    "hello there",
		"GFAAS_INSTANCE":                    spec.ID,
		"GFAAS_SECRET":                      spec.Secret,
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "24.5",
		"CUDA_VISIBLE_DEVICES":              "0",
		"GFAAS_OVERSUBSCRIBE":               "ordered",
	} {
		if got, _ := p.get(h, "/env/"+name); got != want {
			t.Errorf("%s = %q in the instance, want %q", name, got, want)
		}
	}
	for _, name := range []string{"PORT", "GFAAS_SOCKET", "LD_PRELOAD", "LD_LIBRARY_PATH"} {
		if got, status := p.get(h, "/env/"+name); status != 200 || got == "" {
			t.Errorf("%s is not set in the instance", name)
		}
	}
}

func testExitStatus(t *testing.T, p *probe) {
	h := p.start(p.spec("exits", "PROBE_EXIT=3"))
	p.eventually("it has ended", func() bool { return !p.state(h).Running })
	state := p.state(h)
	if state.ExitCode != 3 || !strings.Contains(state.Detail, "3") {
		t.Errorf("State = %+v, want exit code 3 in ExitCode and Detail", state)
	}
	p.eventually("its last line is in the log", func() bool { return strings.Contains(p.logs(h, 10), "exiting\n") })
}

func testStops(t *testing.T, p *probe) {
	h := p.serving(p.spec("stops"))
	if elapsed := p.stop(p.ctx, h, longGrace); elapsed > p.suite.OperationTimeout {
		t.Errorf("Stop took %v", elapsed)
	}
	p.checkStopped(h)
	if elapsed := p.stop(p.ctx, h, longGrace); elapsed > p.suite.OperationTimeout {
		t.Errorf("second Stop took %v", elapsed)
	}
}

func testStubborn(t *testing.T, p *probe) {
	h := p.serving(p.spec("stubborn", "PROBE_STUBBORN=1"))
	const grace = time.Second
	if elapsed := p.stop(p.ctx, h, grace); elapsed < grace || elapsed > grace+p.suite.OperationTimeout {
		t.Errorf("Stop took %v, want a little more than the grace of %v", elapsed, grace)
	}
	p.checkStopped(h)
}

func testCancelledStop(t *testing.T, p *probe) {
	h := p.serving(p.spec("cancelled", "PROBE_STUBBORN=1"))
	ctx, cancel := context.WithCancel(p.ctx)
	cancel()
	if elapsed := p.stop(ctx, h, longGrace); elapsed > p.suite.OperationTimeout {
		t.Errorf("Stop took %v", elapsed)
	}
	p.checkStopped(h)
}

func testChildren(_ *testing.T, p *probe) {
	h := p.serving(p.spec("children", "PROBE_CHILD=1"))
	p.stop(p.ctx, h, 100*time.Millisecond)
	p.checkStopped(h)
}

func testOrphans(_ *testing.T, p *probe) {
	h := p.start(p.spec("orphans", "PROBE_CHILD=1", "PROBE_EXIT=0"))
	p.eventually("the parent has ended", func() bool { return !p.state(h).Running })
	p.stop(p.ctx, h, 100*time.Millisecond)
	p.checkStopped(h)
}

func testAnother(t *testing.T, p *probe) {
	h := forget(t, p.serving(p.spec("another")))
	other := p.another()
	if !other.state(h).Running {
		t.Errorf("State = %+v, want running", other.state(h))
	}
	other.eventually("its last line is in the log", func() bool { return other.logs(h, 1) == "listening\n" })
	other.stop(p.ctx, h, longGrace)
	other.checkStopped(h)
}

// job returns the spec of a job that is restarted once.
func (p *probe) job(id string, settings ...string) instance.Spec {
	spec := p.spec(id, settings...)
	spec.Job, spec.Restart = &instance.Job{MaxRestarts: 1}, function.RestartOnFailure
	return spec
}

func testJob(t *testing.T, p *probe) {
	h := p.start(p.job("succeeds", "PROBE_EXIT=0"))
	if h.Address != "" {
		t.Errorf("address of a job: got %s, want none", h.Address)
	}
	if got := <-p.waiting(p.ctx, h); got.err != nil || got.state.Running || got.state.ExitCode != 0 || got.state.Restarts != 0 {
		t.Errorf("Wait = %+v, want exit code 0 and no restart", got)
	}
}

// testFailingJob also checks that the result is known to another command.
func testFailingJob(t *testing.T, p *probe) {
	h := forget(t, p.start(p.job("fails", "PROBE_EXIT=3")))
	p = p.another()
	if got := <-p.waiting(p.ctx, h); got.err != nil || got.state.Running || got.state.ExitCode != 3 || got.state.Restarts != 1 || got.state.Restarting {
		t.Errorf("Wait = %+v, want exit code 3 after one restart", got)
	}
	p.eventually("the output of both runs is in the log", func() bool { return strings.Count(p.logs(h, -1), "exiting\n") == 2 })
	p.stop(p.ctx, h, 0)
	p.checkStopped(h)
}

// waiting calls Wait in the background.
func (p *probe) waiting(ctx context.Context, h instance.Handle) <-chan exitResult {
	out := make(chan exitResult, 1)
	go func() {
		state, err := p.runtime.Wait(ctx, h)
		out <- exitResult{state, err}
	}()
	return out
}

type exitResult struct {
	state instance.State
	err   error
}

func testWait(t *testing.T, p *probe) {
	h := p.start(p.spec("waits", "PROBE_EXIT=3"))
	for range 2 { // the second time, after it has ended
		if got := <-p.waiting(p.ctx, h); got.err != nil || got.state.Running || got.state.ExitCode != 3 {
			t.Errorf("Wait = %+v, want exit code 3", got)
		}
	}
	h = p.serving(p.spec("waits-long"))
	ctx, cancel := context.WithCancel(p.ctx)
	given, first, second := p.waiting(ctx, h), p.waiting(p.ctx, h), p.waiting(p.ctx, h)
	cancel()
	if got := <-given; !errors.Is(got.err, context.Canceled) {
		t.Errorf("Wait with a cancelled context = %+v", got)
	}
	select {
	case got := <-first:
		t.Errorf("Wait during the run = %+v", got)
	default:
	}
	p.stop(p.ctx, h, longGrace)
	for _, wait := range []<-chan exitResult{first, second, p.waiting(p.ctx, h)} {
		if got := <-wait; got.err != nil || got.state.Running {
			t.Errorf("Wait = %+v, want ended", got)
		}
	}
}

func testWaitAnother(t *testing.T, p *probe) {
	h := forget(t, p.serving(p.spec("waits-another")))
	wait := p.another().waiting(p.ctx, h)
	p.stop(p.ctx, h, longGrace)
	if got := <-wait; got.err != nil || got.state.Running {
		t.Errorf("Wait = %+v, want ended", got)
	}
}

func testFind(t *testing.T, p *probe) {
	spec := p.spec("finds")
	spec.Function = "finder"
	h := p.serving(spec)
	for _, id := range []string{"finds", ""} {
		found, err := p.runtime.Find(p.ctx, id)
		found = slices.DeleteFunc(found, func(r instance.Record) bool { return r.ID != "finds" })
		if err != nil || len(found) != 1 || found[0].Function != "finder" || found[0].Runtime != h.Runtime {
			t.Fatalf("Find(%q) = %+v, %v, want a single instance of function finder", id, found, err)
		}
		if got := found[0].Handle; got.PID != h.PID || got.Container != h.Container || got.Address != h.Address || got.Runtime != h.Runtime {
			t.Errorf("Find(%q) = %+v, want %+v", id, got, h)
		}
	}
	p.stop(p.ctx, h, longGrace)
	for _, id := range []string{"finds", ""} {
		found, err := p.runtime.Find(p.ctx, id)
		if err != nil || slices.ContainsFunc(found, func(r instance.Record) bool { return r.ID == "finds" }) {
			t.Errorf("Find(%q) after Stop = %+v, %v, want no instance", id, found, err)
		}
	}
}

func testMissing(t *testing.T, p *probe) {
	spec := p.spec("missing")
	spec.Command = []string{"/nowhere/to/be/found"}
	h, err := p.runtime.Start(p.ctx, spec)
	if err == nil {
		_ = p.runtime.Stop(p.ctx, h, 0)
		t.Fatal("Start of a missing command succeeded")
	}
	if !strings.Contains(err.Error(), spec.Command[0]) {
		t.Errorf("error %q does not name the command", err)
	}
	var u interface{ Unavailable() bool }
	if !errors.As(err, &u) || !u.Unavailable() {
		t.Errorf("error %q is not Unavailable", err)
	}
}

func testCancelledStart(t *testing.T, p *probe) {
	ctx, cancel := context.WithCancel(p.ctx)
	cancel()
	h, err := p.runtime.Start(ctx, p.spec("never"))
	if err == nil {
		_ = p.runtime.Stop(p.ctx, h, 0)
		t.Fatal("Start with a cancelled context succeeded")
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %q is not context.Canceled", err)
	}
}
