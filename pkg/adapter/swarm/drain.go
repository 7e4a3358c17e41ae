package swarm

import (
	"context"
	"time"

	"github.com/docker/docker/api/types/swarm"
)

// drainPoll is the interval of checks whether the instances of a node have ended.
const drainPoll = 250 * time.Millisecond

// Drain takes a node out of use. It marks the node, so that the gateway starts no more instances on it, lets
// their calls end and stops them. When no instance remains, or after the time limit, Drain drains the node in
// Docker, which stops all remaining tasks of the node. It returns the number of instances that remained. It fails if the
// managers do not answer for 30 s after the time limit.
func (r *Runtime) Drain(ctx context.Context, name string, limit time.Duration) (remaining int, err error) {
	mark := func(n *swarm.NodeSpec) {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[labelDrain] = "true"
	}
	id, err := r.changeNode(ctx, name, func(s *snapshot) (Node, error) { return s.node(name) }, mark)
	if err != nil {
		return 0, err
	}
	same := func(s *snapshot) (Node, error) { return s.nodeWithID(id) } // another node of this name may take its place now
	end := time.Now().Add(limit)
	for {
		s, err := r.view.since(ctx, time.Now())
		if err == nil {
			node, err := same(s)
			if err != nil {
				return 0, err
			}
			if remaining = node.Instances; remaining == 0 || !time.Now().Before(end) {
				break
			}
		} else if time.Since(end) >= cleanUp {
			return 0, err
		}
		if !pause(ctx, drainPoll) {
			return 0, ctx.Err()
		}
	}
	_, err = r.changeNode(ctx, name, same, func(n *swarm.NodeSpec) { n.Availability = swarm.NodeAvailabilityDrain })
	return remaining, err
}

// Up puts a node into use again.
func (r *Runtime) Up(ctx context.Context, name string) error {
	_, err := r.changeNode(ctx, name, func(s *snapshot) (Node, error) { return s.node(name) }, func(n *swarm.NodeSpec) {
		delete(n.Labels, labelDrain)
		n.Availability = swarm.NodeAvailabilityActive
	})
	return err
}

// changeNode changes the specification of the node that find returns, and returns its ID. Errors name the node by the
// given name. It fails if another process changes the specification at the same time.
func (r *Runtime) changeNode(ctx context.Context, name string, find func(*snapshot) (Node, error), change func(*swarm.NodeSpec)) (id string, err error) {
	limited, cancel := context.WithTimeout(ctx, cleanUp)
	defer cancel()
	err = r.insist(limited, func(ctx context.Context) error {
		s, err := r.view.since(ctx, time.Now())
		if err != nil {
			return err
		}
		node, err := find(s)
		if err != nil {
			return err
		}
		id = node.ID
		now, _, err := r.api.NodeInspectWithRaw(ctx, node.ID)
		if err != nil {
			return err
		}
		change(&now.Spec)
		return r.api.NodeUpdate(ctx, node.ID, now.Version, now.Spec)
	})
	return id, explain("change node "+name, err)
}
