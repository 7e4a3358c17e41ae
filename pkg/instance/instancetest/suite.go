// Package instancetest holds the conformance suite that every
// ports.Runtime passes, and a Fake that passes it too.
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

// Suite is what a runtime's test gives to Run.
type Suite struct {
	// New returns a runtime. Two of them stand for two commands on the same
	// machine: what one starts, the other stops.
	New func(t *testing.T) ports.Runtime
	// Spec returns what starts the program of testdata/probe.c, or something
	// that behaves as its head says. The suite fills in the rest.
	Spec func(t *testing.T) instance.Spec
	// Patience is how long anything may take; 0 is a minute.
	Patience time.Duration
}

// Run checks a runtime against what ports.Runtime promises.
func Run(t *testing.T, s Suite) {
	if s.Patience == 0 {
		s.Patience = time.Minute
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, *probe)
	}{
		{"serves", testServes},
		{"keeps what it prints", testLogs},
		{"what it prints is followed", testFollow},
		{"a long line", testLongLine},
		{"environment", testEnvironment},
		{"exit status", testExitStatus},
		{"stops when asked", testStops},
		{"kills the stubborn", testStubborn},
		{"kills at once when cancelled", testCancelledStop},
		{"ends children", testChildren},
		{"ends orphans", testOrphans},
		{"found by another command", testAnother},
		{"its end is told", testWait},
		{"its end is told to another command", testWaitAnother},
		{"found by its id", testFind},
		{"refuses a missing command", testMissing},
		{"starts nothing when cancelled", testCancelledStart},
		{"many at once", testMany},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 4*s.Patience)
			t.Cleanup(cancel)
			c.test(t, &probe{t: t, suite: s, ctx: ctx, runtime: s.New(t)})
		})
	}
}

// probe starts and questions instances for one test.
type probe struct {
	t       *testing.T
	suite   Suite
	ctx     context.Context
	runtime ports.Runtime
}

// spec is a spec of that name with these settings of the probe.
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
		ctx, cancel := context.WithTimeout(context.Background(), p.suite.Patience)
		defer cancel()
		if err := p.runtime.Stop(ctx, h, 0); err != nil {
			p.t.Errorf("Stop in the end: %v", err)
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
func (p *probe) eventually(what string, holds func() bool) {
	p.t.Helper()
	deadline := time.NewTimer(p.suite.Patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			p.t.Fatalf("%s: not within %v", what, p.suite.Patience)
		}
	}
}

// get asks the instance; the status is 0 when it does not answer.
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

// gone checks that nothing of the instance is left.
func (p *probe) gone(h instance.Handle) {
	p.t.Helper()
	if state := p.state(h); state.Running {
		p.t.Errorf("State after Stop: %+v, want not running", state)
	}
	if conn, err := net.DialTimeout("tcp", h.Address, time.Second); err == nil {
		_ = conn.Close()
		p.t.Errorf("somebody still listens on %s after Stop", h.Address)
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
