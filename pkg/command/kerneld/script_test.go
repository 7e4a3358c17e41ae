package kerneld

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
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

// patience is how long a script waits for what must happen.
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
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			run, err := os.MkdirTemp("", "run") // the script's own folder may be too long for a socket
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
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": clitest.Exits, "await": await, "signal": send, "floats": writeFloats, "isfloats": isFloats,
			"post": post, "answers": answers,
		},
	})
}

// await PROGRAM ARGS… runs a program until it succeeds; with ! until it fails.
func await(ts *testscript.TestScript, neg bool, args []string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); (clitest.Status(ts, ts.Exec(args[0], args[1:]...)) == 0) == neg; <-tick.C {
		if time.Now().After(end) {
			ts.Fatalf("%v: not within %v", args, patience)
		}
	}
}

// signal NAME sends a signal to what runs in the background.
func send(ts *testscript.TestScript, _ bool, args []string) {
	for _, cmd := range ts.BackgroundCmds() {
		ts.Check(cmd.Process.Signal(unix.SignalNum("SIG" + args[0])))
	}
}

// post STATUS PATH [FILE] asks the gateway, and prints its answer with the headers.
func post(ts *testscript.TestScript, _ bool, args []string) {
	body := ""
	if len(args) > 2 {
		body = ts.ReadFile(args[2])
	}
	text, status := ask(ts, "POST", args[1], body)
	fmt.Fprint(ts.Stdout(), text)
	if strconv.Itoa(status) != args[0] {
		ts.Fatalf("%v: status %d: %s", args, status, text)
	}
}

// answers PATH PATTERN asks the gateway until its answer matches.
func answers(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile(args[1])
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		text, _ := ask(ts, "GET", args[0], "")
		if pattern.MatchString(text) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%v: not within %v: %s", args, patience, text)
		}
	}
}

// ask asks the gateway.
func ask(ts *testscript.TestScript, method, path, body string) (text string, status int) {
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

// floats FILE V… writes numbers of 32 bits.
func writeFloats(ts *testscript.TestScript, _ bool, args []string) {
	var out []byte
	for _, text := range args[1:] {
		v, err := strconv.ParseFloat(text, 32)
		ts.Check(err)
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), out, 0o600))
}

// isfloats FILE V… holds what such a file has.
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
