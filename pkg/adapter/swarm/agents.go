package swarm

import (
	"context"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/swarm"
)

// labelAgent is the label of the global service of gfaas node agent.
const labelAgent = "gfaas.agent"

// AgentPort is the port of agents on the overlay network.
const AgentPort = 7480

// Agents returns the addresses of the agents of ready nodes, by the names of the nodes.
func (r *Runtime) Agents(ctx context.Context) (map[string]string, error) {
	s, err := r.view.since(ctx, time.Now().Add(-time.Second))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	tasks, err := r.api.TaskList(ctx, swarm.TaskListOptions{Filters: filters.NewArgs(filters.Arg("label", labelAgent), filters.Arg("desired-state", "running"))})
	if err != nil {
		return nil, explain("list the agents of the nodes", err)
	}
	names := map[string]string{} // by the node's ID
	for name, n := range s.byName() {
		names[n.ID] = name
	}
	out := map[string]string{}
	for i := range tasks {
		t := &tasks[i]
		name := names[t.NodeID]
		if t.Status.State != swarm.TaskStateRunning || name == "" || !ready(s.nodes[t.NodeID]) {
			continue
		}
		if address, err := r.address(t, AgentPort); err == nil {
			out[name] = address
		}
	}
	return out, nil
}
