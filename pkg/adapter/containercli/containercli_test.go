package containercli

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/mount"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
)

// TestParse checks that Parse inserts the slice's arguments directly after run, and
// refuses commands whose container would run outside the slice.
func TestParse(t *testing.T) {
	t.Setenv("DOCKER_HOST", "")
	t.Setenv("DOCKER_CONTEXT", "")
	t.Setenv("CONTAINER_HOST", "")
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for name, host := range map[string]string{"far": "ssh://gpu-3", "near": "unix:///run/user/1000/docker.sock"} {
		path := filepath.Join(os.Getenv("DOCKER_CONFIG"), "contexts", "meta", fmt.Sprintf("%x", sha256.Sum256([]byte(name))), "meta.json")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(`{"Name":"`+name+`","Endpoints":{"docker":{"Host":"`+host+`"}}}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	guest := docker.Guest{Env: map[string]string{"A": "b", "GFAAS_SECRET": "s"}, Mounts: []mount.Mount{{Source: "/x", Target: "/y", ReadOnly: true}}}
	user := fmt.Sprintf("--user %d:%d", os.Geteuid(), os.Getegid())
	for _, c := range []struct{ env, command, want string }{ // want: the resulting command, "" for an unchanged command, or "!" and a part of the error
		{"", "docker run IMAGE", "docker run -v /x:/y:ro " + user + " --cidfile /cid -e A=b -e GFAAS_SECRET IMAGE"},
		{"", "/usr/bin/docker --debug -l info container run --rm IMAGE run", "/usr/bin/docker --debug -l info container run -v /x:/y:ro " + user + " --cidfile /cid -e A=b -e GFAAS_SECRET --rm IMAGE run"},
		{"", "podman run IMAGE", "podman run -v /x:/y:ro " + user + " --cidfile /cid -e A=b -e GFAAS_SECRET IMAGE"},
		{"", "nerdctl -n run run IMAGE", "nerdctl -n run run -v /x:/y:ro " + user + " --cidfile /cid -e A=b -e GFAAS_SECRET IMAGE"},
		{"", "docker compose -f run run web", "docker compose -f run run -v /x:/y:ro " + user + " -e A=b -e GFAAS_SECRET web"},
		{"", "docker-compose --file=x run web", "docker-compose --file=x run -v /x:/y:ro " + user + " -e A=b -e GFAAS_SECRET web"},
		{"", "docker --context near run IMAGE", "docker --context near run -v /x:/y:ro " + user + " --cidfile /cid -e A=b -e GFAAS_SECRET IMAGE"},
		{"DOCKER_HOST=unix:///x.sock", "docker run IMAGE", "docker run -v /x:/y:ro " + user + " --cidfile /cid -e A=b -e GFAAS_SECRET IMAGE"},
		{"", "docker ps", ""},
		{"", "docker", ""},
		{"", "./run docker run", ""},
		{"", "python docker run", ""},
		{"", "docker exec a program", "!docker exec starts a program in an existing container"},
		{"", "docker container exec a program", "!docker container exec starts"},
		{"", "docker start a", "!docker start starts an existing container"},
		{"", "docker restart a", "!starts an existing container"},
		{"", "docker create IMAGE", "!that another command starts"},
		{"", "docker compose up", "!docker compose up starts the containers of a file"},
		{"", "docker-compose exec web sh", "!docker-compose exec starts"},
		{"", "podman start a", "!podman start starts"},
		{"DOCKER_HOST=tcp://gpu-3:2376", "docker run IMAGE", "!the engine of DOCKER_HOST tcp://gpu-3:2376 may be on another machine"},
		{"DOCKER_HOST=ssh://gpu-3", "docker compose run web", "!the engine of DOCKER_HOST ssh://gpu-3 may be on another machine"},
		{"DOCKER_HOST=ssh://gpu-3", "docker-compose run web", "!may be on another machine"},
		{"DOCKER_CONTEXT=far", "docker run IMAGE", "!the engine of context far may be on another machine"},
		{"", "docker -c far run IMAGE", "!the engine of context far may be on another machine"},
		{"", "docker --context=absent run IMAGE", "!context absent"},
		{"", "docker -H tcp://gpu-3 run IMAGE", "!-H tcp://gpu-3"},
		{"", "docker --host=ssh://gpu-3 run IMAGE", "!--host ssh://gpu-3"},
		{"", "podman --remote run IMAGE", "!podman: the engine of --remote"},
		{"CONTAINER_HOST=ssh://gpu-3", "podman run IMAGE", "!CONTAINER_HOST ssh://gpu-3"},
		{"", "sudo docker run IMAGE", "!sudo runs its command through another process"},
		{"", "/usr/bin/ssh gpu-3 python train.py", "!ssh runs its command through another process"},
		{"", "systemd-run --user python train.py", "!systemd-run runs its command through another process"},
	} {
		t.Run(c.env+" "+c.command, func(t *testing.T) {
			if name, value, found := strings.Cut(c.env, "="); found {
				t.Setenv(name, value)
			}
			e, err := Parse(strings.Fields(c.command))
			if refusal, refused := strings.CutPrefix(c.want, "!"); refused {
				if err == nil || !strings.Contains(err.Error(), refusal) {
					t.Fatalf("got error %v, want a refusal with %q", err, refusal)
				}
				return
			}
			if err != nil || (e == nil) != (c.want == "") {
				t.Fatalf("got command %+v, %v; want a container command: %v", e, err, c.want != "")
			}
			if e == nil {
				return
			}
			command, env, err := e.withSlice(guest, "/cid")
			if got := strings.Join(command, " "); err != nil || got != c.want || env["GFAAS_SECRET"] != "s" {
				t.Errorf("got %s (environment %v, %v), want %s and the secret in the environment", got, env, err, c.want)
			}
		})
	}
	config := filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")
	if err := os.WriteFile(config, []byte(`{"currentContext":"far"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Parse([]string{"docker", "run", "IMAGE"}); err == nil || !strings.Contains(err.Error(), "context far") {
		t.Errorf("current context far: got error %v, want a refusal with \"context far\"", err)
	}
}
