package gfaas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/rollout"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestUpNodeByNode starts a plan for two nodes with one gfaas up on each. No node knows the instances of the other one.
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

	// up --prune stops all instances on a node for which the plan has none. It rejects a node that is not in the plan,
	// because its name may be misspelled.
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

// fleetOf returns a plan of small instances, with one GPU per node. words lists each node, followed by the IDs of its
// instances: IDs contain a dash.
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

// ps returns the instances that gfaas ps lists.
func (p *environment) ps() (list []rollout.Entry) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.output("ps", "-o", "json")), &list); err != nil {
		p.t.Fatal(err)
	}
	return list
}

// ids returns the IDs of instances, separated by blanks.
func ids(list []rollout.Entry) string {
	var out []string
	for _, e := range list {
		out = append(out, e.ID)
	}
	return strings.Join(out, " ")
}

// newFleetEnvironment returns an environment with the programs that make has built and with the function saxpy, whose
// image contains the program of that example. plan.json is a plan for the nodes n and m.
func newFleetEnvironment(t *testing.T) *environment {
	if testing.Short() {
		t.Skip("gfaas register and gfaas-place export run in one goroutine, and make race checks goroutines")
	}
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

// export runs gfaas-place export with args, for plan.json.
func (p *environment) export(args ...string) {
	p.t.Helper()
	cmd := p.command()
	cmd.Path, cmd.Args = p.lookPath("gfaas-place"), append([]string{"gfaas-place", "export"}, args...)
	cmd.Args = append(cmd.Args, "plan.json", "--functions", "f.yaml", "--gpu", "sim")
	if text, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("run %v: %v\n%s", cmd.Args, err, text)
	}
}

// engine runs a command of another engine, such as docker compose, with the variables that gfaas register has written to
// .env. It returns the output.
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

// compute calls saxpy at an address until it answers, and checks the answer.
func compute(t *testing.T, address string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience} // ignores proxies of the environment
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

// client returns the first process of an instance in the token daemon's status, or the zero value if there is none.
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

// checkSlice waits until the instance has launched kernels, and fails the test unless its slice is that of the plan.
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

// composes maps the installed major versions of Compose to their commands.
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
		t.Skip("neither docker compose nor docker-compose is installed")
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
	swarming.RLock()
	t.Cleanup(swarming.RUnlock)
	project := "gfaas-test-" + strings.ToLower(preload.NewSecret()[:8])
	compose := func(words ...string) []string { return slices.Concat(program, []string{"-p", project}, words) }
	p.export("compose", "--node", "n", "--compose-version", version, "--out-file", "compose.yaml")
	if text, err := p.engine(compose("config")...); err == nil || !strings.Contains(text, "gfaas register") {
		t.Errorf("compose config without settings: got %v, want an error with \"gfaas register\": %s", err, text)
	}
	p.output("register", "plan.json", "--node", "n")
	t.Cleanup(func() { _, _ = p.engine(compose("down")...) })

	// If the folder of the library is missing, no container starts, and Docker does not create the folder.
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
	p.mustEngine(compose("restart", "saxpy-1")...)      // its running process does not register again
	for _, id := range []string{"saxpy-0", "saxpy-1"} { // wait here: on a busy host, they may need more time than --repair allows
		compute(t, strings.TrimSpace(p.mustEngine(compose("port", id, "8080")...)))
	}

	// gfaas doctor --repair adopts the instances that Compose has started.
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

// swarming guards the swarm of the engine. A test that needs the swarm holds the lock for writing, and may create and end
// the swarm. A test that calls containers at published ports holds it for reading, because these ports can be lost while
// a swarm begins or ends.
var swarming sync.RWMutex

// oneNodeSwarm makes the engine the manager of a swarm, unless it is one already, until the end of the test. It gives
// the engine's node a new label with the value node, and returns the name of the label.
func oneNodeSwarm(t *testing.T, p *environment, node string) (label string) {
	t.Helper()
	swarming.Lock()
	t.Cleanup(swarming.Unlock)
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
			if bridged != nil { // the network did not exist before, so the swarm has created it
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

// removesStack registers a cleanup that removes a stack and waits until its containers and network are removed.
func (p *environment) removesStack(stack string) {
	p.t.Cleanup(func() {
		eventually(p.t, "the stack is removed", func() bool { // fails while an ending task uses the network
			_, err := p.engine("docker", "stack", "rm", stack)
			return err == nil
		})
		eventually(p.t, "the stack's containers and network are removed", func() bool {
			remaining := p.mustEngine("docker", "ps", "-aq", "--filter", "label=com.docker.stack.namespace="+stack) +
				p.mustEngine("docker", "network", "ls", "-q", "--filter", "label=com.docker.stack.namespace="+stack)
			return remaining == ""
		})
	})
}

// TestSwarm deploys exported stacks, and checks the slices of their instances and which tasks wait for a node.
func TestSwarm(t *testing.T) {
	t.Parallel()
	p := newFleetEnvironment(t)
	label := oneNodeSwarm(t, p, "n")
	stack := "gfaas-test-" + preload.NewSecret()[:8]
	p.output("register", "plan.json", "--node", "n")
	p.removesStack(stack)
	state := func(id string) string {
		return p.mustEngine("docker", "service", "ps", stack+"_"+id, "--no-trunc", "--format", "{{.DesiredState}} {{.CurrentState}} {{.Error}}")
	}

	// Without generic resources in daemon.json, tasks wait for a node that has them.
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

// gatewayAddress waits until the container of an instance runs, and returns its address on docker_gwbridge, which this
// host can reach.
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

// TestSignedManifests starts a signed Compose file and a signed stack. There is no gfaas register, so the token daemon
// knows the slices only from the grants.
func TestSignedManifests(t *testing.T) {
	t.Parallel()
	p := newFleetEnvironment(t)
	label := oneNodeSwarm(t, p, "n")
	p.write("grant.pub", p.output("grant", "keygen", "grant.key"))
	daemon := p.command("--trust", "grant.pub", "--node", "n")
	daemon.Path, daemon.Args[0] = p.lookPath("gfaas-tokend"), "gfaas-tokend"
	var printed bytes.Buffer
	daemon.Stderr = &printed
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			defer func() { t.Logf("the token daemon: %s", printed.String()) }()
		}
		_ = daemon.Process.Signal(os.Interrupt)
		_ = daemon.Wait()
	})
	eventually(t, "the token daemon serves", func() bool {
		_, err := os.Stat(filepath.Join(p.getenv("GFAAS_RUN_DIR"), "granted", "ld.so.preload"))
		return err == nil
	})
	// The file has only the folders of this test. Unlike that of gfaas register, it has no secret.
	p.write(".env", fmt.Sprintf("GFAAS_RUN_DIR=%s\nGFAAS_LIB_DIR=%s\nGFAAS_SIM_DIR=%s\nGFAAS_USER=%d:%d\n",
		p.getenv("GFAAS_RUN_DIR"), p.getenv("GFAAS_LIB_DIR"), p.getenv("GFAAS_SIM_DIR"), os.Geteuid(), os.Getegid()))
	name := "gfaas-test-" + strings.ToLower(preload.NewSecret()[:8])

	var version string
	var program []string
	for version, program = range composes(t) {
		break
	}
	compose := func(words ...string) []string { return slices.Concat(program, []string{"-p", name}, words) }
	p.export("compose", "--node", "n", "--compose-version", version, "--sign", "grant.key", "--out-file", "compose.yaml")
	t.Cleanup(func() { _, _ = p.engine(compose("down")...) })
	p.mustEngine(compose("up", "-d")...)
	for id, limit := range map[string]float64{"saxpy-0": 0.6, "saxpy-1": 0.1} {
		compute(t, strings.TrimSpace(p.mustEngine(compose("port", id, "8080")...)))
		p.checkSlice(id, limit)
	}
	p.mustEngine(compose("restart", "saxpy-1")...) // the same grant allows another start
	compute(t, strings.TrimSpace(p.mustEngine(compose("port", "saxpy-1", "8080")...)))
	p.mustEngine(compose("down")...)

	p.export("swarm", "--node-label", label, "--generic-resources=false", "--sign", "grant.key", "--out-file", "stack.yaml")
	p.removesStack(name)
	p.mustEngine("docker", "stack", "deploy", "-c", "stack.yaml", name)
	for id, limit := range map[string]float64{"saxpy-0": 0.6, "saxpy-1": 0.1} {
		compute(t, p.gatewayAddress(name, id)+":8080")
		p.checkSlice(id, limit)
	}
}
