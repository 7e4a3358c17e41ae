package docker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/docker/dockertest"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// networkOf returns the name of a network for this test only, which is removed at the end.
func networkOf(t *testing.T) (name string) {
	t.Helper()
	name = "gfaas-test-" + preload.NewSecret()[:12]
	t.Cleanup(func() {
		engine, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
		if err != nil {
			return
		}
		defer engine.Close()
		for _, n := range networks(engine, name) {
			if err := engine.NetworkRemove(context.Background(), n.ID); err != nil {
				t.Errorf("remove network %s: %v", name, err)
			}
		}
	})
	return name
}

func networks(engine *client.Client, name string) []network.Inspect {
	all, _ := engine.NetworkList(context.Background(), network.ListOptions{Filters: filters.NewArgs(filters.Arg("name", name))})
	return all
}

// caller connects to an address and exits with 0 if that succeeds within 2 s.
const caller = `
#include <arpa/inet.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), err = 0;
	socklen_t n = sizeof err;
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	inet_pton(AF_INET, argv[1], &to.sin_addr);
	connect(fd, (struct sockaddr *)&to, sizeof to);
	return poll(&p, 1, 2000) != 1 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n) || err;
}`

// execute runs a command in a container and returns its exit status.
func execute(t *testing.T, engine *client.Client, in string, command ...string) int {
	t.Helper()
	made, err := engine.ContainerExecCreate(t.Context(), in, container.ExecOptions{Cmd: command, AttachStdout: true})
	if err != nil {
		t.Fatal(err)
	}
	out, err := engine.ContainerExecAttach(t.Context(), made.ID, container.ExecAttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out.Reader) // to its end
	out.Close()
	code := -1
	eventually(t, "the command has ended", func() bool {
		state, err := engine.ContainerExecInspect(t.Context(), made.ID)
		if err != nil {
			t.Fatal(err)
		}
		code = state.ExitCode
		return !state.Running
	})
	return code
}

// Only the host can reach an instance. Other instances can reach neither its own port, nor
// its port on the host, nor its name.
func TestInstancesDoNotReachEachOther(t *testing.T) {
	engine := connect(t)
	call := filepath.Join(t.TempDir(), "call")
	instancetest.Compile(t, call, []byte(caller))
	files := dockertest.Probe(t, instancetest.BuildProbe(t))
	files["call"] = call
	image := importImage(t, engine, "reach", files, `ENTRYPOINT ["/probe"]`)
	r := newRuntime(t, newConfig(t))
	var handles []instance.Handle
	var addresses []string
	for _, id := range []string{"a", "b"} {
		h, err := r.Start(t.Context(), instance.Spec{ID: id, Image: image, Port: 9000, GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 50}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Stop(context.Background(), h, 0) }()
		eventually(t, "the host reaches the instance", func() bool {
			conn, err := net.DialTimeout("tcp", h.Address, time.Second)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
		info, err := engine.ContainerInspect(t.Context(), h.Container)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range info.NetworkSettings.Networks {
			addresses = append(addresses, n.IPAddress, n.Gateway)
		}
		handles = append(handles, h)
	}
	if len(addresses) != 4 {
		t.Fatalf("addresses and gateways %v, want one network each", addresses)
	}
	_, published, _ := net.SplitHostPort(handles[1].Address)
	for name, c := range map[string]struct {
		address, port string
		reaches       bool
	}{
		"itself":                 {addresses[0], "9000", true},
		"the other's port":       {addresses[2], "9000", false},
		"by the host's address":  {addresses[1], published, false},
		"by the host's loopback": {"127.0.0.1", published, false},
	} {
		if code := execute(t, engine, handles[0].Container, "/call", c.address, c.port); (code == 0) != c.reaches {
			t.Errorf("%s at %s:%s: exit %d, want it to reach: %v", name, c.address, c.port, code, c.reaches)
		}
	}
}

// Concurrent starts, also of several processes, create one network.
func TestNetworkIsCreatedOnce(t *testing.T) {
	engine := connect(t)
	config := newConfig(t)
	var ids [6]string
	var all sync.WaitGroup
	for n := range ids {
		r := newRuntime(t, config)
		all.Go(func() {
			var err error
			if ids[n], err = docker.Network(r, t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	made := networks(engine, config.Network)
	if len(made) != 1 {
		t.Fatalf("%d networks, want 1", len(made))
	}
	for _, id := range ids {
		if id != made[0].ID {
			t.Errorf("a start took network %s, want %s", id, made[0].ID)
		}
	}
	// After its removal, the network is created again.
	if err := engine.NetworkRemove(t.Context(), made[0].ID); err != nil {
		t.Fatal(err)
	}
	if id, err := docker.Network(newRuntime(t, config), t.Context()); err != nil || id == "" || id == made[0].ID {
		t.Errorf("network after its removal: got %s, %v; want a new one", id, err)
	}
}

// A network of that name on which containers can reach each other is refused.
func TestOpenNetworkIsRefused(t *testing.T) {
	engine := connect(t)
	config := newConfig(t)
	if _, err := engine.NetworkCreate(t.Context(), config.Network, network.CreateOptions{Driver: "bridge"}); err != nil {
		t.Fatal(err)
	}
	_, err := docker.Network(newRuntime(t, config), t.Context())
	var refused *ports.UnavailableError
	if !errors.As(err, &refused) || !refused.Unavailable() || !strings.Contains(refused.Hint(), "docker network rm "+config.Network) {
		t.Errorf("error %v, want a refusal with a hint", err)
	}
}
