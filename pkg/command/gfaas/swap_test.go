package gfaas

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/instancetest"
)

// swapper is a C program that exchanges two names until its input ends, and prints the number of exchanges.
const swapper = `#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	unsigned long n = 0;
	struct pollfd input = {.fd = 0, .events = POLLIN};
	if (argc != 3)
		return 2;
	for (; poll(&input, 1, 0) == 0; n++) {
		if (syscall(SYS_renameat2, AT_FDCWD, argv[1], AT_FDCWD, argv[2], 2 /* RENAME_EXCHANGE */) != 0) {
			perror(argv[1]);
			return 1;
		}
		if (n == 0)
			printf("swaps\n"), fflush(stdout);
	}
	printf("%lu\n", n);
	return 0;
}
`

// tree returns the content of a folder: files with their content, links with their targets.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		text := ""
		switch {
		case d.Type().IsRegular():
			var data []byte
			data, err = os.ReadFile(path)
			text = string(data)
		case d.Type()&fs.ModeSymlink != 0:
			text, err = os.Readlink(path)
		}
		found[path] = d.Type().String() + " " + text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestStrangerSwaps lets a second user, while commands run, repeatedly exchange a folder of their own, at the place of
// one of the first user's folders, with a link to such a folder. Commands must use the same folder that they have
// checked, so that they write, truncate or create nothing behind the link. Each case takes half a second, or a 60th of
// GFAAS_SOAK.
func TestStrangerSwaps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		place string // "ports" or "simulated" for these folders, or a name in twoUsers.open
		args  [][]string
	}{
		"the run directory": {"run", [][]string{{"up", "plan.json"}, {"run", "--gpu", "sim", "--", "true"}, {"ps"}, {"down"}}},
		"the logs":          {"logs", [][]string{{"up", "plan.json"}, {"logs", "f"}, {"down"}}},
		"claims of ports":   {"ports", [][]string{{"up", "plan.json"}, {"down"}}},
		"the simulated GPU": {"simulated", [][]string{{"run", "--gpu", "sim", "--", "SATURATE", "1"}, {"up", "plan.json"}, {"down"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			users := newTwoUsers(t)
			swap := filepath.Join(users.dir, "bin", "swap")
			instancetest.Compile(t, swap, []byte(swapper), "-O2")
			if err := os.Chmod(swap, 0o755); err != nil {
				t.Fatal(err)
			}
			var place string
			var extra []string
			real := filepath.Join(users.home, "run")
			switch c.place {
			case "run":
				place = filepath.Join(users.open, "run")
				extra = []string{"GFAAS_RUN_DIR=" + place}
			case "logs":
				extra = []string{"GFAAS_STATE=" + filepath.Join(users.open, "state.db")}
				users.must(users.gfaas(extra, "apply", "-f", "f.yaml"))
				place = users.logs(extra)
				real = place
			case "ports":
				place, real = users.ports(), users.ports()
			case "simulated":
				place, real = users.simulated(), users.simulated()
			}
			// The stranger's folder contains a link for each name that gfaas uses there. So does the folder of the victim
			// that they link to.
			users.must(users.gfaas(extra[:0:0], "up", "plan.json"))
			users.must(users.gfaas(nil, "run", "--gpu", "sim", "--", filepath.Join(users.dir, "bin", "saturate"), "1"))
			names := []string{"token.lock", "token.log", "token.sock", "up.lock", "f-0", "instances", "client", "ports.lock", "keep.f-0", "device-0"}
			if entries, err := os.ReadDir(real); err == nil {
				for _, e := range entries {
					names = append(names, e.Name())
				}
			}
			users.must(users.gfaas(nil, "down"))
			if err := os.RemoveAll(place); err != nil {
				t.Fatal(err)
			}
			bait := filepath.Join(users.home, "bait")
			users.must(users.runAs(users.victimUID, nil, "sh", append([]string{"-c", `mkdir -m 700 "$0"; for name; do echo precious >"$0/$name"; done`, bait}, names...)...))
			users.must(users.stranger(`mkdir -m 755 "$1"; to=$2 in=$1; ln -s "$3" "$1.link"; shift 3; for name; do ln -sf "$to" "$in/$name"; done`,
				append([]string{place, filepath.Join(users.home, "precious"), bait}, names...)...))
			before := tree(t, bait)

			cmd := exec.Command(swap, place, place+".link")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: users.strangerUID, Gid: users.strangerUID}}
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
			t.Cleanup(func() { _ = os.RemoveAll(place); _ = os.RemoveAll(place + ".link") })
			defer cmd.Wait()
			defer in.Close()
			if _, err := io.ReadFull(out, make([]byte, len("swaps\n"))); err != nil {
				t.Fatal(err)
			}
			runs, refused := 0, 0
			for end := time.Now().Add(max(500*time.Millisecond, soakTime(t, 0)/60)); runs < 12 || time.Now().Before(end); {
				for _, args := range c.args {
					line := strings.ReplaceAll(strings.Join(args, "\n"), "SATURATE", filepath.Join(users.dir, "bin", "saturate"))
					text, err := users.gfaas(extra, strings.Split(line, "\n")...)
					if strings.Contains(text, "goroutine") || strings.Contains(text, "SIGBUS") {
						t.Errorf("gfaas %v: got a crash (%v), want success or a refusal\n%s", args, err, text)
					}
					if err != nil {
						refused++
					}
					runs++
				}
			}
			_ = in.Close()
			text, err := io.ReadAll(out)
			if err != nil {
				t.Fatal(err)
			}
			swaps, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil || swaps < 1000 {
				t.Errorf("swaps during the commands: got %d, %v; want at least 1000: %s", swaps, err, text)
			}
			t.Logf("%d commands, %d of them refused, and %d swaps", runs, refused, swaps)
			if after := tree(t, bait); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("files behind the link: got\n%v\nwant\n%v", after, before)
			}
			if info, err := os.Lstat(place); err == nil && info.IsDir() {
				users.checkUnharmed(place)
			} else {
				users.checkUnharmed()
			}
		})
	}
}
