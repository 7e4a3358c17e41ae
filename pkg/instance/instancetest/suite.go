// Package instancetest provides conformance suites for ports.Runtime (Run) and ports.Catalog (RunCatalog), and
// fakes that pass the suites. The suites of ports.Starter and ports.Invoker are tests of their only
// implementations, in pkg/launch and pkg/adapter/fnhttp.
package instancetest

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Suite holds the parameters of Run.
type Suite struct {
	// New returns a runtime. Two of them represent two commands on one machine: each can
	// stop the other's instances.
	New func(t *testing.T) ports.Runtime
	// Spec returns a spec with the program of testdata/probe.c, or one that behaves as
	// described there. The suite sets the remaining fields.
	Spec func(t *testing.T) instance.Spec
	// Patience is the time limit of each operation; 0 means 1 min.
	OperationTimeout time.Duration
}

// Run checks that a runtime conforms to ports.Runtime.
func Run(t *testing.T, s Suite) {
	if s.OperationTimeout == 0 {
		s.OperationTimeout = time.Minute
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, *probe)
	}{
		{"serves", testServes},
		{"stores output", testLogs},
		{"follows output", testFollow},
		{"a long line", testLongLine},
		{"environment", testEnvironment},
		{"exit status", testExitStatus},
		{"stops when asked", testStops},
		{"kills after the grace period", testStubborn},
		{"kills at once when cancelled", testCancelledStop},
		{"ends children", testChildren},
		{"ends orphans", testOrphans},
		{"found by another command", testAnother},
		{"wait reports the end", testWait},
		{"wait reports the end to another command", testWaitAnother},
		{"a job succeeds", testJob},
		{"a job fails", testFailingJob},
		{"found by its id", testFind},
		{"refuses a missing command", testMissing},
		{"starts nothing when cancelled", testCancelledStart},
		{"many at once", testMany},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 4*s.OperationTimeout)
			t.Cleanup(cancel)
			c.test(t, &probe{t: t, suite: s, ctx: ctx, runtime: s.New(t)})
		})
	}
}

// probe starts and queries instances for one test.
type probe struct {
	t       *testing.T
	suite   Suite
	ctx     context.Context
	runtime ports.Runtime
}

// another returns a probe of another command on the machine.
func (p *probe) another() *probe {
	return &probe{t: p.t, suite: p.suite, ctx: p.ctx, runtime: p.suite.New(p.t)}
}

// spec returns a spec with an ID and settings of the probe.
func (p *probe) spec(id string, settings ...string) instance.Spec {
	p.t.Helper()
	spec := p.suite.Spec(p.t)
	spec.ID, spec.Function = id, "probe"
	if spec.Secret == "" {
		spec.Secret = "0123456789abcdef"
	}
	env := map[string]string{"PROBE_GREETING": "hello there"}
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		env[name] = value
	}
	spec.Env = env
	return spec
}

// start starts an instance that is stopped when the test ends.
func (p *probe) start(spec instance.Spec) instance.Handle {
	p.t.Helper()
	h, err := p.runtime.Start(p.ctx, spec)
	if err != nil {
		p.t.Fatalf("Start: %v", err)
	}
	p.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), p.suite.OperationTimeout)
		defer cancel()
		if err := p.runtime.Stop(ctx, h, 0); err != nil {
			p.t.Errorf("Stop at the end: %v", err)
		}
	})
	return h
}

// serving starts an instance and waits until it answers.
func (p *probe) serving(spec instance.Spec) instance.Handle {
	p.t.Helper()
	h := p.start(spec)
	p.eventually("the instance answers", func() bool {
		body, status := p.get(h, "/")
		return status == http.StatusOK && body == "ok"
	})
	return h
}

// eventually polls until the condition holds.
func (p *probe) eventually(condition string, ok func() bool) {
	p.t.Helper()
	deadline := time.NewTimer(p.suite.OperationTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			p.t.Fatalf("%s: not within %v", condition, p.suite.OperationTimeout)
		}
	}
}

// get sends a GET to the instance. The status is 0 without an answer.
func (p *probe) get(h instance.Handle, path string) (string, int) {
	ctx, cancel := context.WithTimeout(p.ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.Address+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", 0
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", 0
	}
	return string(body), response.StatusCode
}

func (p *probe) state(h instance.Handle) instance.State {
	p.t.Helper()
	state, err := p.runtime.State(p.ctx, h)
	if err != nil {
		p.t.Fatalf("State: %v", err)
	}
	return state
}

// checkStopped checks that the instance is not running and its port is closed.
func (p *probe) checkStopped(h instance.Handle) {
	p.t.Helper()
	if state := p.state(h); state.Running {
		p.t.Errorf("State after Stop: %+v, want not running", state)
	}
	if conn, err := net.DialTimeout("tcp", h.Address, time.Second); err == nil {
		_ = conn.Close()
		p.t.Errorf("a program still listens on %s after Stop", h.Address)
	}
}

// stop stops an instance and returns how long that took.
func (p *probe) stop(ctx context.Context, h instance.Handle, grace time.Duration) time.Duration {
	p.t.Helper()
	begin := time.Now()
	if err := p.runtime.Stop(ctx, h, grace); err != nil {
		p.t.Fatalf("Stop: %v", err)
	}
	return time.Since(begin)
}

// logs returns the last lines that the instance printed.
func (p *probe) logs(h instance.Handle, lines int) string {
	p.t.Helper()
	text, err := ports.Text(p.runtime.Logs(p.ctx, h, ports.LogOptions{Tail: lines}))
	if err != nil {
		p.t.Fatalf("Logs: %v", err)
	}
	return string(text)
}

// forget returns the handle as another command reads it from the state file.
func forget(t *testing.T, h instance.Handle) instance.Handle {
	t.Helper()
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var read instance.Handle
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

// testMany starts several instances at the same time.
func testMany(t *testing.T, p *probe) {
	const count = 4
	var wg sync.WaitGroup
	handles := make([]instance.Handle, count)
	errs := make([]error, count)
	for i := range count {
		spec := p.spec("many-" + string(rune('a'+i)))
		wg.Go(func() { handles[i], errs[i] = p.runtime.Start(p.ctx, spec) })
	}
	wg.Wait()
	addresses := map[string]bool{}
	for i, h := range handles {
		if errs[i] != nil {
			t.Errorf("Start %d: %v", i, errs[i])
			continue
		}
		t.Cleanup(func() { _ = p.runtime.Stop(context.Background(), h, 0) })
		addresses[h.Address] = true
		p.eventually("each answers for itself", func() bool {
			body, _ := p.get(h, "/env/GFAAS_INSTANCE")
			return body == "many-"+string(rune('a'+i))
		})
	}
	if len(addresses) != count {
		t.Errorf("%d instances have %d addresses", count, len(addresses))
	}
}
