package gfaas

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// Two users of this machine that nobody is.
const (
	victimUID   = 40401
	strangerUID = 40402
)

// town is a place where two users live: one who uses gfaas, and a stranger.
type town struct {
	t    *testing.T
	dir  string // of root, to be read by both
	home string // of the victim, closed to others
	open string // where both may make files, like /tmp
	env  []string
}

// newTown needs what make has built, and root, who alone can be two others.
func newTown(t *testing.T) *town {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can be two users, so what a second one could do is not tested")
	}
	dir, err := os.MkdirTemp("", "gfaas-town-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	town := &town{t: t, dir: dir, home: filepath.Join(dir, "home"), open: filepath.Join(dir, "open")}
	script := `set -e
chmod 755 "$1"
cp -r "$2/lib" "$1/lib"
mkdir "$1/bin" "$1/home" "$1/open"
cp "$2/bin/gfaas" "$2/bin/gfaas-tokend" "$2/victim/saturate" "$3" "$1/bin"
chmod -R go+rX "$1/lib" "$1/bin"
chmod 700 "$1/home"; chown "$4:$4" "$1/home"
chmod 1777 "$1/open"`
	made, err := filepath.Abs("../../../build")
	if err != nil {
		t.Fatal(err)
	}
	function := build(t).function
	if text, err := exec.Command("sh", "-c", script, "sh", dir, made, function, fmt.Sprint(victimUID)).CombinedOutput(); err != nil {
		t.Fatalf("%v, run make first: %s", err, text)
	}
	town.env = []string{
		"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "HOME=" + town.home, "TMPDIR=" + town.home, "XDG_CONFIG_HOME=" + town.home,
		"GFAAS_LIB_DIR=" + filepath.Join(dir, "lib"), "GFAAS_RUN_DIR=" + filepath.Join(town.home, "run"), "GFAAS_STATE=" + filepath.Join(town.home, "state.db"),
		"DOCKER_HOST=unix:///none.sock",
	}
	town.write("f.yaml", `{name: f, command: ["`+filepath.Join(dir, "bin", filepath.Base(function))+`"]}`)
	town.write("plan.json", planOf("f-0"))
	town.write("precious", "precious")
	t.Cleanup(func() {
		_, _ = town.gfaas(nil, "down")
		for _, name := range squatted {
			_ = os.RemoveAll(name)
			_ = os.RemoveAll(name + ".link")
		}
	})
	for _, name := range squatted {
		_ = os.RemoveAll(name)
	}
	town.must(town.gfaas(nil, "apply", "-f", "f.yaml"))
	return town
}

// squatted are the names in a folder of all that are the victim's by custom.
var squatted = []string{fmt.Sprintf("/dev/shm/gfaas-%d", victimUID), fmt.Sprintf("/dev/shm/gfaas-sim-%d", victimUID)}

func (town *town) write(name, text string) {
	town.t.Helper()
	path := filepath.Join(town.home, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		town.t.Fatal(err)
	}
	if err := os.Chown(path, victimUID, victimUID); err != nil {
		town.t.Fatal(err)
	}
}

// as runs a command as one of the two.
func (town *town) as(uid uint32, extra []string, name string, args ...string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		path = filepath.Join(town.dir, "bin", name)
	}
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Dir = append(town.env[:len(town.env):len(town.env)], extra...), town.open
	if uid == victimUID {
		cmd.Dir = town.home
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Setpgid: true}
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// gfaas runs a command as the victim.
func (town *town) gfaas(extra []string, args ...string) (string, error) {
	return town.as(victimUID, extra, filepath.Join(town.dir, "bin", "gfaas"), args...)
}

// stranger runs a shell script as the other.
func (town *town) stranger(script string, args ...string) (string, error) {
	return town.as(strangerUID, nil, "sh", append([]string{"-c", "set -e; umask 0; " + script, "sh"}, args...)...)
}

func (town *town) must(text string, err error) string {
	town.t.Helper()
	if err != nil {
		town.t.Fatalf("%v: %s", err, text)
	}
	return text
}

// unharmed fails the test if what is precious to the victim is not as it was, or
// if there is something of the victim's in the stranger's folders.
func (town *town) unharmed(folders ...string) {
	town.t.Helper()
	if text, err := os.ReadFile(filepath.Join(town.home, "precious")); err != nil || !bytes.Equal(text, []byte("precious")) {
		town.t.Errorf("the precious file is %q, %v", text, err)
	}
	for _, folder := range folders {
		_ = filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := os.Lstat(path)
			if err == nil && info.Sys().(*syscall.Stat_t).Uid == victimUID {
				town.t.Errorf("%s is the victim's", path)
			}
			return err
		})
	}
}

// Whatever a second user has put where gfaas makes folders in places open to all,
// nothing of the first one's is touched through it and nothing of theirs is used:
// commands work without, or refuse with the folder's name.
func TestStrangerSquats(t *testing.T) {
	for name, c := range map[string]struct {
		squat    string // $1 is the name, $2 the victim's home
		path     string // the name, in the folder open to all unless it is absolute
		variable string // that names the path
		refused  string // what the refusal says; empty: it works
	}{
		"claims of ports, a folder":   {squat: `mkdir "$1"; ln -s "$2/precious" "$1/ports.lock"`, path: squatted[0]},
		"claims of ports, a link":     {squat: `ln -s "$2" "$1"`, path: squatted[0]},
		"the simulated GPU, a folder": {squat: `mkdir "$1"; ln -s "$2/precious" "$1/keep.f-0"; ln -s "$2/precious" "$1/device-0"`, path: squatted[1], refused: "gfaas-sim-40401"},
		"the simulated GPU, a link":   {squat: `ln -s "$2" "$1"`, path: squatted[1], refused: "gfaas-sim-40401"},
		"the run directory, a folder": {squat: `mkdir "$1"; ln -s "$2/precious" "$1/token.lock"`, path: "run", variable: "GFAAS_RUN_DIR", refused: "belongs to user 40402"},
		"the run directory, a link":   {squat: `ln -s "$2" "$1"`, path: "run", variable: "GFAAS_RUN_DIR", refused: "symbolic link"},
		"the logs, a folder":          {squat: `mkdir "$1"; mkdir "$1/f-0"; ln -s "$2/precious" "$1/f-0/current"`, path: "logs", refused: "belongs to user 40402"},
		"the logs, a link":            {squat: `ln -s "$2" "$1"`, path: "logs", refused: "symbolic link"},
	} {
		t.Run(name, func(t *testing.T) {
			town := newTown(t)
			path, folder := c.path, c.path
			extra := []string{}
			switch {
			case c.path == "logs": // beside the state file
				extra = append(extra, "GFAAS_STATE="+filepath.Join(town.open, "state.db"))
				town.must(town.gfaas(extra, "apply", "-f", "f.yaml"))
				folder = town.logs(extra)
				path = folder
			case !filepath.IsAbs(c.path):
				path = filepath.Join(town.open, c.path)
				folder = path
				extra = append(extra, c.variable+"="+path)
			}
			town.must(town.stranger(c.squat, path, town.home))
			args := []string{"up", "plan.json"}
			if path == squatted[1] { // the function has no use for a GPU
				args = []string{"run", "--gpu", "sim", "--", filepath.Join(town.dir, "bin", "saturate"), "1"}
			}
			text, err := town.gfaas(extra, args...)
			switch code := exitStatus(err); {
			case c.refused == "" && code != 0:
				t.Errorf("up: status %d\n%s", code, text)
			case c.refused != "" && (code == 0 || !strings.Contains(text, c.refused) || strings.Contains(text, "goroutine")):
				t.Errorf("gfaas: status %d, want a refusal that says %q\n%s", code, c.refused, text)
			case c.refused == "":
				if text := town.must(town.gfaas(extra, "invoke", "f")); text != "" {
					t.Errorf("the answer is %q", text)
				}
			}
			text, err = town.gfaas(extra, "down")
			if code := exitStatus(err); c.refused == "" && code != 0 || strings.Contains(text, "goroutine") {
				t.Errorf("down: status %d\n%s", code, text)
			}
			if info, err := os.Lstat(folder); err == nil && info.IsDir() {
				town.unharmed(folder)
			} else {
				town.unharmed()
			}
		})
	}
}

// logs is the folder of the logs, which an instance is started to learn of.
func (town *town) logs(extra []string) string {
	town.t.Helper()
	town.must(town.gfaas(extra, "up", "plan.json"))
	found, err := filepath.Glob(filepath.Join(town.open, "logs-*"))
	if err != nil || len(found) != 1 {
		town.t.Fatalf("the logs are %v, %v", found, err)
	}
	town.must(town.gfaas(extra, "down"))
	return found[0]
}

// A second user comes to nothing of an instance: neither its sockets nor its log,
// its secret or its processes.
func TestStrangerAtTheDoor(t *testing.T) {
	town := newTown(t)
	// Even where the way to them is open.
	if err := os.Chmod(town.home, 0o755); err != nil {
		t.Fatal(err)
	}
	town.must(town.gfaas(nil, "up", "plan.json"))
	pid := strings.Split(town.must(town.gfaas(nil, "ps", "-o", "csv")), ",")[12+4]
	for what, script := range map[string]string{
		"the token daemon's socket":   `test -w "$1/run/token.sock"`,
		"sockets of instances":        `ls "$1/run/client"`,
		"the state file":              `cat "$1/state.db"`,
		"logs":                        `ls "$1"/logs-*`,
		"the device's memory":         `ls "$3"`,
		"the instance's environment":  `cat "/proc/$2/environ"`,
		"the instance, to end it":     `kill -9 "$2"`,
		"its records of the daemon's": `ls "$1/run/instances"`,
	} {
		if text, err := town.stranger(script, town.home, pid, squatted[1]); err == nil {
			t.Errorf("a stranger comes to %s: %s", what, text)
		}
	}
	if text := town.must(town.gfaas(nil, "ps", "-o", "csv")); !strings.Contains(text, ",ready,") {
		t.Errorf("it does not run any more:\n%s", text)
	}
	town.secretIsKept("f-0")
}

// secretWord is what looks like a secret (preload.NewSecret).
var secretWord = regexp.MustCompile(`[0-9a-zA-Z_-]{16,}`)

// secretIsKept looks for an instance's secret where everybody may: on command lines,
// and in logs, which are handed around.
func (town *town) secretIsKept(id string) {
	town.t.Helper()
	text, err := os.ReadFile(filepath.Join(town.home, "run", "instances", id+".json"))
	if err != nil {
		town.t.Fatal(err)
	}
	var record struct {
		Hash string `json:"secret_sha256"`
	}
	if err := json.Unmarshal(text, &record); err != nil || len(record.Hash) != 2*sha256.Size {
		town.t.Fatalf("the record of %s: %v\n%s", id, err, text)
	}
	var places []string
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", filepath.Join(town.home, "run", "*.log*"), filepath.Join(town.home, "logs-*", "*", "*"), filepath.Join(town.home, "state.db")} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			town.t.Errorf("%s: %v, %v", pattern, found, err)
		}
		places = append(places, found...)
	}
	for _, place := range places {
		text, _ := os.ReadFile(place) // of a process that has ended there is none
		for _, word := range secretWord.FindAll(text, -1) {
			if fmt.Sprintf("%x", sha256.Sum256(word)) == record.Hash {
				town.t.Errorf("the secret is in %s", place)
			}
		}
	}
}

// A state file that a second user has made is not believed: what it says is run.
func TestStrangerMakesTheState(t *testing.T) {
	town := newTown(t)
	state := filepath.Join(town.open, "state.db")
	for what, squat := range map[string]string{
		"a file": `cp "$2" "$1"; chmod 666 "$1"`, "a link": `ln -s "$3/precious" "$1"`, "a pipe": `mkfifo -m 666 "$1"`,
	} {
		whole := filepath.Join(town.dir, "theirs.db")
		text, err := os.ReadFile(filepath.Join(town.home, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(whole, text, 0o644); err != nil {
			t.Fatal(err)
		}
		town.must(town.stranger(squat, state, whole, town.home))
		said, err := town.gfaas([]string{"GFAAS_STATE=" + state}, "up", "plan.json")
		if code := exitStatus(err); code == 0 || !strings.Contains(said, state) || strings.Contains(said, "goroutine") {
			t.Errorf("%s: status %d, want a refusal\n%s", what, code, said)
			town.must(town.gfaas([]string{"GFAAS_STATE=" + state}, "down"))
		}
		town.unharmed()
		if err := os.Remove(state); err != nil {
			t.Fatal(err)
		}
	}
}

// What is started in a run directory is its owner's: nobody else stops, scales,
// removes or lists it, root as little as a stranger, though the paths are known.
func TestOwnersAlone(t *testing.T) {
	town := newTown(t)
	if err := os.Chmod(town.home, 0o755); err != nil {
		t.Fatal(err)
	}
	town.must(town.gfaas(nil, "up", "plan.json"))
	serve := exec.Command(filepath.Join(town.dir, "bin", "gfaas"), "serve", "--gpu", "sim", "--listen", "")
	serve.Env, serve.Dir = town.env, town.home
	serve.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: victimUID, Gid: victimUID}}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serve.Process.Signal(syscall.SIGTERM); _ = serve.Wait() }()
	eventually(t, "the gateway answers its owner", func() bool {
		_, err := town.gfaas(nil, "scale", "f=1")
		return err == nil
	})
	program := filepath.Join(town.dir, "bin", "gfaas")
	for _, uid := range []uint32{strangerUID, 0} {
		for _, args := range [][]string{{"down"}, {"down", "f-0"}, {"rm", "f"}, {"scale", "f=0"}, {"ps"}, {"apply", "-f", filepath.Join(town.home, "f.yaml")}} {
			text, err := town.as(uid, nil, program, args...)
			if code := exitStatus(err); code == 0 || strings.Contains(text, "goroutine") {
				t.Errorf("user %d, gfaas %v: status %d\n%s", uid, args, code, text)
			}
			// Nor with a state of their own.
			own := []string{"GFAAS_STATE=" + filepath.Join(town.open, fmt.Sprintf("state-%d.db", uid))}
			if text, err := town.as(uid, own, program, args...); exitStatus(err) == 0 && args[0] != "rm" && args[0] != "apply" {
				t.Errorf("user %d with a state of their own, gfaas %v: %s", uid, args, text)
			}
		}
	}
	text := town.must(town.gfaas(nil, "ps", "-o", "csv"))
	if !strings.Contains(text, "f-0,f,") || !strings.Contains(text, ",ready,") {
		t.Errorf("it does not run any more:\n%s", text)
	}
	if text := town.must(town.gfaas(nil, "ls", "-o", "csv")); !strings.Contains(text, "\nf,") {
		t.Errorf("the function is gone:\n%s", text)
	}
	town.must(town.gfaas(nil, "scale", "f=0"))
	town.must(town.gfaas(nil, "down"))
}

// TestStrangerAtTheGateway: over loopback every user can call functions, but without
// --auth only the gateway's user and root can manage it.
func TestStrangerAtTheGateway(t *testing.T) {
	town := newTown(t)
	town.write("password", "u:p")
	const password = "Authorization: Basic dTpw\r\n"
	type row struct {
		uid      uint32
		ui       bool // at --ui-listen
		request  string
		header   string
		statuses [3]int // without --auth, with a password, and with --auth none
	}
	rows := []row{
		{victimUID, false, "GET /system/functions", "", [3]int{200, 401, 200}},
		{0, false, "GET /system/functions", "", [3]int{200, 401, 200}},
		{strangerUID, false, "GET /system/functions", "", [3]int{401, 401, 200}},
		{strangerUID, true, "GET /system/functions", "", [3]int{401, 401, 200}},
		{strangerUID, false, "GET /system/functions", password, [3]int{401, 200, 200}},
		{victimUID, false, "GET /system/functions", password + "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n", [3]int{403, 403, 403}},
		{victimUID, false, "GET /system/functions", password + "Host: evil.example\r\n", [3]int{403, 403, 403}},
		{victimUID, false, "GET /system/functions", password + "Host: named.example\r\n", [3]int{200, 200, 200}},
		{victimUID, true, "GET /system/functions", password + "Origin: http://HOST\r\nSec-Fetch-Site: same-origin\r\n", [3]int{200, 200, 200}},
		{strangerUID, false, "GET /system/logs?name=f", "", [3]int{401, 401, 200}},
		{strangerUID, false, "GET /ui/", "", [3]int{401, 401, 200}},
		{strangerUID, false, "GET /", "", [3]int{401, 401, 302}},
		{strangerUID, false, "GET /system/async/x", "", [3]int{401, 401, 404}},
		{strangerUID, false, "POST /system/scale-function/f", "", [3]int{401, 401, 400}},
		{strangerUID, false, "POST /system/functions", "", [3]int{401, 401, 400}},
		{strangerUID, false, "DELETE /system/functions", "", [3]int{401, 401, 400}},
		{strangerUID, false, "POST /function/f", "", [3]int{200, 200, 200}},
		{strangerUID, false, "GET /v1/models", "", [3]int{200, 200, 200}},
		{strangerUID, false, "GET /metrics", "", [3]int{200, 401, 200}},
		{strangerUID, false, "GET /healthz", "", [3]int{200, 200, 200}},
		{strangerUID, false, "GET /readyz", "", [3]int{200, 200, 200}},
		{strangerUID, true, "POST /function/f", "", [3]int{404, 404, 404}},
	}
	for i, args := range [][]string{nil, {"--auth", filepath.Join(town.home, "password")}, {"--auth", "none"}} {
		t.Run(strings.Join(append([]string{"serve"}, args...), " "), func(t *testing.T) {
			town.t = t
			listen, ui := town.serve(append(args, "--allowed-host", "named.example")...)
			for _, r := range rows {
				address := listen
				if r.ui {
					address = ui
				}
				head := fmt.Sprintf("%s HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n%s", r.request, strings.ReplaceAll(r.header, "HOST", address))
				if !strings.Contains(head, "\nHost: ") {
					head += "Host: " + address + "\r\n"
				}
				host, port, _ := strings.Cut(address, ":")
				text, err := town.as(r.uid, nil, "bash", "-c", `exec 3<>"/dev/tcp/$0/$1"; printf %s "$2" >&3; cat <&3`, host, port, head+"\r\n")
				if want := fmt.Sprintf("HTTP/1.1 %d ", r.statuses[i]); err != nil || !strings.HasPrefix(text, want) {
					t.Errorf("user %d, %s %q at %s: got %.300q, %v, want %q", r.uid, r.request, r.header, address, text, err, want)
				} else if r.statuses[i] == 401 && i == 0 && !strings.Contains(text, "--auth") {
					t.Errorf("user %d, %s: %q does not name --auth", r.uid, r.request, text)
				}
			}
			if text := town.must(town.gfaas(nil, "ls", "-o", "csv")); strings.Count(text, "\n") != 2 || !strings.Contains(text, "\nf,") {
				t.Errorf("the functions are not what they were:\n%s", text)
			}
		})
	}
}

// serve runs a gateway of the victim's until the test ends, and returns the addresses
// of --listen and --ui-listen.
func (town *town) serve(args ...string) (listen, ui string) {
	town.t.Helper()
	log := filepath.Join(town.home, "serve.log")
	file, err := os.Create(log)
	if err != nil {
		town.t.Fatal(err)
	}
	defer file.Close()
	serve := exec.Command(filepath.Join(town.dir, "bin", "gfaas"), append([]string{"serve", "--gpu", "sim", "--listen", "127.0.0.1:0", "--ui-listen", "127.0.0.1:0"}, args...)...)
	serve.Env, serve.Dir, serve.Stderr = town.env, town.home, file
	serve.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: victimUID, Gid: victimUID}}
	if err := serve.Start(); err != nil {
		town.t.Fatal(err)
	}
	town.t.Cleanup(func() { _ = serve.Process.Signal(syscall.SIGTERM); _ = serve.Wait() })
	serving := regexp.MustCompile(`"listen":"([^"]+)","ui_listen":"([^"]+)"`)
	eventually(town.t, "the gateway serves", func() bool {
		text, err := os.ReadFile(log)
		if found := serving.FindSubmatch(text); found != nil {
			listen, ui = string(found[1]), string(found[2])
		}
		return err == nil && listen != ""
	})
	eventually(town.t, "the gateway answers its owner", func() bool {
		_, err := town.gfaas(nil, "scale", "f=0")
		return err == nil
	})
	return listen, ui
}
