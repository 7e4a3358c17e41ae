package gfaas

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/rollout"
)

// importImage creates an image of the place's function and its libraries by importing a root folder.
func importImage(t *testing.T, p *environment) (image string) {
	t.Helper()
	image = importProgram(t, p.getenv("FUNCTION"), p.getenv("GFAAS_LIB_DIR"))
	t.Cleanup(func() { down(p.env) }) // remove the containers before the image
	return image
}

// importProgram creates an image of a program with its libraries, and with the dependencies of the libraries in a
// folder that containers will mount.
func importProgram(t *testing.T, program, libraries string) (image string) {
	t.Helper()
	root := t.TempDir()
	script := `set -e
copy() { mkdir -p "$1$(dirname "$2")" && cp -L "$2" "$1$2"; }
for lib in $(ldd "$FUNCTION" "$LIBRARIES"/*.so | grep -o '/[^ )]*\.so[^ ):]*'); do case $lib in "$LIBRARIES"*) ;; *) copy "$1" "$lib" ;; esac; done
cp "$FUNCTION" "$1/function"
mkdir "$1/tmp" "$1/dev"
tar -C "$1" -c . | docker import --change 'ENV HOST=0.0.0.0' --change 'CMD ["/function"]' - "$2"`
	image = "gfaas-test-" + preload.NewSecret()[:12]
	cmd := exec.Command("sh", "-c", script, "sh", root, image)
	cmd.Env = append(os.Environ(), "FUNCTION="+program, "LIBRARIES="+libraries, "LD_LIBRARY_PATH="+filepath.Join(libraries, "sim"))
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("import an image: %v\n%s", err, text)
	}
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", image).Run() })
	return image
}

// newDockerEnvironment returns a place on a host with a Docker engine. With -short, which make race passes, it skips the
// test, because TestServeBothRuntimes and the tests of adapter/docker run the same code.
func newDockerEnvironment(t *testing.T) *environment {
	t.Helper()
	if testing.Short() {
		t.Skip("it runs containers")
	}
	return dockerEnvironment(t)
}

// dockerEnvironment returns a place on a host with a Docker engine. Without an engine, it fails in CI and skips elsewhere.
func dockerEnvironment(t *testing.T) *environment {
	t.Helper()
	if err := exec.Command("docker", "version").Run(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no Docker engine answers")
		}
		t.Skip("no Docker engine answers")
	}
	p := newEnvironment(t)
	p.env = append(p.env, "DOCKER_HOST="+engine())
	return p
}

// TestUpOnDocker starts a plan with containers, invokes them, and stops them without remains.
func TestUpOnDocker(t *testing.T) {
	t.Parallel()
	p := newDockerEnvironment(t)
	image := importImage(t, p)
	p.write("f.yaml", "{name: boxed, image: "+image+"}\n---\n{name: failing, image: "+image+", env: {FAIL: \"3\"}}\n")
	p.output("apply", "-f", "f.yaml")
	p.write("plan.json", planOf("boxed-0", "boxed-1"))
	p.output("up", "plan.json")
	var list []rollout.Entry
	if err := json.Unmarshal([]byte(p.output("ps", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Runtime != "docker" || len(list[0].Container) != 64 || list[0].PID != 0 || list[0].State != "ready" {
		t.Errorf("gfaas ps: got %+v, want two ready instances with the runtime docker, a container ID and no PID", list)
	}
	for i := range 20 {
		cmd := p.command("invoke", "boxed")
		cmd.Stdin = strings.NewReader(fmt.Sprintf("body %d", i))
		if text, err := cmd.Output(); err != nil || string(text) != fmt.Sprintf("body %d", i) {
			t.Fatalf("answer %d: got %q, %v; want the body %q", i, text, err, fmt.Sprintf("body %d", i))
		}
	}
	cmd := p.command("invoke", "boxed", "-H", "X-Print: 1")
	cmd.Stdin = strings.NewReader("printed in a container\n")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gfaas invoke boxed: %v\n%s", err, text)
	}
	for end := time.Now().Add(time.Minute); !strings.HasSuffix(p.output("logs", "boxed"), " | printed in a container\n"); {
		if time.Now().After(end) {
			t.Fatalf("gfaas logs boxed: got %q, want a last line with \"printed in a container\"", p.output("logs", "boxed"))
		}
	}
	p.write("half.json", planOf("boxed-2", "failing-0"))
	text, err := p.command("up", "half.json").CombinedOutput()
	if exitStatus(err) != 1 || !strings.Contains(string(text), "instance failing-0: ended before it was ready: exited with status 3") {
		t.Errorf("gfaas up half.json: got %v, want exit status 1 and the failed start of failing-0\n%s", err, text)
	}
	if n := containers(t, image); n != 2 {
		t.Errorf("containers after a failed up: got %d, want the 2 from before", n)
	}
	removeHandle(t, p, "boxed-1")
	p.output("down")
	p.checkNothingRemains()
	if n := containers(t, image); n != 0 {
		t.Errorf("containers after down: got %d, want 0", n)
	}

	// Without the state file and registrations, labels identify the containers.
	p.output("up", "plan.json")
	for _, name := range []string{"state.db", "run/instances/boxed-0.json", "run/instances/boxed-1.json"} {
		if err := os.Remove(filepath.Join(p.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if text := p.output("ps", "-o", "csv"); strings.Count(text, ",lost,") != 2 || !strings.Contains(text, "boxed-1,boxed,docker,") {
		t.Errorf("gfaas ps without a state file: got\n%swant two lost instances, boxed-1 among them", text)
	}
	p.output("down")
	p.checkNothingRemains()
	if n := containers(t, image); n != 0 {
		t.Errorf("containers after a down without a state file: got %d, want 0", n)
	}
}

// containers returns the number of an image's containers, running or not.
func containers(t *testing.T, image string) int {
	t.Helper()
	text, err := exec.Command("docker", "ps", "-aq", "--filter", "ancestor="+image).Output()
	if err != nil {
		t.Fatal(err)
	}
	return len(strings.Fields(string(text)))
}

// planOf returns a plan of small instances on one GPU. IDs have the form FUNCTION-NUMBER.
func planOf(ids ...string) string {
	var instances []string
	for i, id := range ids {
		name, _, _ := strings.Cut(id, "-")
		instances = append(instances, fmt.Sprintf(`{"id":%q,"function":%q,"sm_pct":10,"quota_request":0.1,"quota_limit":0.1,`+
			`"batch":1,"rps":1,"mem_mib":0,"x":%v,"y":0}`, id, name, float64(i)/10))
	}
	return `{"version":1,"algorithm":"fast","model":"rect","gpus_used":1,"bound":1,"bound_method":"area","demand":[],"unplaced":[],` +
		`"gpus":[{"node":"n","index":0,"mem_mib":0,"instances":[` + strings.Join(instances, ",") + `]}]}`
}
