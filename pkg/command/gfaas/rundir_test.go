package gfaas

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sharedDir returns the victim's run directory outside a session.
func (users *twoUsers) sharedDir() string { return fmt.Sprintf("/tmp/gfaas-%d", users.victimUID) }

// withSessions runs a shell script as root with its own /run/user. In the script, victim COMMAND… runs a command as the
// victim.
func (users *twoUsers) withSessions(script string) (string, error) {
	users.t.Helper()
	_ = os.RemoveAll(users.sharedDir())
	users.t.Cleanup(func() { _ = os.RemoveAll(users.sharedDir()) })
	return users.runAs(0, nil, "unshare", "-m", "sh", "-c", fmt.Sprintf(`set -e
unset GFAAS_RUN_DIR XDG_RUNTIME_DIR
uid=%d
victim() { setpriv --reuid $uid --regid $uid --clear-groups "$@"; }
mount -t tmpfs -o mode=755 none /run/user
cd "$HOME"
trap 'touch "$HOME/end"' EXIT # ends what waits for it
%s`, users.victimUID, script))
}

// TestOneDaemonForCronAndShell checks that a job without a session and a shell with a session use the same token daemon,
// whichever starts first.
func TestOneDaemonForCronAndShell(t *testing.T) {
	t.Parallel()
	session := `mkdir /run/user/$uid; chown $uid:$uid /run/user/$uid; chmod 700 /run/user/$uid; `
	first := `victim env %s gfaas run -q --gpu sim --name first -- sh -c 'echo >"$HOME/begun"; while [ ! -e "$HOME/end" ]; do sleep 0.1; done' & while [ ! -e "$HOME/begun" ]; do kill -0 $!; sleep 0.1; done; `
	second := `victim env %s gfaas run -q --gpu sim --name second -- gfaas-tokend status -o csv; echo >"$HOME/end"; wait`
	for name, script := range map[string]string{
		"cron first":          fmt.Sprintf(first, "") + session + fmt.Sprintf(second, "XDG_RUNTIME_DIR=/run/user/$uid"),
		"shell first":         session + fmt.Sprintf(first, "XDG_RUNTIME_DIR=/run/user/$uid") + fmt.Sprintf(second, ""),
		"neither":             fmt.Sprintf(first, "") + fmt.Sprintf(second, ""),
		"sudo from a session": fmt.Sprintf(first, "") + fmt.Sprintf(second, "XDG_RUNTIME_DIR=/run/user/0"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			users := newTwoUsers(t)
			text := users.must(users.withSessions(script))
			if !strings.Contains(text, "first,") || !strings.Contains(text, "second,") {
				t.Errorf("slices of the second job's daemon: got\n%swant first and second", text)
			}
		})
	}
}

// TestNoUsableRunDir checks that the message names the variable for another run directory if no default is usable, for
// each command that needs a run directory.
func TestNoUsableRunDir(t *testing.T) {
	t.Parallel()
	users := newTwoUsers(t)
	for description, squat := range map[string]string{
		"a file":         `touch /tmp/gfaas-$uid`,
		"another user's": `mkdir -m 755 /tmp/gfaas-$uid`,
		"a link":         `ln -s "$HOME" /tmp/gfaas-$uid`,
		"writable":       `mkdir /tmp/gfaas-$uid; chown $uid:$uid /tmp/gfaas-$uid; chmod 777 /tmp/gfaas-$uid`,
	} {
		for _, command := range []string{"gfaas run --gpu sim -- true", "gfaas up plan.json", "gfaas serve --gpu sim --listen ''", "gfaas-tokend"} {
			text, err := users.withSessions(squat + "\nvictim timeout 60 " + command)
			want := 4
			if strings.HasPrefix(command, "gfaas run") {
				want = 125
			}
			if code := exitStatus(err); code != want || !strings.Contains(text, "hint: set GFAAS_RUN_DIR to a folder of yours") || !strings.Contains(text, users.sharedDir()) {
				t.Errorf("%s: %s: got exit status %d, want %d and a hint to set GFAAS_RUN_DIR\n%s", description, command, code, want, text)
			}
		}
	}
}

// TestSecondUserIsWarned checks that a second user's gfaas run starts another token daemon for the same GPU. It names
// the owner of the first daemon, explains how to join it, and runs the command.
func TestSecondUserIsWarned(t *testing.T) {
	t.Parallel()
	users := newTwoUsers(t)
	own := []string{"GFAAS_SIM_DIR=" + filepath.Join(users.home, "sim")}
	theirs := append(own, "GFAAS_RUN_DIR="+filepath.Join(users.open, "run"), "HOME="+users.open)
	text := users.must(users.runAs(0, own, "sh", "-c", fmt.Sprintf(`set -e
as() { id=$1; shift; setpriv --reuid $id --regid $id --clear-groups "$@"; }
setpriv --reuid %[1]d --regid %[1]d --clear-groups gfaas-tokend >/dev/null 2>&1 & daemon=$!
trap 'kill $daemon' EXIT
while ! as %[1]d gfaas-tokend status >/dev/null 2>&1; do kill -0 $daemon; sleep 0.1; done
as %[1]d gfaas run -q --gpu sim -- echo joined
as %[2]d env %[3]s %[4]s XDG_CONFIG_HOME="$HOME/../open" gfaas run --gpu sim -- echo ran`, users.victimUID, users.strangerUID, theirs[1], theirs[2])))
	first, second, _ := strings.Cut(text, "joined\n")
	if first != "" {
		t.Errorf("messages to a user who joins the daemon: got %s, want none", first)
	}
	for _, want := range []string{"warning: GPU sim is already shared by another gfaas-tokend", fmt.Sprintf("of user %d, in %s", users.victimUID, filepath.Join(users.home, "run")),
		fmt.Sprintf("sudo -u '#%d' gfaas run", users.victimUID), "docs/how-to/team-on-one-gpu.md", "\nran\n"} {
		if !strings.Contains(second, want) {
			t.Errorf("messages to the second user: got\n%swant %q", text, want)
		}
	}
}
