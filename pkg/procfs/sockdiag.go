package procfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Layout of sock_diag(7) requests and answers (linux/inet_diag.h).
const (
	sockDiagByFamily = 20
	diagIDAt         = 8  // offset of the socket's addresses in a request
	diagIDLength     = 48 // their length
	diagRequest      = diagIDAt + diagIDLength
	diagAnswer       = 72
	diagUserAt       = 64
	diagInodeAt      = 68

	stateEstablished, stateSynRecv, stateFinWait1, stateFinWait2, stateTimeWait = 1, 3, 4, 5, 6
)

// diagSocket holds the kernel's information on one TCP socket.
type diagSocket struct {
	uid           int
	state         byte
	inode         uint32         // 0 if no process holds the socket
	local, remote netip.AddrPort // remote is unspecified for a listening socket
}

// errNoDiag reports that the socket does not exist or that the kernel does not support the
// request.
var errNoDiag = errors.New("the kernel knows no such socket")

// diagUser returns the user of the TCP socket with these addresses or, if there is none, of
// the socket that listens at the local address. It takes microseconds; reading /proc takes
// a millisecond.
func diagUser(local, remote netip.AddrPort) (uid int, err error) {
	socket, err := askDiag(local, remote)
	switch {
	case err != nil:
		return 0, err
	case socket.state == stateSynRecv:
		// The connection has no socket yet, so use the listening one.
		nobody := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
		if local.Addr().Is6() {
			nobody = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
		}
		socket, err = askDiag(local, nobody)
		return socket.uid, err
	case socket.state == stateTimeWait || socket.state == stateFinWait2 && socket.uid == 0:
		return 0, errNoDiag
	}
	return socket.uid, nil
}

func askDiag(local, remote netip.AddrPort) (s diagSocket, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return s, fmt.Errorf("ask for a socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, diagMessage(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return s, fmt.Errorf("ask for a socket: %w", err)
	}
	var buf [512]byte
	n, _, err := unix.Recvfrom(fd, buf[:], 0)
	if err != nil {
		return s, fmt.Errorf("ask for a socket: %w", err)
	}
	answer := buf[:n]
	if n < unix.SizeofNlMsghdr+diagAnswer || binary.NativeEndian.Uint16(answer[4:]) != sockDiagByFamily {
		return s, errNoDiag // the answer is an error code: no such socket, or an unsupported request
	}
	answer = answer[unix.SizeofNlMsghdr:]
	id := answer[4:]
	s = diagSocket{uid: int(binary.NativeEndian.Uint32(answer[diagUserAt:])), state: answer[1], inode: binary.NativeEndian.Uint32(answer[diagInodeAt:]),
		local:  netip.AddrPortFrom(diagAddr(answer[0], id[4:20]), binary.BigEndian.Uint16(id)),
		remote: netip.AddrPortFrom(diagAddr(answer[0], id[20:36]), binary.BigEndian.Uint16(id[2:]))}
	return s, nil
}

// diagAddr returns an address of a socket of the given family.
func diagAddr(family byte, raw []byte) netip.Addr {
	if family == unix.AF_INET {
		raw = raw[:4]
	}
	addr, _ := netip.AddrFromSlice(raw)
	return addr.Unmap()
}

func diagMessage(local, remote netip.AddrPort) []byte {
	m := make([]byte, unix.SizeofNlMsghdr+diagRequest)
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint16(m[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST)
	r := m[unix.SizeofNlMsghdr:]
	r[0], r[1] = unix.AF_INET, unix.IPPROTO_TCP
	if local.Addr().Is6() {
		r[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(r[4:], ^uint32(0)) // all states
	id := r[diagIDAt:]
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[4:20], local.Addr().AsSlice())
	copy(id[20:36], remote.Addr().AsSlice())
	binary.NativeEndian.PutUint64(id[40:], ^uint64(0)) // any cookie
	return m
}
