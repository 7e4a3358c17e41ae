package token

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// roleInsider registers an instance, removes "spare" and requests the status at the control socket.
// Then it sends a hello as a process of "victim", whose secret it knows, to the client socket. It
// prints the results.
const (
	roleInsider = "insider"
	controlEnv  = "TOKENTEST_CONTROL"
)

func playInsider(path string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv(controlEnv))
	}}}
	var codes []int
	for _, what := range [][3]string{
		{"POST", "instances", `{"instance":"more","secret":"s","gpu":"sim","sm_pct":1,"quota_request":1,"quota_limit":1}`},
		{"DELETE", "instances/spare", ""}, {"GET", "status", ""},
	} {
		r, err := http.NewRequest(what[0], "http://tokend/v1/"+what[1], strings.NewReader(what[2]))
		if err != nil {
			return err
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		_ = answer.Body.Close()
		codes = append(codes, answer.StatusCode)
	}
	c, refused := tokentest.Dial(path, "victim", "secret of victim", 0)
	if refused == nil {
		c.Close()
	}
	fmt.Println(codes, refused == nil)
	return nil
}

// TestAncestorsOfFirstProcess checks the ancestors of process 1 of a host or container.
func TestAncestorsOfFirstProcess(t *testing.T) {
	s := serve(t, Config{})
	for _, pid := range []int{1, os.Getpid()} {
		ancestors, err := s.d.lineage.ancestors(pid)
		if err != nil || len(ancestors) == 0 || ancestors[0].PID != pid || ancestors[len(ancestors)-1].Parent != 0 {
			t.Errorf("ancestors of %d: got %+v, %v; want a list from the process to one without a parent", pid, ancestors, err)
		}
	}
	if ancestors, err := s.d.lineage.ancestors(0); err != nil || len(ancestors) > 0 {
		t.Errorf("ancestors of process 0: got %+v, %v; want none", ancestors, err)
	}
}

// TestOutsiderExecutes checks that a process that was outside all instances is inside one as soon as it
// executes a program with the instance's environment.
func TestOutsiderExecutes(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	cmd := exec.Command("sh", "-c", `read -r go; exec env `+strings.Join(s.inSlice("a")[:2], " ")+` sleep 600`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	startedIn := func() string {
		t.Helper()
		ancestors, err := s.d.lineage.ancestors(cmd.Process.Pid)
		if err != nil || len(ancestors) < 2 {
			t.Fatalf("ancestors of process %d: got %v, %v, want at least two", cmd.Process.Pid, ancestors, err)
		}
		return ancestors[0].instance
	}
	for range 2 { // the second time, its environment is known
		if got := startedIn(); got != "" {
			t.Errorf("before: got instance %q, want none", got)
		}
	}
	if parent, err := procfs.Read(os.Getpid()); err != nil || !s.d.lineage.outsiders.contains(parent) {
		t.Errorf("the parent process is not known to be outside: %v, %v", parent, err)
	}
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is inside instance a", func() bool { return startedIn() == "a" })
}

// TestInsiders runs processes inside and outside an instance. They use the control socket, and send a
// hello with another instance's secret.
func TestInsiders(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 30, request: 1, limit: 1}))
	s.register(reg("victim", share{sm: 30, request: 1, limit: 1}))
	instance, common, own := "GFAAS_INSTANCE=a", "GFAAS_SOCKET="+s.clientSocket(), "GFAAS_SOCKET="+s.d.lineage.clientDir+"/a/token.sock"
	const (
		refused  = "[403 403 200] false"
		answered = "[200 204 200] true"
		below    = `echo; read go; env -u GFAAS_INSTANCE "$0"; true` // a shell that stays the parent of the program
	)
	for name, tt := range map[string]struct {
		env   []string
		shell string
		owner bool // the shell owns an instance
		want  string
	}{
		"inside":                      {[]string{instance, common}, `echo; read go; exec "$0"`, false, refused},
		"inside, by its own socket":   {[]string{instance, own}, `echo; read go; exec "$0"`, false, refused},
		"below one that is":           {[]string{instance, common}, below, false, refused},
		"below one that is, as other": {[]string{instance, common}, `echo; read go; GFAAS_INSTANCE=victim "$0"; true`, false, refused},
		"below an owner":              {nil, below, true, refused},
		"instance that is not known":  {[]string{"GFAAS_INSTANCE=b", common}, below, false, answered},
		"instance of another daemon":  {[]string{instance, "GFAAS_SOCKET=/nowhere"}, below, false, answered},
		"outside":                     {nil, below, false, answered},
	} {
		t.Run(name, func(t *testing.T) {
			s.register(reg("spare", share{sm: 30, request: 1, limit: 1}))
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", tt.shell, os.Args[0])
			cmd.Env = append(append(os.Environ(), roleEnv+"="+roleInsider, pathEnv+"="+s.clientSocket(), controlEnv+"="+s.socket), tt.env...)
			cmd.Stderr = os.Stderr
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stdout := bufio.NewReader(out)
			if _, err := stdout.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if tt.owner {
				owned := reg("owned", share{sm: 30, request: 1, limit: 1})
				owned.OwnerPID = cmd.Process.Pid
				s.register(owned)
			}
			if _, err := io.WriteString(in, "go\n"); err != nil {
				t.Fatal(err)
			}
			line, err := stdout.ReadString('\n')
			if got := strings.TrimSpace(line); err != nil || got != tt.want {
				t.Errorf("answer of the process: got %q, %v; want %q", got, err, tt.want)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			_, _ = s.do(http.MethodDelete, "/v1/instances/more", "")
		})
	}
}
