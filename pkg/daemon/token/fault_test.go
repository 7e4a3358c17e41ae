package token

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// faults returns the faults of all instances.
func (s *server) faults() []wire.InstanceFault {
	s.t.Helper()
	status, body := s.do("GET", "/v1/faults", "")
	var out wire.Faults
	if err := json.Unmarshal([]byte(body), &out); err != nil || status != 200 {
		s.t.Fatalf("GET /v1/faults: got %d %s, %v; want 200 and a list", status, body, err)
	}
	return out.Faults
}

// lines is a log for several goroutines.
type lines struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.String(), text)
}

func fault(t *testing.T, code uint32, call string) wire.Fault {
	t.Helper()
	name, err := wire.MakeName(call)
	if err != nil {
		t.Fatal(err)
	}
	return wire.Fault{Code: code, Call: name}
}

// TestFaultIsRecorded checks that the first error that ends a process's use of CUDA is recorded with its
// instance, until another instance takes its name.
func TestFaultIsRecorded(t *testing.T) {
	var log lines
	s := serve(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	a, b := s.join(reg("a", share{sm: 60, request: 0.5, limit: 1})), s.join(reg("b", share{sm: 60, request: 0.5, limit: 1}))
	if got := s.faults(); got == nil || len(got) != 0 {
		t.Errorf("faults before the first one: got %+v, want an empty list", got)
	}
	for _, m := range []wire.Fault{fault(t, 700, "cuCtxSynchronize"), fault(t, 719, "cuLaunchKernel")} {
		if err := a.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the fault of client a is recorded", func() bool { return len(s.faults()) == 1 })
	f := s.faults()[0]
	if f.Instance != "a" || f.PID == 0 || f.Call != "cuCtxSynchronize" || f.Code != 700 || f.Name != "CUDA_ERROR_ILLEGAL_ADDRESS" ||
		f.Time.IsZero() || f.After != "" || f.Ended || f.GPU != "sim" {
		t.Errorf("got fault %+v, want one of instance a, of code 700 from cuCtxSynchronize, with a PID and a time, not ended, on GPU sim", f)
	}
	const text = "CUDA error 700 (CUDA_ERROR_ILLEGAL_ADDRESS) from cuCtxSynchronize"
	if row := s.row("a"); row.Fault != text {
		t.Errorf("fault in the status of a: got %q, want %q", row.Fault, text)
	}
	if row := s.row("b"); row.Fault != "" {
		t.Errorf("fault in the status of b: got %q, want none", row.Fault)
	}
	if n := log.count(`call=cuCtxSynchronize code=700 error=CUDA_ERROR_ILLEGAL_ADDRESS`); n != 1 || log.count("code=719") != 0 {
		t.Errorf("log lines about fault 700 and 719: got %d and %d, want 1 and 0:\n%s", n, log.count("code=719"), log.String())
	}
	s.lease(b) // b continues

	a.Close()
	eventually(t, "instance a is absent", func() bool { return s.row("a").State == "absent" })
	if f := s.faults(); len(f) != 1 || !f[0].Ended || s.row("a").Fault != text {
		t.Errorf("after the end of the process: got %+v, status %q; want 1 fault that has ended, and the same status", f, s.row("a").Fault)
	}
	s.register(func() wire.Registration {
		r := reg("a", share{sm: 60, request: 0.5, limit: 1})
		r.Secret = "another"
		return r
	}())
	if f := s.faults(); len(f) != 0 {
		t.Errorf("faults of another instance with the same name: got %+v, want none", f)
	}
}

// TestFirstFault checks that a fault of an MPS client shortly after a fault of another client
// refers to that client.
func TestFirstFault(t *testing.T) {
	servers := map[string]string{"a": "/mps/0", "b": "/mps/0", "c": "/mps/0", "d": "/mps/1", "e": ""}
	s := serve(t, Config{Prepare: func(_ context.Context, r wire.Registration) wire.Registered {
		return wire.Registered{MPSPipeDir: servers[r.Instance]}
	}})
	for n, id := range []string{"b", "a", "c", "d", "e"} {
		c := s.join(reg(id, share{sm: 20, request: 0.2, limit: 1}))
		if err := c.Send(fault(t, 719, "cuStreamSynchronize")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the fault of client "+id+" is recorded", func() bool { return len(s.faults()) == n+1 })
	}
	for _, f := range s.faults() {
		want := ""
		if slices.Contains([]string{"a", "c"}, f.Instance) {
			want = "b"
		}
		if f.After != want {
			t.Errorf("instance that failed before %s: got %q, want %q", f.Instance, f.After, want)
		}
		if names := strings.Contains(f.String(), "after the fault of b"); names != (want != "") {
			t.Errorf("text of the fault of %s: got %q, want it to name b: %v", f.Instance, f, want != "")
		}
	}
}
