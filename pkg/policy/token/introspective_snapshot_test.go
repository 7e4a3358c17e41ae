package token

import "testing"

// TestIntrospectiveStatus holds what a status shows of a running client.
func TestIntrospectiveStatus(t *testing.T) {
	g := newPlant(t, 1)
	p := g.join(&prog{inst: "a", slice: slice(50, 0.4, 0.8), kernel: ms, blocks: 7})
	g.run(350 * ms)
	got := g.s.Snapshot().Clients[0]
	if got.Client != p.id || got.Instance != "a" || got.State != Running || got.Budget == 0 || got.Why == "" {
		t.Errorf("status %+v", got)
	}
	// Alone it has the whole GPU, of which its limit is 0.8 of 50%.
	if got.Used < 0.3 || got.Used > 0.5 {
		t.Errorf("used %v of the last window", got.Used)
	}
	s := g.s.Snapshot()
	if a := s.Instance("a"); s.SMRunning != 50 || a.Phase != "NONE" || a.Charged == 0 || a.Debt > 20*ms {
		t.Errorf("SMs %v, instance %+v", s.SMRunning, a)
	}
	if b := s.Instance("b"); b != (InstanceStatus{Instance: "b"}) {
		t.Errorf("an instance that is not known: %+v", b)
	}
}
