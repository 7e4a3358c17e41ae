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
	"sync/atomic"
	"syscall"
	"testing"
)

// twoUsersCount counts the instances of twoUsers. Each has its own user IDs, so that tests can run in parallel.
var twoUsersCount atomic.Uint32

// twoUsers is an environment with two users: the victim (the owner of the instances) and a stranger. No other process on
// this host has their user IDs.
type twoUsers struct {
	t                      *testing.T
	victimUID, strangerUID uint32
	dir                    string // owned by root, readable by both
	home                   string // owned by the victim, closed to others
	open                   string // writable by both, like /tmp
	env                    []string
}

// newTwoUsers returns two users with the programs that make has built. It needs root to switch between the users.
func newTwoUsers(t *testing.T) *twoUsers {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can be two users, so what a second one could do is not tested")
	}
	dir, err := os.MkdirTemp("", "gfaas-users-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	first := 40399 + 2*twoUsersCount.Add(1)
	users := &twoUsers{t: t, victimUID: first, strangerUID: first + 1, dir: dir, home: filepath.Join(dir, "home"), open: filepath.Join(dir, "open")}
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
	if text, err := exec.Command("sh", "-c", script, "sh", dir, made, function, fmt.Sprint(users.victimUID)).CombinedOutput(); err != nil {
		t.Fatalf("prepare two users: %v; run make first: %s", err, text)
	}
	users.env = []string{
		"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "HOME=" + users.home, "TMPDIR=" + users.home, "XDG_CONFIG_HOME=" + users.home,
		"GFAAS_LIB_DIR=" + filepath.Join(dir, "lib"), "GFAAS_RUN_DIR=" + filepath.Join(users.home, "run"), "GFAAS_STATE=" + filepath.Join(users.home, "state.db"),
		"DOCKER_HOST=unix:///none.sock",
	}
	users.write("f.yaml", `{name: f, command: ["`+filepath.Join(dir, "bin", filepath.Base(function))+`"]}`)
	users.write("plan.json", planOf("f-0"))
	users.write("precious", "precious")
	t.Cleanup(func() {
		_, _ = users.gfaas(nil, "down")
		for _, name := range []string{users.ports(), users.simulated()} {
			_ = os.RemoveAll(name)
			_ = os.RemoveAll(name + ".link")
		}
	})
	for _, name := range []string{users.ports(), users.simulated()} {
		_ = os.RemoveAll(name)
	}
	users.must(users.gfaas(nil, "apply", "-f", "f.yaml"))
	return users
}

// ports returns the victim's folder of port claims, whose parent is writable by all.
func (users *twoUsers) ports() string { return fmt.Sprintf("/dev/shm/gfaas-%d", users.victimUID) }

// simulated returns the folder of the victim's simulated GPU, whose parent is writable by all.
func (users *twoUsers) simulated() string {
	return fmt.Sprintf("/dev/shm/gfaas-sim-%d", users.victimUID)
}

func (users *twoUsers) write(name, text string) {
	users.t.Helper()
	path := filepath.Join(users.home, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		users.t.Fatal(err)
	}
	if err := os.Chown(path, int(users.victimUID), int(users.victimUID)); err != nil {
		users.t.Fatal(err)
	}
}

// runAs runs a command as the victim, the stranger or root.
func (users *twoUsers) runAs(uid uint32, extra []string, name string, args ...string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		path = filepath.Join(users.dir, "bin", name)
	}
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Dir = append(users.env[:len(users.env):len(users.env)], extra...), users.open
	if uid == users.victimUID {
		cmd.Dir = users.home
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Setpgid: true}
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// gfaas runs a command as the victim.
func (users *twoUsers) gfaas(extra []string, args ...string) (string, error) {
	return users.runAs(users.victimUID, extra, filepath.Join(users.dir, "bin", "gfaas"), args...)
}

// stranger runs a shell script as the stranger.
func (users *twoUsers) stranger(script string, args ...string) (string, error) {
	return users.runAs(users.strangerUID, nil, "sh", append([]string{"-c", "set -e; umask 0; " + script, "sh"}, args...)...)
}

func (users *twoUsers) must(text string, err error) string {
	users.t.Helper()
	if err != nil {
		users.t.Fatalf("command: %v: %s", err, text)
	}
	return text
}

// checkUnharmed fails the test if the victim's precious file has changed, or if the folders of the stranger contain a file of
// the victim.
func (users *twoUsers) checkUnharmed(folders ...string) {
	users.t.Helper()
	if text, err := os.ReadFile(filepath.Join(users.home, "precious")); err != nil || !bytes.Equal(text, []byte("precious")) {
		users.t.Errorf("content of the victim's file: got %q, %v; want precious", text, err)
	}
	for _, folder := range folders {
		_ = filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := os.Lstat(path)
			if err == nil && info.Sys().(*syscall.Stat_t).Uid == users.victimUID {
				users.t.Errorf("owner of %s in the stranger's folder: got the victim, want another user", path)
			}
			return err
		})
	}
}

// TestStrangerSquats lets a second user create files where gfaas makes folders in places writable by all. gfaas must
// not touch the first user's files through them or use the second user's files. Commands work without the folder, or
// fail with its name.
func TestStrangerSquats(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		squat    string // shell script; $1 is the path, $2 the victim's home
		path     string // "ports" or "simulated" for these folders, or a name in twoUsers.open
		variable string // environment variable that names the path
		refused  string // part of the error message; empty: the command succeeds
	}{
		"claims of ports, a folder":   {squat: `mkdir "$1"; ln -s "$2/precious" "$1/ports.lock"`, path: "ports"},
		"claims of ports, a link":     {squat: `ln -s "$2" "$1"`, path: "ports"},
		"the simulated GPU, a folder": {squat: `mkdir "$1"; ln -s "$2/precious" "$1/keep.f-0"; ln -s "$2/precious" "$1/device-0"`, path: "simulated", refused: "gfaas-sim-VICTIM"},
		"the simulated GPU, a link":   {squat: `ln -s "$2" "$1"`, path: "simulated", refused: "gfaas-sim-VICTIM"},
		"the run directory, a folder": {squat: `mkdir "$1"; ln -s "$2/precious" "$1/token.lock"`, path: "run", variable: "GFAAS_RUN_DIR", refused: "is owned by uid STRANGER"},
		"the run directory, a link":   {squat: `ln -s "$2" "$1"`, path: "run", variable: "GFAAS_RUN_DIR", refused: "symbolic link"},
		"the logs, a folder":          {squat: `mkdir "$1"; mkdir "$1/f-0"; ln -s "$2/precious" "$1/f-0/current"`, path: "logs", refused: "is owned by uid STRANGER"},
		"the logs, a link":            {squat: `ln -s "$2" "$1"`, path: "logs", refused: "symbolic link"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			users := newTwoUsers(t)
			path, folder := "", ""
			refused := strings.NewReplacer("VICTIM", fmt.Sprint(users.victimUID), "STRANGER", fmt.Sprint(users.strangerUID)).Replace(c.refused)
			extra := []string{}
			switch c.path {
			case "ports":
				path, folder = users.ports(), users.ports()
			case "simulated":
				path, folder = users.simulated(), users.simulated()
			case "logs": // next to the state file
				extra = append(extra, "GFAAS_STATE="+filepath.Join(users.open, "state.db"))
				users.must(users.gfaas(extra, "apply", "-f", "f.yaml"))
				folder = users.logs(extra)
				path = folder
			default:
				path = filepath.Join(users.open, c.path)
				folder = path
				extra = append(extra, c.variable+"="+path)
			}
			users.must(users.stranger(c.squat, path, users.home))
			args := []string{"up", "plan.json"}
			if c.path == "simulated" { // the function does not use a GPU
				args = []string{"run", "--gpu", "sim", "--", filepath.Join(users.dir, "bin", "saturate"), "1"}
			}
			text, err := users.gfaas(extra, args...)
			switch code := exitStatus(err); {
			case refused == "" && code != 0:
				t.Errorf("gfaas %v: got exit status %d, want 0\n%s", args, code, text)
			case refused != "" && (code == 0 || !strings.Contains(text, refused) || strings.Contains(text, "goroutine")):
				t.Errorf("gfaas %v: got exit status %d, want a refusal with %q\n%s", args, code, refused, text)
			case refused == "":
				if text := users.must(users.gfaas(extra, "invoke", "f")); text != "" {
					t.Errorf("gfaas invoke f: got %q, want no output", text)
				}
			}
			text, err = users.gfaas(extra, "down")
			if code := exitStatus(err); refused == "" && code != 0 || strings.Contains(text, "goroutine") {
				t.Errorf("gfaas down: got exit status %d, want 0\n%s", code, text)
			}
			if info, err := os.Lstat(folder); err == nil && info.IsDir() {
				users.checkUnharmed(folder)
			} else {
				users.checkUnharmed()
			}
		})
	}
}

// logs returns the folder of the logs. It starts an instance to create the folder.
func (users *twoUsers) logs(extra []string) string {
	users.t.Helper()
	users.must(users.gfaas(extra, "up", "plan.json"))
	found, err := filepath.Glob(filepath.Join(users.open, "logs-*"))
	if err != nil || len(found) != 1 {
		users.t.Fatalf("folders of logs: got %v, %v; want one", found, err)
	}
	users.must(users.gfaas(extra, "down"))
	return found[0]
}

// TestStrangerHasNoAccess checks that a second user has no access to an instance's sockets, log, secret or processes.
func TestStrangerHasNoAccess(t *testing.T) {
	t.Parallel()
	users := newTwoUsers(t)
	// Open the path to them.
	if err := os.Chmod(users.home, 0o755); err != nil {
		t.Fatal(err)
	}
	users.must(users.gfaas(nil, "up", "plan.json"))
	pid := strings.Split(users.must(users.gfaas(nil, "ps", "-o", "csv")), ",")[12+4]
	for description, script := range map[string]string{
		"the token daemon's socket":   `test -w "$1/run/token.sock"`,
		"sockets of instances":        `ls "$1/run/client"`,
		"the state file":              `cat "$1/state.db"`,
		"logs":                        `ls "$1"/logs-*`,
		"the device's memory":         `ls "$3"`,
		"the instance's environment":  `cat "/proc/$2/environ"`,
		"the instance, to end it":     `kill -9 "$2"`,
		"its records of the daemon's": `ls "$1/run/instances"`,
	} {
		if text, err := users.stranger(script, users.home, pid, users.simulated()); err == nil {
			t.Errorf("access of a stranger to %s: got success, want a failure: %s", description, text)
		}
	}
	if text := users.must(users.gfaas(nil, "ps", "-o", "csv")); !strings.Contains(text, ",ready,") {
		t.Errorf("gfaas ps at the end: got\n%swant a ready instance", text)
	}
	users.checkSecretHidden("f-0")
}

// secretWord matches words that may be a secret (preload.NewSecret).
var secretWord = regexp.MustCompile(`[0-9a-zA-Z_-]{16,}`)

// checkSecretHidden checks that an instance's secret does not appear in public places: command lines, and logs, which users
// share.
func (users *twoUsers) checkSecretHidden(id string) {
	users.t.Helper()
	text, err := os.ReadFile(filepath.Join(users.home, "run", "instances", id+".json"))
	if err != nil {
		users.t.Fatal(err)
	}
	var record struct {
		Hash string `json:"secret_sha256"`
	}
	if err := json.Unmarshal(text, &record); err != nil || len(record.Hash) != 2*sha256.Size {
		users.t.Fatalf("record of %s: got %v, want a hash of the secret\n%s", id, err, text)
	}
	var places []string
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", filepath.Join(users.home, "run", "*.log*"), filepath.Join(users.home, "logs-*", "*", "*"), filepath.Join(users.home, "state.db")} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			users.t.Errorf("files %s: got %v, %v; want at least one", pattern, found, err)
		}
		places = append(places, found...)
	}
	for _, place := range places {
		text, _ := os.ReadFile(place) // empty if the process has ended
		for _, word := range secretWord.FindAll(text, -1) {
			if fmt.Sprintf("%x", sha256.Sum256(word)) == record.Hash {
				users.t.Errorf("the secret of %s is in %s", id, place)
			}
		}
	}
}

// TestStateOfAnotherUserIsRefused checks that gfaas does not trust a state file of another user, because it runs
// commands from it.
func TestStateOfAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	users := newTwoUsers(t)
	state := filepath.Join(users.open, "state.db")
	for description, squat := range map[string]string{
		"a file": `cp "$2" "$1"; chmod 666 "$1"`, "a link": `ln -s "$3/precious" "$1"`, "a pipe": `mkfifo -m 666 "$1"`,
	} {
		whole := filepath.Join(users.dir, "theirs.db")
		text, err := os.ReadFile(filepath.Join(users.home, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(whole, text, 0o644); err != nil {
			t.Fatal(err)
		}
		users.must(users.stranger(squat, state, whole, users.home))
		stderr, err := users.gfaas([]string{"GFAAS_STATE=" + state}, "up", "plan.json")
		if code := exitStatus(err); code == 0 || !strings.Contains(stderr, state) || strings.Contains(stderr, "goroutine") {
			t.Errorf("gfaas up with %s of another user as the state: got exit status %d, want a refusal with the path\n%s", description, code, stderr)
			users.must(users.gfaas([]string{"GFAAS_STATE=" + state}, "down"))
		}
		users.checkUnharmed()
		if err := os.Remove(state); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOnlyOwnersManageInstances checks that only the owner of a run directory can stop, scale, remove or list its
// instances. Root and the stranger cannot, even if they know the paths.
func TestOnlyOwnersManageInstances(t *testing.T) {
	t.Parallel()
	users := newTwoUsers(t)
	if err := os.Chmod(users.home, 0o755); err != nil {
		t.Fatal(err)
	}
	users.must(users.gfaas(nil, "up", "plan.json"))
	serve := exec.Command(filepath.Join(users.dir, "bin", "gfaas"), "serve", "--gpu", "sim", "--listen", "")
	serve.Env, serve.Dir = users.env, users.home
	serve.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: users.victimUID, Gid: users.victimUID}}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serve.Process.Signal(syscall.SIGTERM); _ = serve.Wait() }()
	eventually(t, "the gateway answers its owner", func() bool {
		_, err := users.gfaas(nil, "scale", "f=1")
		return err == nil
	})
	program := filepath.Join(users.dir, "bin", "gfaas")
	for _, uid := range []uint32{users.strangerUID, 0} {
		for _, args := range [][]string{{"down"}, {"down", "f-0"}, {"rm", "f"}, {"scale", "f=0"}, {"ps"}, {"apply", "-f", filepath.Join(users.home, "f.yaml")}} {
			text, err := users.runAs(uid, nil, program, args...)
			if code := exitStatus(err); code == 0 || strings.Contains(text, "goroutine") {
				t.Errorf("gfaas %v of user %d: got exit status %d, want a refusal\n%s", args, uid, code, text)
			}
			// A state file of their own does not help.
			own := []string{"GFAAS_STATE=" + filepath.Join(users.open, fmt.Sprintf("state-%d.db", uid))}
			if text, err := users.runAs(uid, own, program, args...); exitStatus(err) == 0 && args[0] != "rm" && args[0] != "apply" {
				t.Errorf("gfaas %v of user %d with a state file of their own: got success, want a refusal: %s", args, uid, text)
			}
		}
	}
	text := users.must(users.gfaas(nil, "ps", "-o", "csv"))
	if !strings.Contains(text, "f-0,f,") || !strings.Contains(text, ",ready,") {
		t.Errorf("gfaas ps at the end: got\n%swant f-0 as ready", text)
	}
	if text := users.must(users.gfaas(nil, "ls", "-o", "csv")); !strings.Contains(text, "\nf,") {
		t.Errorf("gfaas ls at the end: got\n%swant the function f", text)
	}
	users.must(users.gfaas(nil, "scale", "f=0"))
	users.must(users.gfaas(nil, "down"))
}

// TestStrangerAtTheGateway checks that every user can call functions over loopback. Without --auth, only the gateway's
// user and root can manage it.
func TestStrangerAtTheGateway(t *testing.T) {
	t.Parallel()
	users := newTwoUsers(t)
	users.write("password", "u:p")
	const password = "Authorization: Basic dTpw\r\n"
	type row struct {
		uid      uint32
		ui       bool // send the request to --ui-listen
		request  string
		header   string
		statuses [3]int // without --auth, with a password, with --auth none
	}
	rows := []row{
		{users.victimUID, false, "GET /system/functions", "", [3]int{200, 401, 200}},
		{0, false, "GET /system/functions", "", [3]int{200, 401, 200}},
		{users.strangerUID, false, "GET /system/functions", "", [3]int{401, 401, 200}},
		{users.strangerUID, true, "GET /system/functions", "", [3]int{401, 401, 200}},
		{users.strangerUID, false, "GET /system/functions", password, [3]int{401, 200, 200}},
		{users.victimUID, false, "GET /system/functions", password + "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n", [3]int{403, 403, 403}},
		{users.victimUID, false, "GET /system/functions", password + "Host: evil.example\r\n", [3]int{403, 403, 403}},
		{users.victimUID, false, "GET /system/functions", password + "Host: named.example\r\n", [3]int{200, 200, 200}},
		{users.victimUID, true, "GET /system/functions", password + "Origin: http://HOST\r\nSec-Fetch-Site: same-origin\r\n", [3]int{200, 200, 200}},
		{users.strangerUID, false, "GET /system/logs?name=f", "", [3]int{401, 401, 200}},
		{users.strangerUID, false, "GET /ui/", "", [3]int{401, 401, 200}},
		{users.strangerUID, false, "GET /", "", [3]int{401, 401, 302}},
		{users.strangerUID, false, "GET /system/async/x", "", [3]int{401, 401, 404}},
		{users.strangerUID, false, "POST /system/scale-function/f", "", [3]int{401, 401, 400}},
		{users.strangerUID, false, "POST /system/functions", "", [3]int{401, 401, 400}},
		{users.strangerUID, false, "DELETE /system/functions", "", [3]int{401, 401, 400}},
		{users.strangerUID, false, "POST /function/f", "", [3]int{200, 200, 200}},
		{users.strangerUID, false, "GET /v1/models", "", [3]int{200, 200, 200}},
		{users.strangerUID, false, "GET /metrics", "", [3]int{200, 401, 200}},
		{users.strangerUID, false, "GET /healthz", "", [3]int{200, 200, 200}},
		{users.strangerUID, false, "GET /readyz", "", [3]int{200, 200, 200}},
		{users.strangerUID, true, "POST /function/f", "", [3]int{404, 404, 404}},
	}
	for i, args := range [][]string{nil, {"--auth", filepath.Join(users.home, "password")}, {"--auth", "none"}} {
		t.Run(strings.Join(append([]string{"serve"}, args...), " "), func(t *testing.T) {
			users.t = t
			listen, ui := users.serve(append(args, "--allowed-host", "named.example")...)
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
				text, err := users.runAs(r.uid, nil, "bash", "-c", `exec 3<>"/dev/tcp/$0/$1"; printf %s "$2" >&3; cat <&3`, host, port, head+"\r\n")
				if want := fmt.Sprintf("HTTP/1.1 %d ", r.statuses[i]); err != nil || !strings.HasPrefix(text, want) {
					t.Errorf("user %d, %s %q at %s: got %.300q, %v, want %q", r.uid, r.request, r.header, address, text, err, want)
				} else if r.statuses[i] == 401 && i == 0 && !strings.Contains(text, "--auth") {
					t.Errorf("user %d, %s: got %q, want a message that names --auth", r.uid, r.request, text)
				}
			}
			if text := users.must(users.gfaas(nil, "ls", "-o", "csv")); strings.Count(text, "\n") != 2 || !strings.Contains(text, "\nf,") {
				t.Errorf("gfaas ls at the end: got\n%swant only the function f", text)
			}
		})
	}
}

// serve runs a gateway as the victim until the test ends. It returns the addresses of --listen and --ui-listen.
func (users *twoUsers) serve(args ...string) (listen, ui string) {
	users.t.Helper()
	log := filepath.Join(users.home, "serve.log")
	file, err := os.Create(log)
	if err != nil {
		users.t.Fatal(err)
	}
	defer file.Close()
	serve := exec.Command(filepath.Join(users.dir, "bin", "gfaas"), append([]string{"serve", "--gpu", "sim", "--listen", "127.0.0.1:0", "--ui-listen", "127.0.0.1:0"}, args...)...)
	serve.Env, serve.Dir, serve.Stderr = users.env, users.home, file
	serve.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: users.victimUID, Gid: users.victimUID}}
	if err := serve.Start(); err != nil {
		users.t.Fatal(err)
	}
	users.t.Cleanup(func() { _ = serve.Process.Signal(syscall.SIGTERM); _ = serve.Wait() })
	serving := regexp.MustCompile(`"listen":"([^"]+)","ui_listen":"([^"]+)"`)
	eventually(users.t, "the gateway serves", func() bool {
		text, err := os.ReadFile(log)
		if found := serving.FindSubmatch(text); found != nil {
			listen, ui = string(found[1]), string(found[2])
		}
		return err == nil && listen != ""
	})
	eventually(users.t, "the gateway answers its owner", func() bool {
		_, err := users.gfaas(nil, "scale", "f=0")
		return err == nil
	})
	return listen, ui
}
