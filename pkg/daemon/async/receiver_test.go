package async

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// names resolves host names in the same way on every machine.
func names(_ context.Context, host string) ([]netip.Addr, error) {
	addrs := map[string][]netip.Addr{
		"receiver":             {netip.MustParseAddr("93.184.216.34")},
		"public.example":       {netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("2606:2800:21f:cb07::1")},
		"local.example":        {netip.MustParseAddr("127.0.0.1")},
		"localhost":            {netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")},
		"mixed.example":        {netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("10.1.2.3")},
		"mapped.example":       {netip.MustParseAddr("::ffff:10.1.2.3")},
		"metadata.example":     {netip.MustParseAddr("169.254.169.254")},
		"this-machine.example": {netip.MustParseAddr("198.35.26.96")},
	}[hostName(host)]
	if addrs == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return addrs, nil
}

// hostAddrs has a public address and a private one.
func hostAddrs() ([]net.Addr, error) {
	var addrs []net.Addr
	for _, text := range []string{"127.0.0.1/8", "::1/128", "198.35.26.96/24", "192.168.7.5/24", "2620:0:861::5/64", "fe80::5/64"} {
		ip, network, err := net.ParseCIDR(text)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, &net.IPNet{IP: ip, Mask: network.Mask})
	}
	return addrs, nil
}

func listening(addrs ...string) func() []netip.AddrPort {
	return func() (own []netip.AddrPort) {
		for _, text := range addrs {
			own = append(own, netip.MustParseAddrPort(text))
		}
		return own
	}
}

func allow(t *testing.T, entries ...string) (allowed []Allowed) {
	t.Helper()
	for _, text := range entries {
		a, err := ParseAllowed(text)
		if err != nil {
			t.Fatalf("parse the allowed receiver %q: %v", text, err)
		}
		allowed = append(allowed, a)
	}
	return allowed
}

// judged returns the caller's error for a callback URL, or "" if it is accepted.
func judged(r Receivers, address string) string {
	err := CheckCallback(address)
	if err == nil {
		err = r.check(context.Background(), address)
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

const itself = "is this gateway itself"

func TestReceiverIsPublic(t *testing.T) {
	r := Receivers{Own: listening("127.0.0.1:8080"), Lookup: names, Interfaces: hostAddrs}
	for address, want := range map[string]string{
		"http://93.184.216.34/":                     "",
		"https://93.184.216.34:8443/x?y":            "",
		"http://[2606:2800:21f:cb07::1]/":           "",
		"http://100.63.255.255/":                    "",
		"http://100.128.0.0/":                       "",
		"http://172.15.255.255/":                    "",
		"http://172.32.0.1/":                        "",
		"http://198.17.255.255/":                    "",
		"http://223.255.255.255/":                   "",
		"http://public.example/":                    "",
		"http://PUBLIC.example.:80/":                "",
		"http://nowhere.example/":                   "", // it may exist later
		"http://[64:ff9b::93.184.216.34]/":          "",
		"http://user:127.0.0.1@public.example/":     "",
		"http://public.example/?@127.0.0.1":         "",
		"http://127.0.0.1/":                         "a loopback address",
		"http://127.255.255.254:9000/":              "a loopback address",
		"http://[::1]/":                             "a loopback address",
		"http://[::1%25lo]/":                        "a loopback address",
		"http://[0:0:0:0:0:0:0:1]/":                 "a loopback address",
		"http://[::ffff:127.0.0.1]/":                "a loopback address",
		"http://[::ffff:7f00:1]/":                   "a loopback address",
		"http://0.0.0.0/":                           "a loopback address",
		"http://[::]/":                              "a loopback address",
		"http://[::ffff:0.0.0.0]/":                  "a loopback address",
		"http://localhost/":                         "a loopback address",
		"http://LocalHost./":                        "a loopback address",
		"https://local.example/":                    "a loopback address",
		"http://public.example@local.example/":      "a loopback address",
		"http://public.example:80@127.0.0.1/":       "a loopback address",
		"http://127.0.0.1/?@public.example":         "a loopback address",
		"http://[64:ff9b::127.0.0.1]/":              "a loopback address",
		"http://10.0.0.1/":                          "a private address",
		"http://172.16.0.1/":                        "a private address",
		"http://172.31.255.255/":                    "a private address",
		"http://192.168.0.1/":                       "a private address",
		"http://[fc00::1]/":                         "a private address",
		"http://[fd00:ec2::254]/":                   "a private address",
		"http://[fec0::1]/":                         "a private address",
		"http://[64:ff9b::a01:203]/":                "a private address",
		"http://mixed.example/":                     "a private address",
		"http://mapped.example/":                    "a private address",
		"http://169.254.169.254/latest/meta-data/":  "a link-local address",
		"http://metadata.example/":                  "a link-local address",
		"http://[fe80::1%25eth0]/":                  "a link-local address",
		"http://[::ffff:a9fe:a9fe]/":                "a link-local address",
		"http://168.63.129.16/":                     "a link-local address",
		"http://100.64.0.1/":                        "a shared address",
		"http://100.100.100.200/":                   "a shared address",
		"http://224.0.0.1/":                         "a multicast address",
		"http://[ff02::1]/":                         "a multicast address",
		"http://255.255.255.255/":                   "a broadcast address",
		"http://0.1.2.3/":                           "a reserved address",
		"http://192.0.0.192/":                       "a reserved address",
		"http://192.0.2.1/":                         "a reserved address",
		"http://198.18.0.1/":                        "a reserved address",
		"http://198.51.100.1/":                      "a reserved address",
		"http://203.0.113.1/":                       "a reserved address",
		"http://240.0.0.1/":                         "a reserved address",
		"http://[::127.0.0.1]/":                     "a reserved address", // IPv4-compatible
		"http://[::93.184.216.34]/":                 "a reserved address",
		"http://[::ffff:0:7f00:1]/":                 "a reserved address", // IPv4-translated
		"http://[64:ff9b:1::1]/":                    "a reserved address",
		"http://[100::1]/":                          "a reserved address",
		"http://[2001::1]/":                         "a reserved address", // Teredo
		"http://[2001:db8::1]/":                     "a reserved address",
		"http://[2002:7f00:1::]/":                   "a reserved address", // 6to4
		"http://[3fff::1]/":                         "a reserved address",
		"http://[5f00::1]/":                         "a reserved address",
		"http://198.35.26.96:9000/":                 "an address of this machine",
		"http://[2620:0:861::5]/":                   "an address of this machine",
		"http://this-machine.example/":              "an address of this machine",
		"http://127.1/":                             "expected a host name",
		"http://2130706433/":                        "expected a host name",
		"http://0x7f000001/":                        "expected a host name",
		"http://0x7f.1/":                            "expected a host name",
		"http://0X7F.0x0.0x0.0x1/":                  "expected a host name",
		"http://0177.0.0.1/":                        "expected a host name",
		"http://017700000001/":                      "expected a host name",
		"http://127.0.0.01/":                        "expected a host name",
		"http://127.0.0.1./":                        "expected a host name",
		"http://127.0.0.0x1/":                       "expected a host name",
		"http://0x/":                                "expected a host name",
		"http://256.256.256.256/":                   "expected a host name",
		"http://%ef%bc%91%ef%bc%92%ef%bc%97.0.0.1/": "expected a host name", // 127 in full-width digits
		"http://%e2%91%a0%e2%91%a1%e2%91%a6/":       "expected a host name", // in circled digits
		"http://public.example:65536/":              "expected a port",
		`http://127.0.0.1\@public.example/`:         "expected an address",
		"http://127.0.0.1%00.public.example/":       "expected an address",
		"http://127.0.0.1%2f@public.example%2f/":    "expected an address",
	} {
		got := judged(r, address)
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("refusal of %s: got %q, want %q", address, got, want)
		}
		if strings.HasPrefix(want, "a") && !strings.Contains(got, "--callback-allow") {
			t.Errorf("refusal of %s: got %q, want a message that names --callback-allow", address, got)
		}
		for _, secret := range []string{"10.1.2.3", "169.254.169.254", "198.35.26.96"} {
			if strings.Contains(got, secret) && !strings.Contains(address, secret) {
				t.Errorf("refusal of %s: got %q, want a message without the address %s that the name resolves to", address, got, secret)
			}
		}
	}
}

// TestReceiverIsNotTheGateway tries the addresses that reach a listener, with every
// address admitted.
func TestReceiverIsNotTheGateway(t *testing.T) {
	everything := allow(t, "0.0.0.0/0", "::/0", "local.example", "localhost:8080", "127.0.0.1:8080", "198.35.26.96")
	for _, c := range []struct {
		own     string
		address string
		want    bool
	}{
		{"127.0.0.1:8080", "http://127.0.0.1:8080/system/functions", true},
		{"127.0.0.1:8080", "http://127.0.0.1:08080/", true},
		{"127.0.0.1:8080", "http://user:password@127.0.0.1:8080/function/f", true},
		{"127.0.0.1:8080", "http://[::ffff:127.0.0.1]:8080/", true},
		{"127.0.0.1:8080", "http://[::ffff:7f00:1]:8080/", true},
		{"127.0.0.1:8080", "http://0.0.0.0:8080/", true},
		{"127.0.0.1:8080", "http://[::ffff:0:0]:8080/", true},
		{"127.0.0.1:8080", "https://127.0.0.1:8080/", true},
		{"127.0.0.1:8080", "http://localhost:8080/", true},
		{"127.0.0.1:8080", "http://LOCALHOST.:8080/", true},
		{"127.0.0.1:8080", "http://local.example:8080/", true},
		{"127.0.0.1:8080", "http://127.0.0.1:8081/", false},
		{"127.0.0.1:8080", "http://127.0.0.1/", false},
		{"127.0.0.1:8080", "http://127.0.0.2:8080/", false},
		{"127.0.0.1:8080", "http://198.35.26.96:8080/", false},
		{"127.0.0.1:8080", "http://93.184.216.34:8080/", false},
		{"127.0.0.1:80", "http://127.0.0.1/", true},
		{"127.0.0.1:443", "https://local.example/", true},
		{"127.0.0.1:443", "http://local.example/", false},
		{"[::1]:8080", "http://[::1]:8080/", true},
		{"[::1]:8080", "http://[::]:8080/", true},
		{"[::1]:8080", "http://[0:0::1%25lo]:8080/", true},
		{"[::1]:8080", "http://localhost:8080/", true},
		{"[::1]:8080", "http://127.0.0.1:8080/", false},
		{"0.0.0.0:8080", "http://127.0.0.1:8080/", true},
		{"0.0.0.0:8080", "http://127.9.9.9:8080/", true},
		{"0.0.0.0:8080", "http://198.35.26.96:8080/", true},
		{"0.0.0.0:8080", "http://192.168.7.5:8080/", true},
		{"0.0.0.0:8080", "http://this-machine.example:8080/", true},
		{"0.0.0.0:8080", "http://198.35.26.97:8080/", false},
		{"0.0.0.0:8080", "http://198.35.26.96:8081/", false},
		{"[::]:8080", "http://127.9.9.9:8080/", true},
		{"[::]:8080", "http://192.168.7.5:8080/", true},
		{"[::]:8080", "http://[2620:0:861::5]:8080/", true},
		{"[::]:8080", "http://[fe80::5%25eth0]:8080/", true},
		{"[::]:8080", "http://[::1]:8080/", true},
		{"[::ffff:0.0.0.0]:8080", "http://127.0.0.1:8080/", true}, // as net.TCPAddr has it
		{"198.35.26.96:8080", "http://this-machine.example:8080/", true},
		{"198.35.26.96:8080", "http://127.0.0.1:8080/", false},
	} {
		r := Receivers{Allow: everything, Own: listening("127.0.0.1:9999", c.own), Lookup: names, Interfaces: hostAddrs}
		if got := judged(r, c.address); strings.Contains(got, itself) != c.want || got != "" && !c.want {
			t.Errorf("listening at %s, callback to %s: got %q, want refused %v", c.own, c.address, got, c.want)
		}
	}
}

func TestAllowedReceivers(t *testing.T) {
	for _, c := range []struct {
		entries []string
		address string
		want    bool
	}{
		{[]string{"127.0.0.0/8"}, "http://127.0.0.1:9000/", true},
		{[]string{"127.0.0.0/8"}, "http://[::ffff:127.0.0.1]:9000/", true},
		{[]string{"127.0.0.0/8"}, "http://0.0.0.0:9000/", true},
		{[]string{"127.0.0.0/8"}, "http://local.example/", true},
		{[]string{"127.0.0.0/8"}, "http://localhost/", false}, // it is ::1 as well
		{[]string{"127.0.0.0/8", "::1"}, "http://localhost/", true},
		{[]string{"127.0.0.0/8"}, "http://10.1.2.3/", false},
		{[]string{"127.0.0.1/8"}, "http://127.9.9.9/", true},
		{[]string{"::ffff:127.0.0.0/104"}, "http://127.9.9.9/", true},
		{[]string{"127.0.0.1"}, "http://127.0.0.1:9000/", true},
		{[]string{"127.0.0.1"}, "http://127.0.0.2:9000/", false},
		{[]string{"::ffff:127.0.0.1"}, "http://127.0.0.1:9000/", true},
		{[]string{"127.0.0.1:9000"}, "http://127.0.0.1:9000/", true},
		{[]string{"127.0.0.1:9000"}, "http://127.0.0.1:9001/", false},
		{[]string{"::1"}, "http://[::1]:9000/", true},
		{[]string{"[::1]"}, "http://[::1]:9000/", true},
		{[]string{"[::1]:9000"}, "http://[::1]:9000/", true},
		{[]string{"[::1]:9000"}, "http://[::1]:9001/", false},
		{[]string{"10.0.0.0/8"}, "http://mixed.example/", true},
		{[]string{"10.0.0.0/8"}, "http://mapped.example/", true},
		{[]string{"10.0.0.0/8"}, "http://[64:ff9b::10.1.2.3]/", false},
		{[]string{"198.35.26.96"}, "http://this-machine.example/", true},
		{[]string{"local.example"}, "http://local.example:9000/", true},
		{[]string{"LOCAL.example."}, "http://Local.Example:9000/", true},
		{[]string{"local.example"}, "http://local.example.:9000/", true},
		{[]string{"local.example:9000"}, "http://local.example:9000/", true},
		{[]string{"local.example:9000"}, "http://local.example/", false},
		{[]string{"local.example"}, "http://localhost/", false},
		{[]string{"local.example"}, "http://127.0.0.1/", false},
		{[]string{"example"}, "http://local.example/", false},
		{[]string{"local.example"}, "http://x.local.example@localhost/", false},
		{[]string{"metadata.example"}, "http://metadata.example/", true},
		{nil, "http://127.0.0.1/", false},
	} {
		r := Receivers{Allow: allow(t, c.entries...), Own: listening("127.0.0.1:8080"), Lookup: names, Interfaces: hostAddrs}
		if got := judged(r, c.address); (got == "") != c.want {
			t.Errorf("with %v, callback to %s: got %q, want accepted %v", c.entries, c.address, got, c.want)
		}
	}
	for _, bad := range []string{
		"", " ", "/", "10.0.0.0/", "10.0.0.0/33", "10.0.0/8", "/8", "host/8", "http://host", "http://host/", "*", "*.example", "a b", "host:", "host:0",
		"host:65536", "host:http", "host:1:2", ":9000", "127.1", "2130706433", "0x7f.1", "127.0.0.1.", "fe80::1%eth0", "fe80::%eth0/10", "..", "a..b", "[::1",
		strings.Repeat("x", 64), "user@host", "häst", "127.0.0.1:", "127.0.0.1:99999",
	} {
		if a, err := ParseAllowed(bad); err == nil {
			t.Errorf("parse the allowed receiver %q: got %+v, want an error", bad, a)
		}
	}
}

// TestReceiverIsJudgedWhenDialled sends answers to a server on loopback. In each case, the
// call is accepted: the name resolved to another address, or the call was stored before the
// rule applied.
func TestReceiverIsJudgedWhenDialled(t *testing.T) {
	var hits atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer server.Close()
	elsewhere := httptest.NewServer(http.RedirectHandler(server.URL, http.StatusTemporaryRedirect))
	defer elsewhere.Close()
	port := func(s *httptest.Server) string { return s.URL[strings.LastIndexByte(s.URL, ':'):] }
	public := func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
	}
	const once, refused = "gfaas_callbacks_total ok 1", "gfaas_callbacks_total failed 1"
	for _, c := range []struct {
		name    string
		before  Receivers // when the call is accepted
		after   Receivers
		address string
		hits    int32
		counted string
	}{
		{"admitted", Receivers{Allow: allow(t, "127.0.0.1")}, Receivers{Allow: allow(t, "127.0.0.1")}, server.URL, 1, once},
		{"host admitted", Receivers{Allow: allow(t, "localhost"+port(server))}, Receivers{Allow: allow(t, "localhost"+port(server))}, "http://localhost" + port(server), 1, once},
		{"name resolves anew", Receivers{Lookup: public}, Receivers{Lookup: public}, "http://localhost" + port(server), 0, refused},
		{"name did not resolve", Receivers{Lookup: names}, Receivers{}, "http://localhost" + port(server), 0, refused},
		{"from before the rule", Receivers{Allow: allow(t, "0.0.0.0/0")}, Receivers{}, server.URL, 0, refused},
		{"another port admitted", Receivers{Allow: allow(t, "127.0.0.1")}, Receivers{Allow: allow(t, "127.0.0.1:1")}, server.URL, 0, refused},
		{"the unspecified address", Receivers{Allow: allow(t, "127.0.0.1")}, Receivers{}, "http://0.0.0.0" + port(server), 0, refused},
		{"a mapped address", Receivers{Allow: allow(t, "127.0.0.1")}, Receivers{}, "http://[::ffff:127.0.0.1]" + port(server), 0, refused},
		{"now the gateway", Receivers{Allow: allow(t, "127.0.0.1", "localhost")}, Receivers{
			Allow: allow(t, "0.0.0.0/0", "::/0", "localhost"), Own: listening("0.0.0.0" + port(server)),
		}, "http://localhost" + port(server), 0, refused},
		{"over TLS", Receivers{Lookup: public}, Receivers{}, "https://localhost" + port(server), 0, refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			hits.Store(0)
			w := newWorld(t)
			w.stop()
			w.cfg.Transport = nil
			reopen := func(r Receivers) {
				w.cfg.Receivers = r
				w.open()
			}
			if c.name == "name did not resolve" {
				c.before.Lookup = func(ctx context.Context, _ string) ([]netip.Addr, error) { return names(ctx, "nowhere.example") }
			}
			reopen(c.before)
			w.accept("a", func(r *Request) { r.Header.Set("X-Callback-Url", c.address) })
			w.stop()
			reopen(c.after)
			defer func() { w.stop() }()
			w.Start()
			for deadline := time.Now().Add(patience); w.Pending() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the call has not ended after %v; events: %s", patience, w.eventLog())
				}
			}
			state := map[string]string{once: "done", refused: "failed"}[c.counted]
			w.checkStatus("a", state, 1, 200)
			if got := counted(t, w.Queue); !strings.HasSuffix(got, c.counted) || strings.Contains(got, "retried") {
				t.Errorf("metrics of callbacks: got %s, want %s and no retries", got, c.counted)
			}
			if got := hits.Load(); got != c.hits {
				t.Errorf("the receiver got %d requests, want %d", got, c.hits)
			}
		})
	}
	t.Run("redirect", func(t *testing.T) {
		hits.Store(0)
		w := newWorld(t)
		w.stop()
		w.cfg.Transport, w.cfg.CallbackRetries = nil, 0
		w.cfg.Receivers = Receivers{Allow: allow(t, "127.0.0.1")}
		w.open()
		defer w.stop()
		w.accept("a", func(r *Request) { r.Header.Set("X-Callback-Url", elsewhere.URL) })
		w.Start()
		for deadline := time.Now().Add(patience); w.Pending() > 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		w.checkStatus("a", "failed", 1, 200)
		if got := hits.Load(); got != 0 {
			t.Errorf("the target of the redirect got %d requests, want 0", got)
		}
	})
}

// TestRepeatedCallIsNotJudgedAgain checks that the repetition of an accepted call is
// accepted, even if its receiver is refused by now.
func TestRepeatedCallIsNotJudgedAgain(t *testing.T) {
	w := newWorld(t)
	w.accept("a", withCallback)
	w.stop()
	lookups := 0
	w.cfg.Receivers.Lookup = func(context.Context, string) ([]netip.Addr, error) {
		lookups++
		return []netip.Addr{netip.MustParseAddr("10.1.2.3")}, nil
	}
	w.open()
	defer func() { w.stop() }()
	w.accept("a", withCallback)
	if lookups != 0 {
		t.Errorf("lookups for a repeated call: got %d, want 0", lookups)
	}
	var refused *CallbackError
	if err := w.Accept(Request{ID: "b", Function: "f", Header: http.Header{"X-Callback-Url": {"http://receiver/x"}}}); !errors.As(err, &refused) {
		t.Errorf("a new call: got %v, want a *CallbackError", err)
	}
}

// TestReceiverIsDialledDirectly checks that callbacks use no proxy, because the judged
// address would then be the proxy's.
func TestReceiverIsDialledDirectly(t *testing.T) {
	w := newWorld(t)
	w.stop()
	w.cfg.Transport = nil
	w.open()
	defer w.stop()
	if w.client.Transport.(*http.Transport).Proxy != nil {
		t.Error("the transport of callbacks has a proxy, want none")
	}
}

// TestReceiverWithSlowLookup checks that a resolver that does not answer delays only the
// call that names the host, by two seconds.
func TestReceiverWithSlowLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stop()
		w.cfg.Receivers.Lookup = func(ctx context.Context, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		w.open()
		defer func() { w.stop() }()
		began := time.Now()
		accepted := make(chan error)
		go func() {
			accepted <- w.Accept(Request{ID: "a", Function: "f", Header: http.Header{"X-Callback-Url": {"http://receiver/"}}})
		}()
		synctest.Wait()
		w.accept("b", nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("another call was accepted after %v, want 0s", took)
		}
		if err := <-accepted; err != nil || time.Since(began) != lookupTime {
			t.Errorf("accept a call whose lookup hangs: got %v after %v, want no error after %v", err, time.Since(began), lookupTime)
		}
		w.checkStatus("a", "queued", 0, 0)
	})
}

// TestReceiverWithUnknownInterfaces checks that, while the machine's addresses cannot be
// listed, no answer is sent, and none is given up.
func TestReceiverWithUnknownInterfaces(t *testing.T) {
	failed := errors.New("no descriptors are free")
	r := Receivers{Interfaces: func() ([]net.Addr, error) { return nil, failed }, Lookup: names}
	if got := judged(r, "http://public.example/"); got != "" {
		t.Errorf("refusal of http://public.example/: got %q, want none", got)
	}
	if got := judged(r, "http://local.example/"); !strings.Contains(got, "a loopback address") {
		t.Errorf("refusal of http://local.example/: got %q, want a refusal as a loopback address", got)
	}
	conn, err := r.dial(t.Context(), "tcp", "127.0.0.1:9")
	if conn != nil || !errors.Is(err, failed) || errors.As(err, new(*receiverError)) {
		t.Errorf("dial 127.0.0.1:9: got %v, %v, want %v", conn, err, failed)
	}
}

func FuzzParseAllowed(f *testing.F) {
	for _, text := range []string{"10.0.0.0/8", "[::1]:9000", "host.example:80", "::ffff:1.2.3.4/100", "fe80::1%x", "a/b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAllowed(text)
		if err == nil && a.prefix.IsValid() == (a.host != "") {
			t.Errorf("parse %q: got %+v, want either an address or a host", text, a)
		}
	})
}

// FuzzReceiver checks that no spelling of an address that is not public is accepted.
func FuzzReceiver(f *testing.F) {
	for _, text := range []string{"http://127.0.0.1/", "http://[::ffff:10.0.0.1]:80", "http://a@0x7f.1/", "https://[fe80::1%25x]/", "http://93.184.216.34", "http://%e2%91%a0/"} {
		f.Add(text)
	}
	r := Receivers{Lookup: names, Interfaces: hostAddrs}
	f.Fuzz(func(t *testing.T, text string) {
		if judged(r, text) != "" {
			return
		}
		u, err := url.Parse(text)
		if err != nil || text == "" {
			return
		}
		addr, err := netip.ParseAddr(u.Hostname())
		if addr = addr.Unmap(); err == nil && (addr.IsLoopback() || addr.IsPrivate() || addr.IsUnspecified() || addr.IsMulticast() || !addr.IsGlobalUnicast()) {
			t.Errorf("receiver %q: accepted with the address %v, want a refusal", text, addr)
		}
	})
}
