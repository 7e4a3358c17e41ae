package gfaas

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/mount"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
)

// TestEngine: the slice's arguments come right behind run, and what would leave the slice
// is refused.
func TestEngine(t *testing.T) {
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
	for _, c := range []struct{ env, command, want string }{ // want: what is run, "" as it is, or ! and a part of the refusal
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
		{"", "docker exec a program", "!docker exec starts a program in a container that exists"},
		{"", "docker container exec a program", "!docker container exec starts"},
		{"", "docker start a", "!docker start starts a container that exists"},
		{"", "docker restart a", "!starts a container that exists"},
		{"", "docker create IMAGE", "!that another command starts"},
		{"", "docker compose up", "!docker compose up starts containers of a file"},
		{"", "docker-compose exec web sh", "!docker-compose exec starts"},
		{"", "podman start a", "!podman start starts"},
		{"DOCKER_HOST=tcp://gpu-3:2376", "docker run IMAGE", "!DOCKER_HOST tcp://gpu-3:2376 is an engine of another machine"},
		{"DOCKER_HOST=ssh://gpu-3", "docker compose run web", "!DOCKER_HOST ssh://gpu-3 is an engine of another machine"},
		{"DOCKER_HOST=ssh://gpu-3", "docker-compose run web", "!of another machine"},
		{"DOCKER_CONTEXT=far", "docker run IMAGE", "!context far is an engine of another machine"},
		{"", "docker -c far run IMAGE", "!context far is an engine of another machine"},
		{"", "docker --context=absent run IMAGE", "!context absent"},
		{"", "docker -H tcp://gpu-3 run IMAGE", "!-H tcp://gpu-3"},
		{"", "docker --host=ssh://gpu-3 run IMAGE", "!--host ssh://gpu-3"},
		{"", "podman --remote run IMAGE", "!podman: --remote"},
		{"CONTAINER_HOST=ssh://gpu-3", "podman run IMAGE", "!CONTAINER_HOST ssh://gpu-3"},
		{"", "sudo docker run IMAGE", "!sudo has its command run by another process"},
		{"", "/usr/bin/ssh gpu-3 python train.py", "!ssh has its command run by another process"},
		{"", "systemd-run --user python train.py", "!systemd-run has its command run by another process"},
	} {
		t.Run(c.env+" "+c.command, func(t *testing.T) {
			if name, value, found := strings.Cut(c.env, "="); found {
				t.Setenv(name, value)
			}
			e, err := parseEngine(strings.Fields(c.command))
			if refusal, refused := strings.CutPrefix(c.want, "!"); refused {
				if err == nil || !strings.Contains(err.Error(), refusal) {
					t.Fatalf("%v, want a refusal with %q", err, refusal)
				}
				return
			}
			if err != nil || (e == nil) != (c.want == "") {
				t.Fatalf("%+v, %v", e, err)
			}
			if e == nil {
				return
			}
			command, env, err := e.into(guest, "/cid")
			if got := strings.Join(command, " "); err != nil || got != c.want || env["GFAAS_SECRET"] != "s" {
				t.Errorf("%s (%v, %v), want %s", got, env, err, c.want)
			}
		})
	}
	far := filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")
	if err := os.WriteFile(far, []byte(`{"currentContext":"far"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := parseEngine([]string{"docker", "run", "IMAGE"}); err == nil || !strings.Contains(err.Error(), "context far") {
		t.Errorf("the current context is far: %v", err)
	}
}

// standIn is a program on PATH that records its arguments and whether it has the secret.
const standIn = `#!/bin/sh
{ for word; do echo "$word"; done; echo "secret ${GFAAS_SECRET:+set}, preload ${LD_PRELOAD:-none}"; } >"$RECORD"
exit 3`

// TestStandIns: programs that start containers get the arguments of the slice, and
// gfaas run has their exit status.
func TestStandIns(t *testing.T) {
	p := newPlace(t)
	bin := t.TempDir()
	for _, command := range []string{"docker compose run web", "docker-compose run web", "podman run IMAGE", "nerdctl run IMAGE"} {
		words := strings.Fields(command)
		if err := os.WriteFile(filepath.Join(bin, words[0]), []byte(standIn), 0o755); err != nil {
			t.Fatal(err)
		}
		record := filepath.Join(bin, "record")
		cmd := p.command(append([]string{"run", "-q", "--gpu", "sim", "--name", "stand-in", "--mem", "1GiB", "--"}, words...)...)
		cmd.Env = append(cmd.Env, "RECORD="+record, "PATH="+bin+":"+os.Getenv("PATH"), "DOCKER_HOST=", "DOCKER_CONTEXT=", "DOCKER_CONFIG="+bin)
		if text, err := cmd.CombinedOutput(); exitStatus(err) != 3 {
			t.Fatalf("%s: status %d: %s", command, exitStatus(err), text)
		}
		text, err := os.ReadFile(record)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Split(string(text), "\n")
		run := slices.Index(got, "run")
		socket := filepath.Join(p.getenv("GFAAS_RUN_DIR"), "client", "stand-in") + ":/opt/gfaas/run:ro"
		if run != len(words)-3 || got[run+1] != "-v" || got[run+2] != socket || !slices.Contains(got, "GFAAS_INSTANCE=stand-in") ||
			!slices.Contains(got, "LD_PRELOAD=/opt/gfaas/libgfaas.so") || !strings.HasSuffix(string(text), "\nsecret set, preload none\n") {
			t.Errorf("%s: it was given\n%s", command, text)
		}
		eventually(t, command+": the slice is removed", func() bool { return !p.knows("stand-in") })
	}
}

// TestDockerRun: the real program's container is in its slice, by both ways.
func TestDockerRun(t *testing.T) {
	p := dockerPlace(t)
	p.env = append(p.env, "GFAAS_LIB_DIR="+built("lib")) // the real library
	image := importProgram(t, built("victim", "saturate"), built("lib"))
	docker, err := exec.LookPath("docker")
	if err != nil {
		t.Fatal(err)
	}
	run := p.command("run", "--gpu", "sim", "--name", "boxed", "--quota", "0.3:0.3", "--mem", "1GiB", "--", docker, "run", "--rm", image, "/function", "1")
	var said strings.Builder
	run.Stderr = &said
	text, err := run.Output()
	var did struct{ Share, Launches float64 }
	if failed := json.Unmarshal(text, &did); err != nil || failed != nil || did.Launches == 0 || did.Share > 0.45 {
		t.Errorf("a container with a quota of 0.3: %v, %v: %s%s", err, failed, text, said.String())
	}
	// A registered slice.
	if err := os.Mkdir(filepath.Join(p.dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.write("d/f.yaml", "name: f\nimage: "+image+"\n")
	p.output("apply", "-f", "d/f.yaml")
	p.write("d/plan.json", strings.Replace(planOf("f-0"), `"quota_limit": 1`, `"quota_limit": 0.3`, 1))
	p.output("register", "d/plan.json", "--gpu", "sim")
	args := p.output("docker-args", "f-0")
	if strings.Contains(args, "SECRET") {
		t.Errorf("the secret is on the command line: %s", args)
	}
	text, err = exec.Command(docker, append(append([]string{"run", "--rm"}, strings.Fields(args)...), image, "/function", "1")...).Output()
	if failed := json.Unmarshal(text, &did); err != nil || failed != nil || did.Launches == 0 {
		t.Errorf("a container of a registered slice: %v, %v: %s", err, failed, text)
	}
	if text, err := p.command("docker-args", "none").CombinedOutput(); exitStatus(err) != 1 || !strings.Contains(string(text), "no slice \"none\" is registered") {
		t.Errorf("%v: %s", err, text)
	}
	if text, err := p.command("docker-args", "f-0", "--env-file", "d/none").CombinedOutput(); exitStatus(err) != 1 || !strings.Contains(string(text), "--env-file") {
		t.Errorf("%v: %s", err, text)
	}
	// A detached one is waited for, and its slice goes with it.
	run = p.command("run", "--gpu", "sim", "--name", "detached", "--quota", "0.3:0.3", "--", docker, "run", "-d", "--rm", image, "/function", "1")
	if text, err := run.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	eventually(t, "the slice of a detached container is removed", func() bool { return !p.knows("detached") })
	_, secrets, _ := strings.Cut(args, "--env-file ")
	if _, err := os.Stat(strings.TrimSpace(secrets)); err != nil {
		t.Error(err)
	}
	p.output("down")
	if _, err := os.Stat(strings.TrimSpace(secrets)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the slice's secret is left behind: %v", err)
	}
}
