package token

import "testing"

// TestIntrospectiveStatus holds what a status shows of a running client.
func TestIntrospectiveStatus(t *testing.T) {
	g := newPlant(t, 1)
	p := g.join(&prog{inst: "a", slice: slice(50, 0.4, 0.8), kernel: ms, blocks: 7})
	g.run(350 * ms)
	got := g.s.Clients()[0]
	if got.Client != p.id || got.Instance != "a" || got.State != Running || got.Phase != "NONE" || got.Budget == 0 || got.Why == "" {
		t.Errorf("status %+v", got)
	}
	// Alone it has the whole GPU, of which its limit is 0.8 of 50%.
	if got.Used < 0.3 || got.Used > 0.5 {
		t.Errorf("used %v of the last window", got.Used)
	}
	if g.s.SMRunning() != 50 || g.s.Window() != 100*ms || g.s.Debt("a") != 0 && g.s.Debt("a") > 20*ms || g.s.Debt("b") != 0 {
		t.Errorf("SMs %v, window %v, debt %v", g.s.SMRunning(), g.s.Window(), g.s.Debt("a"))
	}
}
