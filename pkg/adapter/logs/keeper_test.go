package logs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/adapter/logs/logstest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/procfs"
)

func TestMain(m *testing.M) { os.Exit(logstest.Main(m)) }

// allLines is the value of ports.LogOptions.Tail for the whole log.
const allLines = -1

func start(t *testing.T, dir string) *os.File {
	t.Helper()
	keeper, err := logstest.Keeper()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := logs.Start(t.Context(), keeper, dir)
	if err != nil {
		t.Fatal(err)
	}
	return pipe
}

func text(t *testing.T, dir string, o ports.LogOptions) string {
	t.Helper()
	text, err := ports.Text(logs.Read(t.Context(), dir, o))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A keeper ends when the last process closes the pipe, and the log is then complete.
func TestKeeper(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs", "f-0")
	pipe := start(t, dir)
	if flags, err := unix.FcntlInt(pipe.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("the pipe has flags %x, %v, want one that blocks", flags, err)
	}
	cmd := exec.Command("sh", "-c", "echo first; echo second >&2; ( while kill -0 $$; do :; done 2>/dev/null; echo third ) &")
	cmd.Stdout, cmd.Stderr = pipe, pipe
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	_ = pipe.Close()
	if got := text(t, dir, ports.LogOptions{Tail: allLines, Follow: true}); got != "first\nsecond\nthird\n" {
		t.Errorf("followed log: got %q, want the three lines", got)
	}
	logs.AwaitWritten(t.Context(), dir)
	// A later keeper appends to the log.
	pipe = start(t, dir)
	_, _ = pipe.WriteString("fourth")
	_ = pipe.Close()
	logs.AwaitWritten(t.Context(), dir)
	if got := text(t, dir, ports.LogOptions{Tail: 2}); got != "third\nfourth\n" {
		t.Errorf("last two lines: got %q, want the third and the fourth", got)
	}
	for _, name := range []string{dir, filepath.Dir(dir)} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("mode of %s: got %v, %v; want 0700", name, info.Mode(), err)
		}
	}
	for range 2 {
		if err := logs.Remove(dir); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("folder of a removed log: got %v, want none", err)
	}
	if got := text(t, dir, ports.LogOptions{Tail: allLines}); got != "" {
		t.Errorf("log that does not exist: got %q, want nothing", got)
	}
}

// A log has one keeper.
func TestOneKeeper(t *testing.T) {
	dir := t.TempDir()
	pipe := start(t, dir)
	defer pipe.Close()
	keeper, err := logstest.Keeper()
	if err != nil {
		t.Fatal(err)
	}
	// Start waits for some seconds for the first keeper to end, and then fails. In synctest, the
	// seconds pass at once.
	synctest.Test(t, func(t *testing.T) {
		if second, err := logs.Start(t.Context(), keeper, dir); err == nil || !strings.Contains(err.Error(), "another instance") {
			_ = second.Close()
			t.Errorf("a second keeper: %v", err)
		}
	})
}

func TestStartErrors(t *testing.T) {
	writableByAll := t.TempDir()
	if err := os.Chmod(writableByAll, 0o777); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), linked); err != nil {
		t.Fatal(err)
	}
	linkedLog := t.TempDir()
	if err := os.Symlink("/dev/null", filepath.Join(linkedLog, "current")); err != nil {
		t.Fatal(err)
	}
	self, err := logstest.Keeper()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		keeper []string
		dir    string
	}{
		"no folder":                           {self, "/dev/null/log"},
		"writable by all":                     {self, writableByAll},
		"in a folder that is writable by all": {self, filepath.Join(writableByAll, "f-0")},
		"a link to a folder":                  {self, linked},
		"in a linked folder":                  {self, filepath.Join(linked, "f-0")},
		"a link as the log":                   {self, linkedLog},
		"keeper that does not exist":          {[]string{"/nowhere"}, t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			if pipe, err := logs.Start(t.Context(), c.keeper, c.dir); err == nil {
				_ = pipe.Close()
				t.Error("start: got no error, want one")
			}
		})
	}
}

// Any amount of output leaves the log bounded, does not block the printing process for
// long, and leaves its end in the log.
func TestFlood(t *testing.T) {
	dir := t.TempDir()
	pipe := start(t, dir)
	line := strings.Repeat("x", 99)
	block := []byte(strings.Repeat(line+"\n", 600))
	begin := time.Now()
	const blocks = 1000 // 60 MB
	for range blocks {
		if _, err := pipe.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%.0f MB/s", float64(blocks*len(block))/1e6/time.Since(begin).Seconds())
	fmt.Fprintln(pipe, "the end")
	_ = pipe.Close()
	if got := text(t, dir, ports.LogOptions{Tail: 1, Follow: true}); !strings.HasSuffix(got, "the end\n") {
		t.Errorf("end of the log: got %q, want \"the end\"", got)
	}
	size := int64(0)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 2*logs.MaxFile+1<<20 || size < logs.MaxFile {
		t.Errorf("%d bytes are kept, want at most %d", size, 2*logs.MaxFile)
	}
}

// killKeepers kills the keepers of a folder. It waits for them to appear, because the
// kernel shows a new program's arguments with a delay.
func killKeepers(t *testing.T, dir string) (n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); n == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		all, err := procfs.Stats()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.PID))
			env, _ := procfs.Environ(s.PID)
			if s.PID == os.Getpid() || err != nil || !strings.Contains(string(line)+fmt.Sprint(env), dir) {
				continue
			}
			if unix.Kill(s.PID, unix.SIGKILL) == nil {
				n++
			}
		}
	}
	return n
}

// After the keeper was killed, the printing process gets EPIPE and does not block.
func TestKeeperKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs", "f-0")
	pipe := start(t, dir)
	defer pipe.Close()
	cmd := exec.Command("sh", "-c", "while :; do echo more; done")
	cmd.Stdout = pipe
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	if n := killKeepers(t, dir); n != 1 {
		t.Fatalf("keepers of %s: got %d, want 1", dir, n)
	}
	select {
	case err := <-ended:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGPIPE {
			t.Errorf("end of the printing process: got %v, want SIGPIPE", err)
		}
	case <-time.After(time.Minute):
		t.Error("the printing process still runs a minute after its keeper was killed, want SIGPIPE")
	}
}
