package fnhttp

import (
	"fmt"
	"net"
	"os"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// checkPeer says why a new connection does not lead to the instance that it was
// made for, before anything is sent on it: the port of one that has ended can be
// anybody's by now. A connection that is kept leads where it led.
//
// The other end is the user's own. That of a container can be root's, as the
// engine's proxies are, or outside this machine's network; so can that of an
// instance whose handle is not known.
func checkPeer(h instance.Handle, conn net.Conn) error {
	process := h.Runtime == instance.Process && h.PID > 0
	if process {
		if s, err := procfs.Read(h.PID); err != nil || s.Start != h.StartTime || s.Ended() {
			return fmt.Errorf("process %d, which was to listen at %s, has ended", h.PID, h.Address)
		}
	}
	here, ok := conn.LocalAddr().(*net.TCPAddr)
	there, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return nil
	}
	uid, found, err := procfs.SocketUser(there.AddrPort(), here.AddrPort())
	if err != nil {
		return fmt.Errorf("see whose program listens at %s: %w", there, err)
	}
	switch own := os.Geteuid(); {
	case found && uid == own, !process && (!found || uid == 0):
		return nil
	case !found:
		return fmt.Errorf("nothing of this machine listens at %s", there)
	default:
		return fmt.Errorf("a program of user %d listens at %s, and not the instance", uid, there)
	}
}
