package top

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gfaas/gfaas/pkg/status"
	"github.com/gfaas/gfaas/pkg/wire"
)

// some returns the status of a gateway with a function that has queued calls, and an idle one.
func some() status.Status {
	return status.Status{
		GPUs: []status.GPU{
			{GPU: "0", Slots: new(2), Running: new(1), BusyPct: new(62.4), MemUsedMiB: new(5120.0), MemMiB: new(40960.0)},
			{GPU: "1", Slots: new(2), Running: new(0), BusyPct: new(0.0), MemUsedMiB: new(0.0)},
		},
		Functions: []status.Function{
			{Function: "bert", State: status.Idle, Waiting: new(0), InFlight: new(0), RPS: new(0.0), P95MS: new(0.0)},
			{Function: "resnet", State: status.Ready, Waiting: new(7), InFlight: new(1), RPS: new(48.2), PlannedRPS: new(60.0), P95MS: new(21.53), Instances: 1, Why: "throttled"},
		},
		Instances: []status.Instance{
			{ID: "resnet.1", Function: "resnet", GPU: "0", State: "running", Residency: "gpu", InFlight: new(1), SMPct: 100, QuotaRequest: 0.5, QuotaLimit: 1, Address: "127.0.0.1:30001"},
		},
	}
}

func TestTables(t *testing.T) {
	var got []string
	for _, table := range Tables(some()) {
		for _, row := range table {
			got = append(got, strings.Join(row, " "))
		}
	}
	want := []string{
		"GPU BUSY% RUNNING SLOTS MEM MiB OF MiB",
		"0 62.4 1 2 5120 40960",
		"1 0 0 2 0 -",
		"FUNCTION STATE WAITING RUNNING RPS OF RPS P50 ms P95 ms P99 ms COLD HOST WARM REJECTED ERRORS INSTANCES GPU s WHY",
		"bert idle 0 0 0 - - 0 - - - - - - 0 - -",
		"resnet ready 7 1 48.2 60.0 - 21.5 - - - - - - 1 - throttled",
		"INSTANCE FUNCTION GPU STATE MEMORY RUNNING MEM MiB SM% QUOTA IDLE s ADDRESS",
		"resnet.1 resnet 0 running gpu 1 - 100 0.50:1.00 - 127.0.0.1:30001",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestModels checks that shared weights appear once, in the table of models.
func TestModels(t *testing.T) {
	s := some()
	s.Models = []status.Model{
		{GPU: "0", Name: "resnet50", Tenant: "default", State: "gpu", MemMiB: 98, Refs: 3},
		{GPU: "0", Name: "bert", Tenant: "blue", State: "loading"},
	}
	tables := Tables(s)
	var got []string
	for _, row := range tables[len(tables)-1] {
		got = append(got, strings.Join(row, " "))
	}
	if want := "MODEL TENANT GPU STATE MEM MiB HELD BY\nresnet50 default 0 gpu 98.0 3\nbert blue 0 loading 0 0"; len(tables) != 4 || strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	m := newScreen(t.Context(), Config{Out: io.Discard})
	m.width, m.status = 100, s
	if text := m.text(); !strings.Contains(text, "\nmodels  resnet50 98.0 MiB held by 3  bert 0 MiB (loading)\n") {
		t.Errorf("table of models: got no models line with resnet50 held by 3 and bert loading, want one, in\n%s", text)
	}
}

// keys presses the named keys.
func keys(s *screen, names string) (ended bool) {
	special := map[string]rune{"tab": tea.KeyTab, "enter": tea.KeyEnter, "esc": tea.KeyEscape, "down": tea.KeyDown, "right": tea.KeyRight}
	for name := range strings.FieldsSeq(names) {
		key := tea.KeyPressMsg{Text: name}
		if k, ok := special[name]; ok {
			key = tea.KeyPressMsg{Code: k}
		}
		if _, cmd := s.Update(key); cmd != nil {
			_, ended = cmd().(tea.QuitMsg)
		}
	}
	return ended
}

// lines returns the given words that begin a line of the screen, in the order of the lines.
func lines(s *screen, words ...string) (out []string) {
	for line := range strings.SplitSeq(ansi.Strip(s.text()), "\n") {
		for _, word := range words {
			if strings.HasPrefix(line, word) {
				out = append(out, word)
			}
		}
	}
	return out
}

func shown(t *testing.T) *screen {
	t.Helper()
	s := newScreen(t.Context(), Config{Interval: time.Second, Out: io.Discard})
	s.Update(tea.WindowSizeMsg{Width: 120, Height: 24})
	s.Update(snapshotMsg{status: some(), at: time.Date(2026, 1, 2, 12, 0, 5, 0, time.UTC)})
	return s
}

func TestKeys(t *testing.T) {
	for _, c := range []struct{ keys, order string }{
		{"", "bert resnet"},
		{"r", "resnet bert"},
		{"s s", "resnet bert"}, // most queued calls first
		{"s s r", "bert resnet"},
		{"s S", "bert resnet"},
		{"/ r e s n enter", "resnet"},
		{"/ r e s n esc", "bert resnet"},
	} {
		s := shown(t)
		keys(s, c.keys)
		if got := strings.Join(lines(s, "bert", "resnet "), " "); strings.Join(strings.Fields(got), " ") != c.order {
			t.Errorf("after %q: %q, want %q\n%s", c.keys, got, c.order, s.text())
		}
	}
	if s := shown(t); !keys(s, "q") {
		t.Error("key q: the program continues, want it to end")
	}
	s := shown(t)
	keys(s, "p")
	s.Update(snapshotMsg{at: time.Now()})
	if !strings.Contains(s.text(), "paused") || len(lines(s, "bert")) != 1 {
		t.Errorf("after the key p: want \"paused\" and the functions of the previous snapshot, got\n%s", s.text())
	}
}

// TestFits checks that the screen fits a terminal of any size.
func TestFits(t *testing.T) {
	s := shown(t)
	many := some()
	for range 100 {
		many.Functions = append(many.Functions, many.Functions[1])
		many.Instances = append(many.Instances, many.Instances[0])
	}
	s.Update(snapshotMsg{status: many, at: time.Now()})
	for _, size := range [][2]int{{200, 60}, {120, 24}, {80, 10}, {20, 5}, {1, 1}} {
		s.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		view := strings.Split(s.text(), "\n")
		if len(view) > max(size[1], 2) {
			t.Errorf("terminal of %v: got %d lines, want at most %d", size, len(view), max(size[1], 2))
		}
		for _, line := range view {
			if ansi.StringWidth(line) > size[0] {
				t.Errorf("terminal of %v: got a line of %d columns, want at most %d: %q", size, ansi.StringWidth(line), size[0], line)
			}
		}
	}
	s.Update(tea.WindowSizeMsg{Width: 120, Height: 24})
	if view := ansi.Strip(s.text()); !strings.Contains(view, "more") || !strings.Contains(view, "runs 1 of 2") {
		t.Errorf("terminal of 24 lines: want the note about more lines and the runs, got\n%s", view)
	}
}

// TestRun runs the whole program with a terminal's streams.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	snapshots := 0
	snapshot := func(context.Context) (status.Status, error) { snapshots++; return some(), nil }
	c := Config{Snapshot: snapshot, Interval: time.Millisecond, Count: 3, In: strings.NewReader(""), Out: &out}
	if err := Run(t.Context(), c); err != nil || snapshots != 3 {
		t.Fatalf("run: %d snapshots, %v; want 3", snapshots, err)
	}
	if !strings.Contains(out.String(), "resnet") || strings.Contains(out.String(), "\x1b[32m") {
		t.Errorf("output: got %q, want the function resnet and no colours", out.String())
	}
	broken := errors.New("no gateway answers")
	c.Snapshot = func(context.Context) (status.Status, error) { return status.Status{}, broken }
	if err := Run(t.Context(), c); !errors.Is(err, broken) {
		t.Errorf("run without a gateway: got the error %v, want %v", err, broken)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.Count = 0
	c.Snapshot = func(context.Context) (status.Status, error) { cancel(); return some(), nil }
	if err := Run(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled run: got the error %v, want %v", err, context.Canceled)
	}
}

func TestFromTokens(t *testing.T) {
	s := FromTokens(wire.Status{GPUs: []wire.GPUStatus{{GPU: "sim", Clients: []wire.ClientStatus{
		{Instance: "b", Function: "f", State: "idle", SMPct: 40, SMLimitPct: 50, Used: 0.5, MemUsedMiB: 10},
		{Instance: "a", Function: "f", State: "idle", SMPct: 24, Used: 0.5, MemUsedMiB: 20, MemParkedMiB: 5},
		{Instance: "a", Function: "f", State: "running", SMPct: 24, Used: 0.5, MemUsedMiB: 1},
	}}, {GPU: "sim:1", Clients: []wire.ClientStatus{{Instance: "a", Function: "f", State: "idle", SMPct: 24}}}}})
	g, f, i := s.GPUs[0], s.Functions[0], s.Instances[0]
	if *g.BusyPct != 49 || *g.MemUsedMiB != 26 || g.Slots != nil || f.Instances != 2 || f.Waiting != nil ||
		len(s.Instances) != 3 || i.ID != "a" || i.State != "running" || *i.MemUsedMiB != 16 {
		t.Errorf("status from the token daemon: got the GPU %+v, the function %+v and the instance %+v; want 49%% busy with 26 MiB, 2 instances, and a running with 16 MiB", g, f, i)
	}
}

// TestNodes checks that GPUs of a swarm appear with the names of their nodes, aligned, and with the figures of the nodes
// that answer.
func TestNodes(t *testing.T) {
	s := status.Status{GPUs: []status.GPU{
		{GPU: "node1/sim", Slots: new(2), Running: new(1), BusyPct: new(50.0), MemUsedMiB: new(1024.0), MemMiB: new(16384.0)},
		{GPU: "node1/sim:1", Slots: new(2), Running: new(0), BusyPct: new(0.0), MemUsedMiB: new(0.0), MemMiB: new(16384.0), Closed: true},
		{GPU: "node2/sim", Slots: new(2), Running: new(0), MemMiB: new(16384.0)},
	}}
	var got []string
	for _, row := range Tables(s)[0] {
		got = append(got, strings.Join(row, " "))
	}
	if want := "GPU BUSY% RUNNING SLOTS MEM MiB OF MiB\nnode1/sim 50.0 1 2 1024 16384\nnode1/sim:1 0 0 2 0 16384\nnode2/sim - 0 2 - 16384"; strings.Join(got, "\n") != want {
		t.Errorf("table: got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	m := newScreen(t.Context(), Config{Out: io.Discard})
	m.width, m.status = 120, s
	text := ansi.Strip(m.text())
	for _, want := range []string{"\nGPU node1/sim   busy ", "\nGPU node1/sim:1 busy ", "runs 0 of 2  closed\n", "\nGPU node2/sim    runs 0 of 2\n"} {
		if !strings.Contains("\n"+text, want) {
			t.Errorf("screen: no %q in\n%s", want, text)
		}
	}
}
