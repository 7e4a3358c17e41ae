package swarm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/swarm"
	"github.com/docker/docker/client"
)

// explain prefixes err with the failed operation. If no manager can be reached, the result is a
// *ports.UnavailableError.
func explain(operation string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("%s: %w", operation, err)
	if client.IsErrConnectionFailed(err) || leaderless(err) {
		return unavailable(wrapped, "check the swarm: docker node ls")
	}
	return wrapped
}

// leaderless reports whether a request failed because the managers have no leader or no quorum, or
// because the leader did not answer in time.
func leaderless(err error) bool {
	return err != nil && (errors.Is(err, errNoQuorum) || cerrdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded) ||
		strings.Contains(err.Error(), "swarm does not have a leader") || strings.Contains(err.Error(), "deadline exceeded") ||
		strings.Contains(err.Error(), "rpc error: code = Unavailable"))
}

// managers sends requests to the managers of a swarm, for the owner of the instances on a network.
type managers struct {
	api     *client.Client
	network string
	view    *view
	owner   string // set by Store.Claim, before other goroutines use the managers
}

func newManagers(api *client.Client, network string) *managers {
	m := &managers{api: api, network: network}
	m.view = newView(api, m.configName())
	return m
}

// configName returns the name of the gateway's config.
func (m *managers) configName() string { return "gfaas-gateway-" + m.network }

// superseded returns ErrSuperseded if another Runtime owns the instances.
func (m *managers) superseded(s *snapshot) error {
	if m.owner != "" && s.owner != "" && s.owner != m.owner {
		return ErrSuperseded
	}
	return nil
}

// retryPause is the pause between attempts of insist.
const retryPause = 200 * time.Millisecond

// insist calls do, and repeats the call while the managers have no leader or cannot be reached, until ctx
// ends. Each attempt has its own time limit. An attempt can succeed although its answer is lost, so do must
// accept that its work is already done.
func (m *managers) insist(ctx context.Context, do func(context.Context) error) error {
	for {
		limited, cancel := context.WithTimeout(ctx, requestTime)
		err := do(limited)
		cancel()
		if err == nil || !leaderless(err) && !client.IsErrConnectionFailed(err) {
			return err
		}
		if !pause(ctx, retryPause) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// insistOwner is insist for a request that only the owner of the instances may send. Before each attempt, it checks that no
// other Runtime has taken them over meanwhile; otherwise it returns ErrSuperseded.
func (m *managers) insistOwner(ctx context.Context, do func(context.Context) error) error {
	return m.insist(ctx, func(ctx context.Context) error {
		s, err := m.view.since(ctx, time.Now())
		if err == nil {
			err = m.superseded(s)
		}
		if err != nil {
			return err
		}
		return do(ctx)
	})
}

// services returns the services of the instances.
func (m *managers) services(ctx context.Context) (list []swarm.Service, err error) {
	err = m.insist(ctx, func(ctx context.Context) (err error) {
		list, err = m.api.ServiceList(ctx, swarm.ServiceListOptions{Filters: filters.NewArgs(filters.Arg("label", labelGateway+"="+m.network))})
		return err
	})
	return list, explain("list services", err)
}

// answered returns a new snapshot. While the managers have no quorum, or do not answer, it waits until they do.
func (m *managers) answered(ctx context.Context) (*snapshot, error) {
	for {
		s, err := m.view.since(ctx, time.Now())
		if err == nil || !leaderless(err) && !client.IsErrConnectionFailed(err) {
			return s, err
		}
		if !pause(ctx, retryPause) {
			return nil, ctx.Err()
		}
	}
}
