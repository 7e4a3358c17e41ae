package cuda

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// processes is a fake Processes.
type processes struct {
	state      map[int]ProcessState
	fails      map[string]error // by operation and PID, for example "lock 2"
	operations []string
}

func (p *processes) to(operation string, pid int, from, to ProcessState) error {
	operation = fmt.Sprint(operation, " ", pid)
	p.operations = append(p.operations, operation)
	if err := p.fails[operation]; err != nil {
		return err
	}
	if p.state[pid] != from {
		return fmt.Errorf("%s in state %d", operation, p.state[pid])
	}
	p.state[pid] = to
	return nil
}

func (p *processes) State(pid int) (ProcessState, error) { return p.state[pid], nil }
func (p *processes) Lock(pid int, _ time.Duration) error { return p.to("lock", pid, Running, Locked) }
func (p *processes) Checkpoint(pid int) error            { return p.to("save", pid, Locked, Checkpointed) }
func (p *processes) Restore(pid int) error               { return p.to("restore", pid, Checkpointed, Locked) }
func (p *processes) Unlock(pid int) error                { return p.to("unlock", pid, Locked, Running) }

// TestPark checks that Park locks all processes before it moves the first one. After a failure, Park and
// Unpark work from any state.
func TestPark(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name       string
		states     []ProcessState // of the processes 1, 2, …
		fails      string
		do         func(Processes, []int) error
		operations string
		final      []ProcessState
	}{
		{"out", []ProcessState{Running, Running}, "", Park, "lock 1, lock 2, save 1, save 2", []ProcessState{Checkpointed, Checkpointed}},
		{"out again", []ProcessState{Checkpointed, Locked, Running}, "", Park, "lock 3, save 2, save 3", []ProcessState{Checkpointed, Checkpointed, Checkpointed}},
		{"not locked", []ProcessState{Running, Running}, "lock 2", Park, "lock 1, lock 2", []ProcessState{Locked, Running}},
		{"not saved", []ProcessState{Running, Running}, "save 1", Park, "lock 1, lock 2, save 1", []ProcessState{Locked, Locked}},
		{"back", []ProcessState{Checkpointed, Checkpointed}, "", Unpark, "restore 1, restore 2, unlock 1, unlock 2", []ProcessState{Running, Running}},
		{"back from anywhere", []ProcessState{Running, Locked, Checkpointed}, "", Unpark, "restore 3, unlock 2, unlock 3", []ProcessState{Running, Running, Running}},
		{"not back", []ProcessState{Checkpointed, Checkpointed}, "restore 1", Unpark, "restore 1, restore 2", []ProcessState{Checkpointed, Locked}},
		{"lost", []ProcessState{Failed}, "", Unpark, "", []ProcessState{Failed}},
	} {
		p := &processes{state: map[int]ProcessState{}, fails: map[string]error{c.fails: broken}}
		var pids []int
		for i, s := range c.states {
			p.state[i+1] = s
			pids = append(pids, i+1)
		}
		err := c.do(p, pids)
		if wantErr := c.fails != "" || c.final[0] == Failed; (err != nil) != wantErr {
			t.Errorf("%s: got the error %v, want one: %v", c.name, err, wantErr)
		}
		if got := strings.Join(p.operations, ", "); got != c.operations {
			t.Errorf("%s: %s, want %s", c.name, got, c.operations)
		}
		for i, want := range c.final {
			if p.state[i+1] != want {
				t.Errorf("%s: process %d ends in state %d, want %d", c.name, i+1, p.state[i+1], want)
			}
		}
	}
}
