package procfs

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// SocketUser returns the user of the TCP socket with these local and remote addresses or,
// if there is none, of the socket that listens at the local address. It identifies the peer
// of a connection within this machine before the first byte is sent. found is false if this
// network namespace has no such socket.
func SocketUser(local, remote netip.AddrPort) (uid int, found bool, err error) {
	local, remote = unmap(local), unmap(remote)
	if uid, err := diagUser(local, remote); err == nil {
		return uid, true, nil
	}
	fields, err := socketFields(local, remote)
	if fields == nil || err != nil {
		return 0, false, err
	}
	uid, err = strconv.Atoi(fields[userField])
	return uid, err == nil, err
}

// unmap returns the address as IPv4 if it is an IPv4 address mapped to IPv6.
func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// ConnectionUser returns the user of the process that holds the established TCP socket with
// these addresses: the peer of a connection within this machine. A process still holds its
// socket after shutdown(2). found is false if there is no such socket or no process holds
// it any more, since the kernel may then report uid 0 for any owner.
func ConnectionUser(local, remote netip.AddrPort) (uid int, found bool, err error) {
	local, remote = unmap(local), unmap(remote)
	if s, err := askDiag(local, remote); err == nil {
		// Without an exact match the kernel answers with a socket that listens at the
		// local address.
		if s.local != local || s.remote != remote || s.inode == 0 || !connected(s.state) {
			return 0, false, nil
		}
		return s.uid, true, nil
	}
	return listedConnectionUser(local, remote)
}

// listedConnectionUser implements ConnectionUser with the lists in /proc, for kernels
// without sock_diag.
func listedConnectionUser(local, remote netip.AddrPort) (uid int, found bool, err error) {
	fields, err := socketFields(local, remote)
	if fields == nil || err != nil {
		return 0, false, err
	}
	state, err := strconv.ParseUint(fields[3], 16, 8)
	if err != nil || !connected(byte(state)) || fields[inodeField] == "0" {
		return 0, false, err
	}
	uid, err = strconv.Atoi(fields[userField])
	return uid, err == nil, err
}

// Peer returns the credentials of the process at the other end of a unix socket, as of its
// connect or listen. PID 0 means that the process is not visible in this PID namespace.
func Peer(conn syscall.Conn) (unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return unix.Ucred{}, err
	}
	var cred *unix.Ucred
	failed := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = cmp.Or(failed, err); err != nil {
		return unix.Ucred{}, err
	}
	return *cred, nil
}

// Listening reports whether a process of this network namespace listens at a unix socket with this absolute
// path, which the caller need not be allowed to open. It returns false if the list of sockets cannot be read.
func Listening(path string) bool {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// Fields of a line: number, references, protocol, flags, type, state, inode, path.
		entry, found := strings.CutSuffix(lines.Text(), " "+path)
		fields := strings.Fields(entry)
		if found && len(fields) == 7 && fields[3] == "00010000" { // __SO_ACCEPTCON
			return true
		}
	}
	return false
}

// connected reports whether a socket in a state is connected and its peer has not closed
// it.
func connected(state byte) bool {
	return state == stateEstablished || state == stateFinWait1 || state == stateFinWait2
}

// socketFiles list the TCP sockets of this network namespace.
var socketFiles = []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"}

// Fields of a line: number, local, remote, state, queues, timer, retransmissions,
// user, timeout, inode.
const userField, inodeField = 7, 9

// socketFields returns the fields of the line for the socket with these addresses, or nil
// if there is no such line.
func socketFields(local, remote netip.AddrPort) ([]string, error) {
	for _, file := range socketFiles {
		fields, err := findSocket(file, local, remote)
		if fields != nil || err != nil && !errors.Is(err, fs.ErrNotExist) { // the file for IPv6 may not exist
			return fields, err
		}
	}
	return nil, nil
}

// findSocket searches one file for socketFields.
func findSocket(file string, local, remote netip.AddrPort) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Compare the ports as text, so that most lines need no parsing.
	ports := [2]string{fmt.Sprintf(":%04X", local.Port()), fmt.Sprintf(":%04X", remote.Port())}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), ports[0]) {
			continue
		}
		fields := strings.Fields(lines.Text())
		if len(fields) <= inodeField || !strings.HasSuffix(fields[1], ports[0]) || !strings.HasSuffix(fields[2], ports[1]) ||
			address(fields[1]) != local.Addr() || address(fields[2]) != remote.Addr() {
			continue
		}
		return fields, nil
	}
	return nil, lines.Err()
}

// address parses the address before the colon: 32-bit words in this machine's byte order.
func address(field string) netip.Addr {
	text, _, _ := strings.Cut(field, ":")
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw)%4 != 0 {
		return netip.Addr{}
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	a, _ := netip.AddrFromSlice(raw)
	return a.Unmap()
}
