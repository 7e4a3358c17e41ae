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

// swapper exchanges two names until its input ends, and prints how often it did.
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

// tree is what is in a folder: files with what is in them, links with where they
// lead to.
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

// A second user exchanges a folder of their own, in the place of one of the first
// user's, with a link to one that is, as often as they can, while commands run: what
// was looked at is what is used, so nothing behind the link is written, cut short or
// made.
func TestStrangerSwaps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		place string // in the folder open to all, unless it is absolute
		args  [][]string
	}{
		"the run directory": {"run", [][]string{{"up", "plan.json"}, {"run", "--gpu", "sim", "--", "true"}, {"ps"}, {"down"}}},
		"the logs":          {"logs", [][]string{{"up", "plan.json"}, {"logs", "f"}, {"down"}}},
		"claims of ports":   {squatted[0], [][]string{{"up", "plan.json"}, {"down"}}},
		"the simulated GPU": {squatted[1], [][]string{{"run", "--gpu", "sim", "--", "SATURATE", "1"}, {"up", "plan.json"}, {"down"}}},
	} {
		t.Run(name, func(t *testing.T) {
			town := newTown(t)
			swap := filepath.Join(town.dir, "bin", "swap")
			instancetest.Compile(t, swap, []byte(swapper), "-O2")
			if err := os.Chmod(swap, 0o755); err != nil {
				t.Fatal(err)
			}
			place, extra := c.place, []string(nil)
			real := filepath.Join(town.home, "run")
			switch c.place {
			case "run":
				place = filepath.Join(town.open, "run")
				extra = []string{"GFAAS_RUN_DIR=" + place}
			case "logs":
				extra = []string{"GFAAS_STATE=" + filepath.Join(town.open, "state.db")}
				town.must(town.gfaas(extra, "apply", "-f", "f.yaml"))
				place = town.logs(extra)
				real = place
			case squatted[0], squatted[1]:
				real = c.place
			}
			// The stranger's folder has a link of each name that gfaas uses there, and
			// so has the victim's that they link to a file.
			town.must(town.gfaas(extra[:0:0], "up", "plan.json"))
			town.must(town.gfaas(nil, "run", "--gpu", "sim", "--", filepath.Join(town.dir, "bin", "saturate"), "1"))
			names := []string{"token.lock", "token.log", "token.sock", "up.lock", "f-0", "instances", "client", "ports.lock", "keep.f-0", "device-0"}
			if entries, err := os.ReadDir(real); err == nil {
				for _, e := range entries {
					names = append(names, e.Name())
				}
			}
			town.must(town.gfaas(nil, "down"))
			if err := os.RemoveAll(place); err != nil {
				t.Fatal(err)
			}
			bait := filepath.Join(town.home, "bait")
			town.must(town.as(victimUID, nil, "sh", append([]string{"-c", `mkdir -m 700 "$0"; for name; do echo precious >"$0/$name"; done`, bait}, names...)...))
			town.must(town.stranger(`mkdir -m 755 "$1"; to=$2 in=$1; ln -s "$3" "$1.link"; shift 3; for name; do ln -sf "$to" "$in/$name"; done`,
				append([]string{place, filepath.Join(town.home, "precious"), bait}, names...)...))
			before := tree(t, bait)

			cmd := exec.Command(swap, place, place+".link")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: strangerUID, Gid: strangerUID}}
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
			for end := time.Now().Add(3 * time.Second); runs < 12 || time.Now().Before(end); {
				for _, args := range c.args {
					line := strings.ReplaceAll(strings.Join(args, "\n"), "SATURATE", filepath.Join(town.dir, "bin", "saturate"))
					text, err := town.gfaas(extra, strings.Split(line, "\n")...)
					if strings.Contains(text, "goroutine") || strings.Contains(text, "SIGBUS") {
						t.Errorf("gfaas %v: %v\n%s", args, err, text)
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
				t.Errorf("%d swaps, %v: %s", swaps, err, text)
			}
			t.Logf("%d commands, %d of them refused, and %d swaps", runs, refused, swaps)
			if after := tree(t, bait); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("behind the link there was\n%v\nand now there is\n%v", before, after)
			}
			if info, err := os.Lstat(place); err == nil && info.IsDir() {
				town.unharmed(place)
			} else {
				town.unharmed()
			}
		})
	}
}
