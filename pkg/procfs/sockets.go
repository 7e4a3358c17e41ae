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
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		uid, found, err = socketUser(file, local, remote)
		if found || err != nil && !errors.Is(err, fs.ErrNotExist) { // without IPv6
			return uid, found, err
		}
	}
	return 0, false, nil
}

func socketUser(file string, local, remote netip.AddrPort) (uid int, found bool, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	// Ports are printed as they are, so that of most lines nothing is parsed.
	ports := [2]string{":" + hexPort(local.Port()), ":" + hexPort(remote.Port())}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), ports[0]) {
			continue
		}
		// Number, local, remote, state, queues, timer, retransmissions, user.
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || !strings.HasSuffix(fields[1], ports[0]) || !strings.HasSuffix(fields[2], ports[1]) ||
			address(fields[1]) != local.Addr() || address(fields[2]) != remote.Addr() {
			continue
		}
		uid, err := strconv.Atoi(fields[7])
		return uid, err == nil, err
	}
	return 0, false, lines.Err()
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
