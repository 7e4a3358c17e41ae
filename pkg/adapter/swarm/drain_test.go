package swarm

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dockerswarm "github.com/docker/docker/api/types/swarm"
)

// gfaas node drain and up change the entry of the running node, and not that of an earlier node with this name.
func TestDrainRejoinedNode(t *testing.T) {
	r, m := fakeSwarm(t)
	old := node("0", "b", "gfaas.folder=/f", "gfaas.gpu.0=1,L4")
	old.Status.State = dockerswarm.NodeStateDown
	m.nodes = append(m.nodes, old)
	remaining, err := r.Drain(t.Context(), "b", 0)
	if got := m.nodes[1].Spec; err != nil || remaining != 1 || got.Availability != dockerswarm.NodeAvailabilityDrain || len(old.Spec.Labels) != 0 {
		t.Errorf("Drain: %d instances remain, %v, the node is %+v, the old one %+v; want one, and only the running node drained", remaining, err, got, old.Spec)
	}
	if err := r.Up(t.Context(), "b"); err != nil || len(m.nodes[1].Spec.Labels) != 0 || m.nodes[1].Spec.Availability != dockerswarm.NodeAvailabilityActive {
		t.Errorf("Up: %v, the node is %+v", err, m.nodes[1].Spec)
	}
}

// If the managers lose their quorum during a drain, it fails after its time limit.
func TestDrainWithoutQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := fakeSwarm(t)
		done := make(chan error, 1)
		go func() {
			_, err := r.Drain(t.Context(), "b", time.Minute)
			done <- err
		}()
		time.Sleep(time.Second)
		m.change(func() { m.broken = true })
		time.Sleep(2*time.Minute + time.Second)
		select {
		case err := <-done:
			if err == nil || !strings.Contains(err.Error(), "does not have a leader") {
				t.Errorf("Drain: %v, want that the swarm has no leader", err)
			}
		default:
			t.Error("Drain still waits")
			m.change(func() { m.broken = false })
			<-done
		}
	})
}
