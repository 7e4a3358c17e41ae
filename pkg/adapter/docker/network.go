package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"golang.org/x/sys/unix"
)

const (
	defaultNetwork = "gfaas"
	betweenKey     = "com.docker.network.bridge.enable_icc"
)

// network returns the ID of the network with a name. If the network does not exist, it
// creates a bridge that keeps containers from reaching each other, which persists when the
// last instance ends. It returns a *ports.UnavailableError if the network of that name lets
// containers reach each other.
func (e *engine) network(ctx context.Context, name string) (id string, err error) {
	e.netMu.Lock()
	defer e.netMu.Unlock()
	if id, err = e.findNetwork(ctx, name); id != "" || err != nil {
		return id, err
	}
	// Not under ctx: an interrupted creation may still take place.
	create, cancel := detached(ctx)
	defer cancel()
	release := creationLock(create, name)
	defer release()
	if id, err = e.findNetwork(create, name); id != "" || err != nil {
		return id, err
	}
	created, err := e.NetworkCreate(create, name, network.CreateOptions{
		Driver: "bridge", Options: map[string]string{betweenKey: "false"},
	})
	// A process that did not take the lock may have created one at the same time: all use the oldest.
	if id, failed := e.findNetwork(create, name); id != "" || failed != nil {
		if created.ID != "" && id != created.ID {
			_ = e.NetworkRemove(create, created.ID) // remove the duplicate
		}
		return id, failed
	}
	if err != nil {
		return "", unavailable(explain("create the network "+name+", on which containers cannot reach each other", err),
			"load the kernel module br_netfilter, or create the network yourself: docker network create -o "+betweenKey+"=false "+name)
	}
	return created.ID, nil
}

// creationLock keeps other processes from creating the network with a name until the result is called.
// Docker checks whether a name is in use before it creates a network, and may show a network later than
// one that was created after it, so two processes could each use their own. The lock is an address in the
// kernel's abstract namespace, which any user may take: creationLock returns without it after lockTime.
func creationLock(ctx context.Context, name string) (release func()) {
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	for {
		lock, err := net.Listen("unix", "@gfaas-network-"+name)
		if err == nil {
			return func() { _ = lock.Close() }
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return func() {}
		}
		select {
		case <-ctx.Done():
			return func() {}
		case <-time.After(lockPoll):
		}
	}
}

const (
	lockTime = 10 * time.Second
	lockPoll = 10 * time.Millisecond
)

// findNetwork returns the ID of the oldest network with a name, or "" if there is none.
func (e *engine) findNetwork(ctx context.Context, name string) (string, error) {
	all, err := e.NetworkList(ctx, network.ListOptions{Filters: filters.NewArgs(filters.Arg("name", name))})
	if err != nil {
		return "", explain("find the network "+name, err)
	}
	all = slices.DeleteFunc(all, func(n network.Inspect) bool { return n.Name != name }) // the filter also matches substrings
	if len(all) == 0 {
		return "", nil
	}
	oldest := slices.MinFunc(all, func(a, b network.Inspect) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	if oldest.Driver != "bridge" || oldest.Options[betweenKey] != "false" {
		return "", unavailable(fmt.Errorf("the Docker network %s lets containers reach each other", name),
			"remove it, so that gfaas creates its own: docker network rm "+name)
	}
	return oldest.ID, nil
}
