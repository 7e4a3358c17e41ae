package token

import (
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/wire"
)

// TestLeasesAreRenewed checks that leases are renewed while one is in force, and not afterwards.
func TestLeasesAreRenewed(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", share{sm: 100, request: 1, limit: 1}))
	lease := s.lease(a)
	first := a.Renewals()
	eventually(t, "the lease of a was renewed four times", func() bool { return a.Renewals() > first+3 })
	if got := time.Duration(a.Header().LeaseNS); got < 2*renewEvery {
		t.Errorf("renewal interval of a lease of %v: got %v, want at most half of it", got, renewEvery)
	}
	if err := a.Return(lease, time.Millisecond, tokentest.WantsNoMore); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no lease is renewed", func() bool {
		out := true
		_ = s.d.locked(func() { out = s.d.registry.gpus.leased })
		return !out
	})
}

// TestPauseIsNotCharged checks that a client is charged only for the time for which its lease was in
// force, if the daemon was stopped for ten seconds.
func TestPauseIsNotCharged(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", share{sm: 100, request: 0.5, limit: 0.5}))
	lease := s.lease(a)
	_ = s.d.locked(func() { // simulates a pause of ten seconds
		s.d.registry.gpus.epoch = s.d.registry.gpus.epoch.Add(-10 * time.Second)
		s.d.registry.gpus.renewed = s.d.registry.gpus.renewed.Add(-10 * time.Second)
	})
	if got := s.row("a"); got.DebtMS > 1000 {
		t.Errorf("debt of a: got %v ms, want at most 1000", got.DebtMS)
	}
	if err := a.Return(lease, leaseLength, tokentest.WantsMore); err != nil {
		t.Fatal(err)
	}
	s.await(a)
	if charged, _ := s.metric(`gfaas_token_gpu_seconds_total{gpu="sim",instance="a"}`); charged > 2 {
		t.Errorf("GPU time charged to a: got %v s, want at most 2", charged)
	}
}

// TestOtherVersions checks that a process with another version of the library receives the reason for
// its refusal in its own version of the protocol.
func TestOtherVersions(t *testing.T) {
	s := serve(t, Config{})
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.clientSocket(), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hello := wire.Append(nil, wire.Hello{})
	binary.LittleEndian.PutUint16(hello[6:], 1)
	if _, err := conn.Write(hello); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, wire.MaxMessage)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	var other wire.VersionError
	if _, err := wire.Parse(buf[:n]); !errors.As(err, &other) || other.Version != 1 {
		t.Errorf("answer to a hello of version 1: got %v, want a message of version 1", err)
	}
	binary.LittleEndian.PutUint16(buf[6:], wire.Version)
	refused, err := wire.Parse(buf[:n])
	if r, ok := refused.(wire.Refused); err != nil || !ok || !strings.Contains(r.Reason.String(), "has version 1") ||
		!strings.Contains(r.Reason.String(), "restart the program") {
		t.Errorf("answer to a hello of version 1: got %s, %v; want a refusal: … has version 1 … restart the program", refused, err)
	}
}

// TestUnleased checks that reported time without a lease is charged once, with a request or a return,
// and not more than the elapsed time.
func TestUnleased(t *testing.T) {
	s := serve(t, Config{})
	joined := time.Now()
	a := s.join(reg("a", share{sm: 100, request: 1, limit: 1}))
	charged := func() (sum time.Duration) {
		_ = s.d.locked(func() {
			for _, g := range s.d.registry.gpus.gpus {
				sum += g.sched.Snapshot().Instance("a").Charged
			}
		})
		return sum
	}
	const used = 100 * time.Nanosecond // less time than until the request
	atomic.StoreUint64(&a.Slot().UnleasedNS, uint64(used))
	lease := s.lease(a)
	if got := charged(); got != used {
		t.Errorf("time charged with the request: got %v, want %v", got, used)
	}
	atomic.StoreUint64(&a.Slot().UnleasedNS, uint64(time.Hour))
	if err := a.Return(lease, 0, tokentest.WantsNoMore); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the time of the returned lease is charged", func() bool { return charged() > used })
	if got, most := charged(), used+time.Since(joined); got > most {
		t.Errorf("time charged: got %v, want at most %v", got, most)
	}
}
