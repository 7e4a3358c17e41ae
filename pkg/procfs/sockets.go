package procfs

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// SocketUser is the user whose TCP socket has that local and that remote address,
// or listens at the local one: the other end of a connection within this machine,
// from before the first byte is sent on it. Found is false where there is no such
// socket in this process's network.
func SocketUser(local, remote netip.AddrPort) (uid int, found bool, err error) {
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	if uid, err := diagUser(local, remote); err == nil {
		return uid, true, nil
	}
	for _, file := range socketFiles {
		uid, found, err = socketUser(file, local, remote)
		if found || err != nil && !errors.Is(err, fs.ErrNotExist) { // without IPv6
			return uid, found, err
		}
	}
	return 0, false, nil
}

// ConnectionUser returns the user whose process holds the established TCP socket with
// these addresses: the other end of a connection within this machine. A process that
// has sent all it has to say (shutdown) still holds its socket. Found is false if
// there is no such socket, and also if no process holds it any more, because the
// kernel may then report uid 0, whoever had it.
func ConnectionUser(local, remote netip.AddrPort) (uid int, found bool, err error) {
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
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

// listedConnectionUser is ConnectionUser where the kernel answers no questions about
// sockets: it reads the lists in /proc.
func listedConnectionUser(local, remote netip.AddrPort) (uid int, found bool, err error) {
	for _, file := range socketFiles {
		fields, err := socketFields(file, local, remote)
		switch {
		case errors.Is(err, fs.ErrNotExist): // without IPv6
			continue
		case err != nil:
			return 0, false, err
		case fields == nil:
			continue
		}
		state, err := strconv.ParseUint(fields[3], 16, 8)
		if err != nil || !connected(byte(state)) || fields[inodeField] == "0" {
			return 0, false, err
		}
		uid, err := strconv.Atoi(fields[userField])
		return uid, err == nil, err
	}
	return 0, false, nil
}

// connected reports whether a socket in a state has connected and not yet been
// closed by its other end.
func connected(state byte) bool {
	return state == stateEstablished || state == stateFinWait1 || state == stateFinWait2
}

// socketFiles list the TCP sockets of this process's network.
var socketFiles = []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"}

// Fields of a line: number, local, remote, state, queues, timer, retransmissions,
// user, timeout, inode.
const userField, inodeField = 7, 9

func socketUser(file string, local, remote netip.AddrPort) (uid int, found bool, err error) {
	fields, err := socketFields(file, local, remote)
	if fields == nil || err != nil {
		return 0, false, err
	}
	uid, err = strconv.Atoi(fields[userField])
	return uid, err == nil, err
}

// socketFields returns the fields of the line for the socket with these addresses, or
// nil if the file has no such line.
func socketFields(file string, local, remote netip.AddrPort) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Ports are printed as they are, so that of most lines nothing is parsed.
	ports := [2]string{":" + hexPort(local.Port()), ":" + hexPort(remote.Port())}
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

func hexPort(port uint16) string {
	return strings.ToUpper(hex.EncodeToString(binary.BigEndian.AppendUint16(nil, port)))
}

// address reads the address before the colon: words of four bytes, each printed as
// this machine's number.
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
