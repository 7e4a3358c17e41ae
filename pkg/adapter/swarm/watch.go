package swarm

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

const (
	watchPoll = 500 * time.Millisecond // interval of checks in Watch
	// quorumTime is how old the managers' last answer may be for calls to continue. After a longer time without
	// a quorum, another gateway may run in the part of the network that has one, so calls wait.
	quorumTime = 10 * time.Second
)

// Usable returns the nodes that can start instances, in order of name.
func Usable(nodes []Node) (out []Node) {
	for i := range nodes {
		if usable(&nodes[i]) {
			out = append(out, nodes[i])
		}
	}
	return out
}

func usable(n *Node) bool { return n.Ready() && !n.Outdated() && n.Folder != "" && len(n.GPUs) > 0 }

// Watch calls changed with the usable nodes, once at the beginning and then after each change. It calls failed with each
// error, and with the faults of nodes, unless the previous attempt had the same. While the managers do not answer, it
// assumes that the nodes have not changed. It returns if ctx ends, or after failed(ErrSuperseded) if another Runtime owns
// the instances.
func (r *Runtime) Watch(ctx context.Context, changed func([]Node), failed func(error)) {
	var last []Node
	told, reported := false, ""
	for {
		s, err := r.view.since(ctx, time.Now())
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if err := r.superseded(s); err != nil {
				failed(err)
				return
			}
			nodes := s.list()
			if usable := Usable(nodes); !told || !sameNodes(usable, last) {
				changed(usable)
				last, told = usable, true
				r.setWatched(usable)
			}
			err = faults(nodes)
		}
		if err == nil {
			reported = ""
		} else if err.Error() != reported {
			failed(err)
			reported = err.Error()
		}
		if !pause(ctx, watchPoll) {
			return
		}
	}
}

// faults returns an error that lists the nodes that cannot be used because of a fault, or nil.
func faults(nodes []Node) error {
	var all []string
	for _, n := range nodes {
		if n.Fault != "" {
			all = append(all, fmt.Sprintf("node %s (%s) cannot be used: %s", n.Name, n.ID, n.Fault))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return errors.New(strings.Join(all, "; "))
}

func (r *Runtime) setWatched(nodes []Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watched = map[string]bool{}
	for _, n := range nodes {
		r.watched[n.Name] = true
	}
}

// awaitWatch waits until Watch has reported the loss of the node of GPUs, if the node is lost. So the caller of Watch knows
// of the loss before it learns of a failed start on the node.
func (r *Runtime) awaitWatch(ctx context.Context, gpus []string) {
	name, _ := gpu.SplitNode(gpus[0])
	for end := time.Now().Add(4 * watchPoll); time.Now().Before(end); {
		r.mu.Lock()
		watched := r.watched[name]
		r.mu.Unlock()
		if !watched {
			return
		}
		if s := r.view.latest(); s != nil {
			if node, err := s.node(name); err == nil && node.Ready() {
				return
			}
		}
		if !pause(ctx, watchPoll/10) {
			return
		}
	}
}

// sameNodes reports whether two lists have the same nodes with the same GPUs.
func sameNodes(a, b []Node) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || !reflect.DeepEqual(a[i].GPUs, b[i].GPUs) {
			return false
		}
	}
	return true
}

// Callable returns nil if an instance may be called now: its node is ready, and the managers want its task to run. If
// they have not answered for 10 s, Callable waits until they do.
func (r *Runtime) Callable(ctx context.Context, h instance.Handle) error {
	if s := r.view.latest(); s != nil && time.Since(s.asked) < quorumTime && r.superseded(s) == nil && s.state(h.Container).Running {
		return nil
	}
	s, err := r.answered(ctx)
	if err == nil {
		err = r.superseded(s)
	}
	if err != nil {
		return err
	}
	if state := s.state(h.Container); !state.Running {
		return fmt.Errorf("its task: %s", state.Detail)
	}
	return nil
}
