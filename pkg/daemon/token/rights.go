package token

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Nobody here takes descriptors that peers pass. But who drops the last
// reference to one closes it, and a TCP connection that lingers makes that take
// as long as its owner wished, for all whom the same thread hears. So the kernel
// refuses them, from 6.16 on. Before that they are received, and closed in a
// goroutine of their own.

// mostRights is how many descriptors a record can carry: the kernel's SCM_MAX_FD.
const mostRights = 253

// errRights ends the connection of a client that passes descriptors.
var errRights = errors.New("it passes descriptors")

// refuseRights has the kernel refuse them, if it can, on a socket and on all
// connections that come in at it.
func refuseRights(_, _ string, raw syscall.RawConn) error {
	var err error
	if failed := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
	}); failed != nil {
		return failed
	}
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil
	}
	return err
}

// rightsAreRefused says whether the kernel can.
func rightsAreRefused() (bool, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	_, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS)
	return err == nil, nil
}

// receive reads a record, and fails if descriptors came with it.
func receive(fd int, buf, oob []byte) (int, error) {
	n, passed, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err == nil && passed > 0 {
		discard(oob[:passed])
		return 0, errRights
	}
	return n, err
}

// discard closes descriptors that came in, without waiting for that.
func discard(oob []byte) {
	messages, _ := unix.ParseSocketControlMessage(oob)
	var all []int
	for _, m := range messages {
		fds, _ := unix.ParseUnixRights(&m)
		all = append(all, fds...)
	}
	go func() {
		for _, fd := range all {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			_ = unix.Close(fd)
		}
	}()
}

// discardAll closes a connection with all that its peer has still said.
func discardAll(fd int) {
	drain(fd)
	_ = unix.Close(fd)
}

// drain ends a connection and takes what its peer has still said.
func drain(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*mostRights))
	for {
		n, err := receive(fd, buf, oob)
		if err == nil && n == 0 || err != nil && !errors.Is(err, errRights) && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
