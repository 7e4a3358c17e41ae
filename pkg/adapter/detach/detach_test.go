package detach

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCommandHasNoMoreThanItsStreams(t *testing.T) {
	end, err := unix.Open(os.DevNull, unix.O_RDONLY, 0) // without O_CLOEXEC, as shells leave them
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(end)
	const high = 200
	if err := unix.Dup3(end, high, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(high)
	// The shell's own: it opens nothing to look.
	cmd := exec.Command("sh", "-c", `cd /proc/$$/fd && echo *; read -r pid x y z p session rest </proc/$$/stat; test $pid = $session`)
	if err := Command(cmd); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("it does not lead a session: %v", err)
	}
	if got := strings.TrimSpace(string(out)); !strings.HasPrefix(got, "0 1 2") || strings.Contains(got, "200") || len(strings.Fields(got)) > 4 {
		t.Errorf("its descriptors: %s", got) // one may be that which * is read through
	}
}
