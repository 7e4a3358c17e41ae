package gfaas

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// standIn is a program on PATH that records its arguments and whether it received the secret.
const standIn = `#!/bin/sh
{ for word; do echo "$word"; done; echo "secret ${GFAAS_SECRET:+set}, preload ${LD_PRELOAD:-none}"; } >"$RECORD"
exit 3`

// TestEnginesGetTheSlice checks that programs which start containers receive the arguments of the slice, and that gfaas
// run returns their exit status.
func TestEnginesGetTheSlice(t *testing.T) {
	t.Parallel()
	p := newEnvironment(t)
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
			t.Fatalf("gfaas run %s: got exit status %d, want the command's 3: %s", command, exitStatus(err), text)
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
			t.Errorf("arguments and environment of %s: got\n%swant the mount %s, GFAAS_INSTANCE and LD_PRELOAD after run", command, text, socket)
		}
		eventually(t, command+": the slice is removed", func() bool { return !p.knows("stand-in") })
	}
}

// TestDockerRun checks that containers of the real docker command run in their slices, with gfaas run and with gfaas
// docker-args.
func TestDockerRun(t *testing.T) {
	t.Parallel()
	p := newDockerEnvironment(t)
	p.env = append(p.env, "GFAAS_LIB_DIR="+built("lib")) // the real library
	image := importProgram(t, built("victim", "saturate"), built("lib"))
	docker, err := exec.LookPath("docker")
	if err != nil {
		t.Fatal(err)
	}
	run := p.command("run", "--gpu", "sim", "--name", "boxed", "--quota", "0.3:0.3", "--mem", "1GiB", "--", docker, "run", "--rm", image, "/function", "1")
	var stderr strings.Builder
	run.Stderr = &stderr
	text, err := run.Output()
	var result struct{ Share, Launches float64 }
	if failed := json.Unmarshal(text, &result); err != nil || failed != nil || result.Launches == 0 || result.Share > 0.45 {
		t.Errorf("container with a quota of 0.3: got %v, %v and %+v, want launches and a share of at most 0.45: %s%s", err, failed, result, text, stderr.String())
	}
	// A registered slice:
	if err := os.Mkdir(filepath.Join(p.dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.write("d/f.yaml", "name: f\nimage: "+image+"\n")
	p.output("apply", "-f", "d/f.yaml")
	p.write("d/plan.json", strings.Replace(planOf("f-0"), `"quota_limit": 1`, `"quota_limit": 0.3`, 1))
	p.output("register", "d/plan.json", "--gpu", "sim")
	args := p.output("docker-args", "f-0")
	if strings.Contains(args, "SECRET") {
		t.Errorf("gfaas docker-args f-0: got %s, want no secret", args)
	}
	text, err = exec.Command(docker, append(append([]string{"run", "--rm"}, strings.Fields(args)...), image, "/function", "1")...).Output()
	if failed := json.Unmarshal(text, &result); err != nil || failed != nil || result.Launches == 0 {
		t.Errorf("container of a registered slice: got %v, %v and %+v, want launches: %s", err, failed, result, text)
	}
	if text, err := p.command("docker-args", "none").CombinedOutput(); exitStatus(err) != 1 || !strings.Contains(string(text), "no slice \"none\" is registered") {
		t.Errorf("gfaas docker-args none: got %v, want exit status 1 and the unknown slice: %s", err, text)
	}
	if text, err := p.command("docker-args", "f-0", "--env-file", "d/none").CombinedOutput(); exitStatus(err) != 1 || !strings.Contains(string(text), "--env-file") {
		t.Errorf("gfaas docker-args with a missing --env-file: got %v, want exit status 1 and the flag: %s", err, text)
	}
	// gfaas run waits for a detached container and then removes its slice.
	run = p.command("run", "--gpu", "sim", "--name", "detached", "--quota", "0.3:0.3", "--", docker, "run", "-d", "--rm", image, "/function", "1")
	if text, err := run.CombinedOutput(); err != nil {
		t.Errorf("gfaas run of a detached container: %v\n%s", err, text)
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
