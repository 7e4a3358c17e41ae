package async

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Receivers decides where callbacks may go. The caller of a function chooses the
// receiver, and the gateway reaches services that the caller does not: those that trust
// this machine or its network, and the gateway itself. Callbacks therefore go to public
// addresses only, unless Allow admits the receiver, and never to the gateway.
//
// The decision is made twice: when the call is accepted, so that the caller learns of a
// refusal, and for each connection, on the address that is dialled. The second
// decision also covers names that resolve to another address by then.
type Receivers struct {
	Allow []Allowed
	// Own returns the addresses that the gateway listens on; nil means that there are none.
	Own func() []netip.AddrPort
	// Lookup resolves a host name when a call is accepted; nil uses the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Interfaces returns the addresses of this machine; nil uses net.InterfaceAddrs.
	Interfaces func() ([]net.Addr, error)
}

// lookupTime bounds the lookup of a receiver's name when a call is accepted.
const lookupTime = 2 * time.Second

// Allowed is a set of receivers that need not have public addresses.
type Allowed struct {
	prefix netip.Prefix // invalid if host is set
	host   string       // as hostName returns it
	port   uint16       // 0 is every port
}

var errAllowed = errors.New("expected a CIDR like 10.0.0.0/8, a host or a host:port")

// ParseAllowed parses a CIDR, an IP address or a host name. An address or a name can be
// followed by a port.
func ParseAllowed(text string) (Allowed, error) {
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return Allowed{}, errAllowed
		}
		if addr := prefix.Addr(); addr.Is4In6() && prefix.Bits() >= 96 {
			prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
		}
		return Allowed{prefix: prefix.Masked()}, nil
	}
	host, port := text, uint64(0)
	if name, digits, err := net.SplitHostPort(text); err == nil {
		if port, err = strconv.ParseUint(digits, 10, 16); err != nil || port == 0 {
			return Allowed{}, fmt.Errorf("expected a port from 1 to %d after the host", 1<<16-1)
		}
		host = name
	} else if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		host = strings.TrimSuffix(inner, "]")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" {
			return Allowed{}, fmt.Errorf("expected an address without the zone %%%s", addr.Zone())
		}
		addr = destination(addr)
		return Allowed{prefix: netip.PrefixFrom(addr, addr.BitLen()), port: uint16(port)}, nil
	}
	name := hostName(host)
	if !isHostName(name) {
		return Allowed{}, errAllowed
	}
	return Allowed{host: name, port: uint16(port)}, nil
}

// admits reports whether a callback to that host may be sent to that address, which
// destination has returned.
func (a Allowed) admits(host string, addr netip.Addr, port uint16) bool {
	if a.port != 0 && a.port != port {
		return false
	}
	return a.host != "" && a.host == hostName(host) || a.prefix.Contains(addr) // an invalid prefix contains nothing
}

// hostName returns a host name in the form in which names are compared.
func hostName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// isHostName reports whether a string from hostName can be a DNS name.
func isHostName(name string) bool {
	if name == "" || len(name) > 253 || endsInNumber(name) {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}) {
			return false
		}
	}
	return true
}

// endsInNumber reports whether the last label of a host name is a number, as in 127.1,
// 2130706433 and 0x7f.1. Some resolvers read such a name as an IPv4 address. No
// top-level domain is a number.
func endsInNumber(host string) bool {
	host = strings.TrimSuffix(host, ".")
	last := host[strings.LastIndexByte(host, '.')+1:]
	digits := "0123456789"
	if len(last) > 1 && (last[:2] == "0x" || last[:2] == "0X") {
		last, digits = last[2:], "0123456789abcdefABCDEF"
		if last == "" {
			return true
		}
	}
	return last != "" && strings.Trim(last, digits) == ""
}

// receiverError reports that callbacks may not be sent to a receiver. It leaves out the
// address that a name resolved to, which is not for callers to learn.
type receiverError struct{ host, reason string }

func (e *receiverError) Error() string { return "receiver " + e.host + " " + e.reason }

// check returns a *receiverError if callbacks may not be sent to a URL that CheckCallback
// accepts. A name is refused if any of its addresses is. If the name cannot be
// resolved within lookupTime, check returns nil: the name may exist by the time that
// the callback is sent.
func (r *Receivers) check(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	host := u.Hostname()
	standard := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	port, err := strconv.ParseUint(cmp.Or(u.Port(), standard), 10, 16)
	if err != nil {
		return err
	}
	var addrs []netip.Addr
	if literal, err := netip.ParseAddr(host); err == nil {
		addrs = []netip.Addr{literal}
	} else {
		ctx, cancel := context.WithTimeout(ctx, lookupTime)
		defer cancel()
		addrs, _ = r.lookup(ctx, host)
	}
	local, _ := r.local() // without them, the dialled address is judged later
	for _, addr := range addrs {
		if err := r.checkAddress(host, netip.AddrPortFrom(addr, uint16(port)), local); err != nil {
			return err
		}
	}
	return nil
}

func (r *Receivers) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if r.Lookup != nil {
		return r.Lookup(ctx, host)
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// dial connects to a receiver. It judges each address before it connects to it, and
// returns an error that wraps a *receiverError if it refuses one and reaches no other.
func (r *Receivers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{
		Timeout: callbackTime,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			local, err := r.local()
			if err != nil {
				return fmt.Errorf("cannot list the addresses of this machine: %w", err)
			}
			return r.checkAddress(host, to, local)
		},
	}
	return dialer.DialContext(ctx, network, address)
}

// local returns the addresses of this machine's interfaces.
func (r *Receivers) local() ([]netip.Addr, error) {
	list := r.Interfaces
	if list == nil {
		list = net.InterfaceAddrs
	}
	interfaces, err := list()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, a := range interfaces {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	return addrs, nil
}

// checkAddress returns a *receiverError unless callbacks to that host may be sent to that
// address. local are the addresses of this machine.
func (r *Receivers) checkAddress(host string, to netip.AddrPort, local []netip.Addr) error {
	addr := destination(to.Addr())
	isLocal := addr.IsLoopback() || slices.Contains(local, addr)
	if r.Own != nil {
		for _, own := range r.Own() {
			at := own.Addr().Unmap().WithZone("")
			if own.Port() == to.Port() && (at == addr || at.IsUnspecified() && isLocal) {
				return &receiverError{host, "is this gateway itself, which cannot receive callbacks"}
			}
		}
	}
	if slices.ContainsFunc(r.Allow, func(a Allowed) bool { return a.admits(host, addr, to.Port()) }) {
		return nil
	}
	kind := special(addr)
	if kind == "" && isLocal {
		kind = "an address of this machine"
	}
	if kind != "" {
		return &receiverError{host, "has " + kind + ", which needs --callback-allow of gfaas serve"}
	}
	return nil
}

// destination returns the address that a connection to addr reaches: an IPv4-mapped
// address is the IPv4 address, and the unspecified address is the loopback address.
func destination(addr netip.Addr) netip.Addr {
	switch addr = addr.Unmap().WithZone(""); addr {
	case netip.IPv4Unspecified():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		return netip.IPv6Loopback()
	}
	return addr
}

var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	nat64         = netip.MustParsePrefix("64:ff9b::/96")
)

// specialPurpose lists the networks that are not public, the most specific first: IANA's
// special-purpose registries, the ranges that tunnels embed IPv4 addresses in, and the
// one public address that a cloud platform serves its own machines at (Azure).
var specialPurpose = []struct {
	prefix netip.Prefix
	kind   string
}{
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},
	{netip.MustParsePrefix("::1/128"), "a loopback address"},
	{netip.MustParsePrefix("10.0.0.0/8"), "a private address"},
	{netip.MustParsePrefix("172.16.0.0/12"), "a private address"},
	{netip.MustParsePrefix("192.168.0.0/16"), "a private address"},
	{netip.MustParsePrefix("fc00::/7"), "a private address"},
	{netip.MustParsePrefix("fec0::/10"), "a private address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("168.63.129.16/32"), "a link-local address"}, // in effect
	{netip.MustParsePrefix("100.64.0.0/10"), "a shared address (RFC 6598)"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},
	{netip.MustParsePrefix("255.255.255.255/32"), "a broadcast address"},
	{netip.MustParsePrefix("0.0.0.0/8"), "a reserved address"},
	{netip.MustParsePrefix("192.0.0.0/24"), "a reserved address"},
	{netip.MustParsePrefix("192.0.2.0/24"), "a reserved address"},
	{netip.MustParsePrefix("192.88.99.0/24"), "a reserved address"},
	{netip.MustParsePrefix("198.18.0.0/15"), "a reserved address"},
	{netip.MustParsePrefix("198.51.100.0/24"), "a reserved address"},
	{netip.MustParsePrefix("203.0.113.0/24"), "a reserved address"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved address"},
	{netip.MustParsePrefix("2001::/23"), "a reserved address"}, // with Teredo
	{netip.MustParsePrefix("2001:db8::/32"), "a reserved address"},
	{netip.MustParsePrefix("2002::/16"), "a reserved address"}, // 6to4
	{netip.MustParsePrefix("3fff::/20"), "a reserved address"},
}

// special returns what kind of address addr is if it is not public, else "".
func special(addr netip.Addr) string {
	if nat64.Contains(addr) {
		b := addr.As16()
		return special(netip.AddrFrom4([4]byte(b[12:])))
	}
	for _, s := range specialPurpose {
		if s.prefix.Contains(addr) {
			return s.kind
		}
	}
	if addr.Is6() && !globalUnicast.Contains(addr) {
		return "a reserved address"
	}
	return ""
}
