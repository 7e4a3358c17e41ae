package token

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// A message of the client protocol is sent as one record of a SEQPACKET socket. Its encoded bytes are
// called a frame.

// opening is the first message of a connection, and the grant before it.
type opening struct {
	message wire.Message
	flags   uint32 // of the message's header
	granted bool   // a grant precedes the message
	grant   string
}

// readOpening reads the first message of a connection, which may be of any type, and the grant before it. It waits for
// them, until the deadline of the connection.
func readOpening(conn *net.UnixConn) (o opening, err error) {
	frame, err := readFrame(conn)
	if err != nil {
		return o, err
	}
	if o.grant, o.granted = wire.ReadGrant(frame); o.granted {
		if frame, err = readFrame(conn); err != nil {
			return o, err
		}
	}
	if o.message, err = wire.Parse(frame); err != nil {
		return o, err
	}
	o.flags = wire.Flags(frame)
	return o, nil
}

// readFrame reads one frame, which may be longer than the longest message by a byte.
func readFrame(conn *net.UnixConn) ([]byte, error) {
	buf, oob := make([]byte, wire.HeaderSize+wire.MaxGrant+1), make([]byte, unix.CmsgSpace(4*procfs.MaxRights))
	n, passed, _, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, err
	}
	if passed > 0 {
		procfs.Discard(procfs.ReceivedFiles(oob[:passed], "a client's file")...)
		return nil, errRights
	}
	return buf[:n], nil
}

// send writes the frame of a message, with a descriptor if file is not nil. It never waits: it
// returns an error if the peer has not read its earlier messages.
func send(fd int, frame []byte, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	return unix.Sendmsg(fd, frame, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// use calls f with the connection's file descriptor, which stays open meanwhile, and returns f's
// error. It calls f once and never waits, unlike the methods Read and Write of syscall.RawConn, which
// may wait until the connection can be read or written.
func use(conn *net.UnixConn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// The daemon accepts no file descriptors from its peers, because they could block it. A peer could
// pass a TCP connection with unsent data and a long SO_LINGER timeout, and close its own descriptor.
// The daemon's close would then be the last one and would wait for that timeout, while the same
// thread has to read the messages of all other clients. So the daemon closes received descriptors in a
// separate goroutine, and ends the connection.

// errRights ends the connection of a client that passes descriptors.
var errRights = errors.New("the client passed file descriptors")

// receive reads the frame of one message into buf without parsing it, and returns its length. It
// waits for a record unless fd is non-blocking. It returns errRights if the record carries descriptors.
func receive(fd int, buf, oob []byte) (int, error) {
	n, passed, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err == nil && passed > 0 {
		procfs.Discard(procfs.ReceivedFiles(oob[:passed], "a client's file")...)
		return 0, errRights
	}
	return n, err
}

// closeAndDiscard closes a connection and discards its unread messages.
func closeAndDiscard(fd int) {
	shutDownAndDiscard(fd)
	_ = unix.Close(fd)
}

// shutDownAndDiscard shuts a connection down and discards its unread messages, with the descriptors
// in them.
func shutDownAndDiscard(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*procfs.MaxRights))
	for {
		n, err := receive(fd, buf, oob)
		if err == nil && n == 0 || err != nil && !errors.Is(err, errRights) && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
