package gfaas

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// TestTeam follows docs/how-to/team-on-one-gpu.md. The victim is the user of the services, the stranger a member of the
// team. A program and a container of the member must run in slices of the same daemon.
func TestTeam(t *testing.T) {
	t.Parallel()
	newDockerEnvironment(t) // skips the test without an engine
	image := importProgram(t, built("victim", "saturate"), built("lib"))
	users := newTwoUsers(t)
	socket, local := strings.CutPrefix(engine(), "unix://")
	if !local {
		t.Skip("SKIPPED: the engine is on another machine")
	}
	docker, err := exec.LookPath("docker")
	if err != nil {
		t.Fatal(err)
	}
	text := users.must(users.runAs(0, []string{"DOCKER_HOST=" + engine()}, "sh", "-c", fmt.Sprintf(`set -e
service() { setpriv --reuid %[1]d --regid %[1]d --groups $(stat -L -c %%g %[2]s) "$@"; } # sudo -u gfaas
cd "$HOME"
setpriv --reuid %[1]d --regid %[1]d --clear-groups env GFAAS_CLIENT_UID=%[3]d gfaas-tokend >/dev/null 2>&1 & daemon=$!
trap 'touch end; kill $daemon' EXIT
while ! service gfaas-tokend status >/dev/null 2>&1; do kill -0 $daemon; sleep 0.1; done
service gfaas run -q --gpu sim --name alice -- sh -c 'echo >begun; while [ ! -e end ]; do sleep 0.1; done' & alice=$!
while [ ! -e begun ]; do kill -0 $alice; sleep 0.1; done
box() { service gfaas run -q --gpu sim --name bob --quota 0.3:0.3 --mem 1GiB -- %[4]s run --rm --user $1:$1 -e GFAAS_SIM_DIR=/dev/shm/sim -e GFAAS_SIM_NOTED=1 %[5]s "$2" "$3"; }
box %[3]d /function 1
service gfaas run -q --gpu sim --name other -- gfaas-tokend status -o csv
touch end
wait $alice
`, users.victimUID, socket, users.strangerUID, docker, image)))
	box, rest, _ := strings.Cut(text, "\n")
	var result struct{ Share, Launches float64 }
	if err := json.Unmarshal([]byte(box), &result); err != nil || result.Launches == 0 || result.Share > 0.45 {
		t.Errorf("container of the member with a quota of 0.3: got %v and %+v, want launches and a share of at most 0.45\n%s", err, result, text)
	}
	if !strings.Contains(rest, "alice,") || !strings.Contains(rest, "other,") {
		t.Errorf("slices of the daemon: got\n%swant alice and other", text)
	}
}
