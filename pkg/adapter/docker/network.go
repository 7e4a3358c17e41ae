package docker

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
)

const (
	defaultNetwork = "gfaas"
	betweenKey     = "com.docker.network.bridge.enable_icc"
)

// network returns the ID of the network for instances, and creates the network if there is
// none: a bridge on which the engine lets no container reach another one. It stays when
// the last instance ends. A network of that name that lets containers reach each other is
// an error.
func (r *Runtime) network(ctx context.Context) (id string, err error) {
	r.netMu.Lock()
	defer r.netMu.Unlock()
	name := r.config.Network
	if id, err = r.findNetwork(ctx); id != "" || err != nil {
		return id, err
	}
	// Not under ctx: a creation that is cut short may still take place.
	create, cancel := detached(ctx)
	defer cancel()
	created, err := r.engine.NetworkCreate(create, name, network.CreateOptions{
		Driver: "bridge", Options: map[string]string{betweenKey: "false"},
	})
	// Another process may have made one at the same time: all take the same, whose it is.
	if id, failed := r.findNetwork(create); id != "" || failed != nil {
		if created.ID != "" && id != created.ID {
			_ = r.engine.NetworkRemove(create, created.ID) // a second one is of no use
		}
		return id, failed
	}
	if err != nil {
		return "", &Error{explain("create the network "+name+", on which containers cannot reach each other", err), true,
			"load the kernel module br_netfilter, or create the network yourself: docker network create -o " + betweenKey + "=false " + name}
	}
	return created.ID, nil
}

// findNetwork returns the oldest network for instances; empty if there is none.
func (r *Runtime) findNetwork(ctx context.Context) (string, error) {
	name := r.config.Network
	all, err := r.engine.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("name", name))})
	if err != nil {
		return "", explain("look for the network "+name, err)
	}
	all = slices.DeleteFunc(all, func(n network.Inspect) bool { return n.Name != name }) // the filter finds parts of names too
	if len(all) == 0 {
		return "", nil
	}
	oldest := slices.MinFunc(all, func(a, b network.Inspect) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	if oldest.Driver != "bridge" || oldest.Options[betweenKey] != "false" {
		return "", &Error{fmt.Errorf("the Docker network %s lets containers reach each other", name), true,
			"remove it, so that gfaas creates its own: docker network rm " + name}
	}
	return oldest.ID, nil
}
