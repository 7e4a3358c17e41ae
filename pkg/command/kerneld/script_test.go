package kerneld

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/command/cli/clitest"
)

// patience is how long a script waits for a required event.
const patience = time.Minute

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gfaas-kerneld": func() { os.Exit(Main()) }})
}

func TestScripts(t *testing.T) {
	lib, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	bin, err := filepath.Abs("../../../build/bin")
	if err != nil {
		t.Fatal(err)
	}
	testdata, err := filepath.Abs("../../kgraph/testdata")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			run, err := os.MkdirTemp("", "run") // the path of the script's own folder may be too long for a socket
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(run) })
			sim, err := os.MkdirTemp("/dev/shm", "kerneld")
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(sim) })
			env.Setenv("GFAAS_RUN_DIR", filepath.Join(run, "gfaas"))
			env.Setenv("GFAAS_LIB_DIR", lib)
			env.Setenv("GFAAS_SIM_DIR", sim)
			env.Setenv("GFAAS_SIM_GPU", "sms=80,mem=1GiB,count=2")
			env.Setenv("BUILD_BIN", bin)
			env.Setenv("KGRAPH_TESTDATA", testdata)
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": clitest.Exits, "await": clitest.Await, "signal": clitest.Signal, "floats": writeFloats, "isfloats": isFloats,
			"post": post, "answers": answers, "stalled": stalled, "runid": runID,
		},
	})
}

// stalled SIGNAL ARGS… makes gfaas-kerneld copy an endless standard input. It checks that a signal ends the program
// without leaving a file in $TMPDIR.
func stalled(ts *testscript.TestScript, _ bool, args []string) {
	cmd := exec.Command("gfaas-kerneld", args[1:]...)
	cmd.Env = os.Environ()
	for _, name := range []string{"GFAAS_RUN_DIR", "TMPDIR", "XDG_CONFIG_HOME"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	in, err := cmd.StdinPipe()
	ts.Check(err)
	defer in.Close()
	ts.Check(cmd.Start())
	_, err = io.WriteString(in, "something")
	ts.Check(err)
	copied := func() bool {
		open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", cmd.Process.Pid))
		for _, fd := range open {
			to, _ := os.Readlink(fd)
			info, err := os.Stat(fd)
			if strings.HasPrefix(to, ts.Getenv("TMPDIR")+"/") && err == nil && info.Size() > 0 {
				return true
			}
		}
		return false
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !copied(); <-tick.C {
		if time.Now().After(end) {
			_ = cmd.Process.Kill()
			ts.Fatalf("%v: got no copy of standard input in $TMPDIR within %v, want one", args, patience)
		}
	}
	sig := unix.SignalNum("SIG" + args[0])
	ts.Check(cmd.Process.Signal(sig))
	if got := clitest.Status(ts, cmd.Wait()); got != 128+int(sig) {
		ts.Fatalf("%v: exit status %d, want %d", args, got, 128+int(sig))
	}
	if remaining, err := os.ReadDir(ts.Getenv("TMPDIR")); err != nil || len(remaining) > 0 {
		ts.Fatalf("files in $TMPDIR at the end: got %v, %v; want none", remaining, err)
	}
}

// post STATUS PATH [FILE] sends a request to the gateway and prints the answer with its headers.
func post(ts *testscript.TestScript, _ bool, args []string) {
	body := ""
	if len(args) > 2 {
		body = ts.ReadFile(args[2])
	}
	text, status := requestGateway(ts, "POST", args[1], body)
	fmt.Fprint(ts.Stdout(), text)
	if strconv.Itoa(status) != args[0] {
		ts.Fatalf("post %v: got status %d, want %s: %s", args, status, args[0], text)
	}
}

// answers PATH PATTERN repeats a request to the gateway until the answer matches.
func answers(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile(args[1])
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		text, _ := requestGateway(ts, "GET", args[0], "")
		if pattern.MatchString(text) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("answer of %s within %v: got %s, want a match of %s", args[0], patience, text, args[1])
		}
	}
}

// requestGateway sends a request to the gateway.
func requestGateway(ts *testscript.TestScript, method, path, body string) (text string, status int) {
	socket := filepath.Join(ts.Getenv("GFAAS_RUN_DIR"), "gateway.sock")
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequest(method, "http://gateway"+path, strings.NewReader(body))
	ts.Check(err)
	answer, err := client.Do(req)
	ts.Check(err)
	defer answer.Body.Close()
	var out bytes.Buffer
	ts.Check(answer.Header.Write(&out))
	_, err = out.ReadFrom(answer.Body)
	ts.Check(err)
	return strings.ReplaceAll(out.String(), "\r\n", "\n"), answer.StatusCode
}

// runid sets $RUN to the ID of the run whose status the last command printed.
func runID(ts *testscript.TestScript, _ bool, _ []string) {
	var status struct{ ID string }
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &status))
	ts.Setenv("RUN", status.ID)
}

// floats FILE V… writes 32-bit floats to a file.
func writeFloats(ts *testscript.TestScript, _ bool, args []string) {
	var out []byte
	for _, text := range args[1:] {
		v, err := strconv.ParseFloat(text, 32)
		ts.Check(err)
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), out, 0o600))
}

// isfloats FILE V… checks the floats in a file.
func isFloats(ts *testscript.TestScript, _ bool, args []string) {
	data := []byte(ts.ReadFile(args[0]))
	var got []string
	for ; len(data) >= 4; data = data[4:] {
		got = append(got, fmt.Sprint(math.Float32frombits(binary.LittleEndian.Uint32(data))))
	}
	if want := strings.Join(args[1:], " "); strings.Join(got, " ") != want {
		ts.Fatalf("%s: %v, want %s", args[0], got, want)
	}
}
