package gfaas

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/rollout"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestUpNodeByNode starts a plan of two nodes on each node separately. Neither node knows about the other's part.
func TestUpNodeByNode(t *testing.T) {
	t.Parallel()
	a, b := newEnvironment(t), newEnvironment(t)
	for _, p := range []*environment{a, b} {
		p.write("f.yaml", `{name: fine, command: ["`+p.getenv("FUNCTION")+`"]}`)
		p.write("plan.json", fleetOf("a", "fine-0", "fine-1", "b", "fine-2"))
		p.write("next.json", fleetOf("a", "fine-0", "b", "fine-2", "fine-3"))
		p.write("without-a.json", fleetOf("a", "b", "fine-2"))
		p.output("apply", "-f", "f.yaml")
	}
	a.output("up", "--node", "a", "plan.json")
	b.output("up", "--node", "b", "plan.json")
	before := b.ps()
	if got := ids(a.ps()) + " / " + ids(before); got != "fine-0 fine-1 / fine-2" {
		t.Fatalf("run: %s, want fine-0 fine-1 / fine-2", got)
	}
	for _, p := range []*environment{a, b} {
		cmd := p.command("invoke", "fine")
		cmd.Stdin = strings.NewReader("hello")
		if text, err := cmd.Output(); err != nil || string(text) != "hello" {
			t.Errorf("gfaas invoke fine: got %q, %v; want hello", text, err)
		}
	}

	var steps []rollout.Step
	if err := json.Unmarshal([]byte(a.output("up", "--node", "a", "--prune", "--dry-run", "-o", "json", "next.json")), &steps); err != nil {
		t.Fatal(err)
	}
	if len(steps) != 1 || steps[0].Action != rollout.ActionStop || steps[0].ID != "fine-1" {
		t.Errorf("steps on the node a: got %+v, want only a stop of fine-1", steps)
	}
	a.output("up", "--node", "a", "--prune", "next.json")
	b.output("up", "--node", "b", "--prune", "next.json")
	after := b.ps()
	if got := ids(a.ps()) + " / " + ids(after); got != "fine-0 / fine-2 fine-3" {
		t.Errorf("running instances of both nodes: got %s, want fine-0 / fine-2 fine-3", got)
	}
	if after[0].PID != before[0].PID {
		t.Errorf("PID of fine-2, which is unchanged: got %d, want %d", after[0].PID, before[0].PID)
	}

	// up --prune stops all instances on a node that the plan leaves empty. It rejects an unknown node, which may be
	// a typing mistake.
	a.output("up", "--node", "a", "--prune", "without-a.json")
	if got := ids(a.ps()) + " / " + ids(b.ps()); got != " / fine-2 fine-3" {
		t.Errorf("running instances of both nodes: got %s, want none / fine-2 fine-3", got)
	}
	for _, verb := range []string{"up", "register"} {
		text, err := a.command(verb, "--node", "c", "plan.json").CombinedOutput()
		if exitStatus(err) != 2 || !strings.Contains(string(text), `--node "c" is not in the plan: expected one of a, b`) {
			t.Errorf("gfaas %s --node c: got %v, want exit status 2 and the planned nodes: %s", verb, err, text)
		}
	}
	b.output("down")
	b.checkNothingRemains()
}

// fleetOf returns a plan of small instances on one GPU per node. Each node's name is followed by the IDs on it.
func fleetOf(words ...string) string {
	var gpus []string
	var node string
	var on []string
	flush := func() {
		if node != "" {
			one := planOf(on...)
			gpus = append(gpus, strings.Replace(one[strings.Index(one, `{"node":"n"`):len(one)-2], `"node":"n"`, `"node":"`+node+`"`, 1))
		}
	}
	for _, word := range words {
		if strings.Contains(word, "-") {
			on = append(on, word)
			continue
		}
		flush()
		node, on = word, nil
	}
	flush()
	one := planOf()
	return one[:strings.Index(one, `{"node":"n"`)] + strings.Join(gpus, ",") + "]}"
}

func (p *environment) ps() (list []rollout.Entry) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.output("ps", "-o", "json")), &list); err != nil {
		p.t.Fatal(err)
	}
	return list
}

func ids(list []rollout.Entry) string {
	var out []string
	for _, e := range list {
		out = append(out, e.ID)
	}
	return strings.Join(out, " ")
}

// newFleetEnvironment returns a place with the programs that make has built, and with a function of the examples as an image,
// which works on the simulated GPU.
func newFleetEnvironment(t *testing.T) *environment {
	t.Helper()
	p := newDockerEnvironment(t)
	build, err := filepath.Abs("../../../build")
	if err != nil {
		t.Fatal(err)
	}
	libs, saxpy := filepath.Join(build, "lib"), filepath.Join(build, "examples", "saxpy", "saxpy")
	if _, err := os.Stat(saxpy); err != nil {
		t.Fatalf("run make first: %v", err)
	}
	p.env = append(p.env, "GFAAS_LIB_DIR="+libs, "LD_LIBRARY_PATH="+filepath.Join(libs, "sim"))
	p.image = importProgram(t, saxpy, libs)
	t.Cleanup(func() { down(p.env) })
	p.write("f.yaml", "name: saxpy\nimage: "+p.image+"\ngpu_mem: 512MiB\nlimits: {memory: 1GiB, cpus: 1.5}\n")
	p.output("apply", "-f", "f.yaml")
	p.write("plan.json", strings.Replace(fleetOf("n", "saxpy-0", "saxpy-1", "m", "saxpy-2"), `"quota_limit":0.1`, `"quota_limit":0.6`, 1))
	return p
}

// export writes a manifest of the plan.
func (p *environment) export(args ...string) {
	p.t.Helper()
	cmd := p.command()
	cmd.Path, cmd.Args = p.lookPath("gfaas-place"), append([]string{"gfaas-place", "export"}, args...)
	cmd.Args = append(cmd.Args, "plan.json", "--functions", "f.yaml", "--gpu", "sim")
	if text, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("run %v: %v\n%s", cmd.Args, err, text)
	}
}

// engine runs a command of another engine with the settings from gfaas register.
func (p *environment) engine(words ...string) (string, error) {
	p.t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", `if [ -e .env ]; then set -a; . ./.env; set +a; fi; exec "$@"`, "sh"}, words...)...)
	cmd.Dir = p.dir
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "GFAAS_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "DOCKER_HOST="+p.getenv("DOCKER_HOST"))
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// mustEngine runs a command like engine and fails the test if it fails.
func (p *environment) mustEngine(words ...string) string {
	p.t.Helper()
	text, err := p.engine(words...)
	if err != nil {
		p.t.Fatalf("run %v: %v\n%s", words, err, text)
	}
	return text
}

// compute waits until the function at the address answers, and invokes it.
func compute(t *testing.T, address string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience} // without a proxy
	eventually(t, "the function at "+address+" answers", func() bool {
		answer, err := client.Post("http://"+address+"/", "application/json", strings.NewReader(`{"n": 4096, "a": 2}`))
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || !strings.Contains(string(text), `"sum":1982400`) {
			t.Fatalf("answer of %s: got %s, %v; want the sum 1982400", address, text, err)
		}
		return true
	})
}

// client returns the token daemon's status of an instance.
func (p *environment) client(id string) wire.ClientStatus {
	p.t.Helper()
	cmd := p.command()
	cmd.Path, cmd.Args = p.lookPath("gfaas-tokend"), []string{"gfaas-tokend", "status", "-o", "json"}
	text, err := cmd.Output()
	if err != nil {
		p.t.Fatal(err)
	}
	var status wire.Status
	if err := json.Unmarshal(text, &status); err != nil {
		p.t.Fatal(err)
	}
	for _, g := range status.GPUs {
		for _, c := range g.Clients {
			if c.Instance == id {
				return c
			}
		}
	}
	return wire.ClientStatus{}
}

// checkSlice fails the test unless the instance has run under the plan's slice. It polls, because the daemon learns about
// launches later.
func (p *environment) checkSlice(id string, quotaLimit float64) {
	p.t.Helper()
	var c wire.ClientStatus
	eventually(p.t, "the token daemon counts launches of "+id, func() bool { c = p.client(id); return c.PID != 0 && c.Launches > 0 })
	if c.SMPct != 10 || c.QuotaRequest != 0.1 || c.QuotaLimit != quotaLimit || c.MemLimitMiB != 512 {
		p.t.Errorf("the token daemon's client %s: got %+v; want SMPct 10, QuotaRequest 0.1, QuotaLimit %v, MemLimitMiB 512", id, c, quotaLimit)
	}
}

// checkContainerLimits fails the test unless the instance's container has its function's limits.
func (p *environment) checkContainerLimits(id string) {
	p.t.Helper()
	container := p.mustEngine("docker", "ps", "-q", "--filter", "label=gfaas.instance="+id, "--filter", "ancestor="+p.image)
	got := strings.TrimSpace(p.mustEngine("docker", "inspect", "--format",
		"{{with .HostConfig}}{{.Memory}} {{.NanoCpus}} {{.PidsLimit}} {{.CapDrop}}{{end}}", strings.TrimSpace(container)))
	if want := "1073741824 1500000000 4096 [ALL]"; got != want {
		p.t.Errorf("limits of the container of %s: got %s, want %s", id, got, want)
	}
}

// composes returns the installed versions of Compose with their commands.
func composes(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	if exec.Command("docker", "compose", "version").Run() == nil {
		out["2"] = []string{"docker", "compose"}
	}
	if text, err := exec.Command("docker-compose", "version", "--short").Output(); err == nil {
		if strings.HasPrefix(string(text), "1.") {
			out["1"] = []string{"docker-compose"}
		} else if out["2"] == nil {
			out["2"] = []string{"docker-compose"}
		}
	}
	if len(out) == 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("neither docker compose nor docker-compose was found")
		}
		t.Skip("no Compose is there")
	}
	return out
}

// TestCompose starts exported Compose files and checks the slices.
func TestCompose(t *testing.T) {
	t.Parallel()
	for version, program := range composes(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			testCompose(t, version, program)
		})
	}
}

func testCompose(t *testing.T, version string, program []string) {
	p := newFleetEnvironment(t)
	project := "gfaas-test-" + strings.ToLower(preload.NewSecret()[:8])
	compose := func(words ...string) []string { return slices.Concat(program, []string{"-p", project}, words) }
	p.export("compose", "--node", "n", "--compose-version", version, "--out-file", "compose.yaml")
	if text, err := p.engine(compose("config")...); err == nil || !strings.Contains(text, "gfaas register") {
		t.Errorf("compose config without settings: got %v, want an error with \"gfaas register\": %s", err, text)
	}
	p.output("register", "plan.json", "--node", "n")
	t.Cleanup(func() { _, _ = p.engine(compose("down")...) })

	// Without the library, no container starts, and Docker does not create a folder in its place.
	settings, err := os.ReadFile(filepath.Join(p.dir, ".env"))
	if err != nil {
		t.Fatal(err)
	}
	p.write(".env", string(settings)+"GFAAS_LIB_DIR="+p.dir+"/none\n")
	if text, err := p.engine(compose("up", "-d")...); err == nil || !strings.Contains(text, "none/") {
		t.Errorf("compose up without the library: got %v, want an error with its folder: %s", err, text)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "none")); err == nil {
		t.Error("compose up created the missing folder of the library")
	}
	p.output("register", "plan.json", "--node", "n") // restores the settings with the same secret
	if restored, err := os.ReadFile(filepath.Join(p.dir, ".env")); err != nil || string(restored) != string(settings) {
		t.Errorf("settings after a second register: got %s, %v; want %s", restored, err, settings)
	}

	p.mustEngine(compose("up", "-d")...)
	for id, limit := range map[string]float64{"saxpy-0": 0.6, "saxpy-1": 0.1} {
		compute(t, strings.TrimSpace(p.mustEngine(compose("port", id, "8080")...)))
		p.checkSlice(id, limit)
		p.checkContainerLimits(id)
	}
	if c := p.client("saxpy-2"); c.Instance != "" {
		t.Errorf("slice of saxpy-2, which is on another node: got %+v, want none", c)
	}

	// Register another plan while the instances run.
	p.write("less.json", strings.Replace(fleetOf("n", "saxpy-0"), `"quota_limit":0.1`, `"quota_limit":0.7`, 1))
	p.output("register", "less.json", "--prune")
	p.checkSlice("saxpy-0", 0.7)
	if c := p.client("saxpy-1"); c.Instance != "" {
		t.Errorf("slice of saxpy-1, which is not in the new plan: got %+v, want none", c)
	}
	p.output("register", "plan.json", "--node", "n")
	p.mustEngine(compose("restart", "saxpy-1")...)      // a running instance stays unregistered, so restart it
	for _, id := range []string{"saxpy-0", "saxpy-1"} { // on a busy host they may take longer than --repair waits
		compute(t, strings.TrimSpace(p.mustEngine(compose("port", id, "8080")...)))
	}

	// gfaas adopts the instances that Compose has started.
	if got := p.ps(); len(got) != 2 || got[0].State != "lost" || got[0].Runtime != "docker" {
		t.Errorf("gfaas ps: got %+v, want two lost instances with the runtime docker", got)
	}
	p.output("doctor", "--repair")
	cmd := p.command("invoke", "saxpy")
	cmd.Stdin = strings.NewReader(`{"n": 4096, "a": 2}`)
	if text, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(text), `"sum":1982400`) {
		t.Errorf("gfaas invoke saxpy: got %v, want the sum 1982400: %s", err, text)
	}
	if text, err := p.command("register", "plan.json", "--node", "n").CombinedOutput(); exitStatus(err) != 1 || !strings.Contains(string(text), "cannot register instance saxpy-0 for another engine: gfaas has started it") {
		t.Errorf("gfaas register of an instance of gfaas: got %v, want exit status 1 and the instance: %s", err, text)
	}
	p.output("down")
	p.checkNothingRemains()
}

// oneNodeSwarm makes the engine the manager of a swarm, unless it is one, and returns a label that identifies its
// node.
func oneNodeSwarm(t *testing.T, p *environment, node string) (label string) {
	t.Helper()
	docker := func(words ...string) string {
		return strings.TrimSpace(p.mustEngine(append([]string{"docker"}, words...)...))
	}
	switch state := docker("info", "--format", "{{.Swarm.LocalNodeState}} {{.Swarm.ControlAvailable}}"); state {
	case "active true":
	case "inactive false":
		_, bridged := p.engine("docker", "network", "inspect", "docker_gwbridge")
		docker("swarm", "init", "--advertise-addr", "127.0.0.1")
		t.Cleanup(func() {
			p.mustEngine("docker", "swarm", "leave", "--force")
			if bridged != nil { // the swarm created it
				_, _ = p.engine("docker", "network", "rm", "docker_gwbridge")
			}
		})
	default:
		if os.Getenv("CI") != "" {
			t.Fatalf("the engine cannot manage a swarm: %s", state)
		}
		t.Skipf("the engine cannot manage a swarm: %s", state)
	}
	self := docker("info", "--format", "{{.Swarm.NodeID}}")
	label = "gfaas-test-" + preload.NewSecret()[:8]
	docker("node", "update", "--label-add", label+"="+node, self)
	t.Cleanup(func() { p.mustEngine("docker", "node", "update", "--label-rm", label, self) })
	return label
}

// TestSwarm deploys exported stacks and checks the slices and the nodes.
func TestSwarm(t *testing.T) {
	t.Parallel()
	p := newFleetEnvironment(t)
	label := oneNodeSwarm(t, p, "n")
	stack := "gfaas-test-" + preload.NewSecret()[:8]
	p.output("register", "plan.json", "--node", "n")
	t.Cleanup(func() {
		eventually(t, "the stack is removed", func() bool { // its network stays in use while a task ends
			_, err := p.engine("docker", "stack", "rm", stack)
			return err == nil
		})
		eventually(t, "the stack's containers and network are removed", func() bool {
			remaining := p.mustEngine("docker", "ps", "-aq", "--filter", "label=com.docker.stack.namespace="+stack) +
				p.mustEngine("docker", "network", "ls", "-q", "--filter", "label=com.docker.stack.namespace="+stack)
			return remaining == ""
		})
	})
	state := func(id string) string {
		return p.mustEngine("docker", "service", "ps", stack+"_"+id, "--no-trunc", "--format", "{{.DesiredState}} {{.CurrentState}} {{.Error}}")
	}

	// On an engine that does not declare its GPUs, tasks wait for a node that does.
	p.export("swarm", "--node-label", label, "--out-file", "stack.yaml")
	deploy := []string{"docker", "stack", "deploy", "-c", "stack.yaml", stack}
	p.mustEngine(deploy...)
	if text := p.mustEngine("docker", "info", "--format", "{{.GenericResources}}"); !strings.Contains(text, "gfaas-gpu0") {
		eventually(t, "saxpy-0 waits for resources", func() bool { return strings.Contains(state("saxpy-0"), "insufficient resources") })
	}

	p.export("swarm", "--node-label", label, "--generic-resources=false", "--out-file", "stack.yaml")
	p.mustEngine(deploy...)
	for id, limit := range map[string]float64{"saxpy-0": 0.6, "saxpy-1": 0.1} {
		compute(t, p.gatewayAddress(stack, id)+":8080")
		p.checkSlice(id, limit)
		p.checkContainerLimits(id)
	}
	// The plan's other node is not in this swarm.
	eventually(t, "saxpy-2 waits for its node", func() bool { return strings.Contains(state("saxpy-2"), "no suitable node") })
}

// gatewayAddress waits until a container of a stack runs and returns its address on this host.
func (p *environment) gatewayAddress(stack, id string) (address string) {
	p.t.Helper()
	eventually(p.t, id+" runs", func() bool {
		container := strings.TrimSpace(p.mustEngine("docker", "ps", "-q", "--no-trunc", "--filter", "label=com.docker.swarm.service.name="+stack+"_"+id))
		if container == "" {
			return false
		}
		text := p.mustEngine("docker", "network", "inspect", "docker_gwbridge", "--format", fmt.Sprintf(`{{with index .Containers %q}}{{.IPv4Address}}{{end}}`, container))
		address, _, _ = strings.Cut(strings.TrimSpace(text), "/")
		return address != ""
	})
	return address
}
