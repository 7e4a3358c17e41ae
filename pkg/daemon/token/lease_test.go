package token

import (
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// TestLeasesAreRenewed: leases are renewed while any is out, and then nothing is.
func TestLeasesAreRenewed(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", 100, 1, 1))
	lease := s.lease(a)
	first := a.Renewals()
	eventually(t, "it is renewed", func() bool { return a.Renewals() > first+3 })
	if got := time.Duration(a.Header().LeaseNS); got < 2*renewEvery {
		t.Errorf("a lease of %v is renewed every %v", got, renewEvery)
	}
	if err := a.Return(lease, time.Millisecond, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is renewed", func() bool {
		out := true
		_ = s.d.locked(func() { out = s.d.leases.out })
		return !out
	})
}

// TestPauseIsNotCharged has a daemon that stood still for ten seconds while a
// client had a lease: it is charged for as long as the lease was in force.
func TestPauseIsNotCharged(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", 100, 0.5, 0.5))
	lease := s.lease(a)
	_ = s.d.locked(func() { // as if the clock had gone on
		s.d.epoch = s.d.epoch.Add(-10 * time.Second)
		s.d.leases.renewed = s.d.leases.renewed.Add(-10 * time.Second)
	})
	if got := s.row("a"); got.DebtMS > 1000 {
		t.Errorf("it owes %v ms", got.DebtMS)
	}
	if err := a.Return(lease, leaseLength, true); err != nil {
		t.Fatal(err)
	}
	s.await(a)
	if charged, _ := s.metric(`gfaas_token_gpu_seconds_total{gpu="sim",instance="a"}`); charged > 2 {
		t.Errorf("it was charged %v s", charged)
	}
}

// TestOtherVersions tells a process with another version of the library, in
// words that it can read, why it cannot work.
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
		t.Errorf("the answer: %v", err)
	}
	binary.LittleEndian.PutUint16(buf[6:], wire.Version)
	refused, err := wire.Parse(buf[:n])
	if r, ok := refused.(wire.Refused); err != nil || !ok || !strings.Contains(r.Reason.String(), "speaks version 1") ||
		!strings.Contains(r.Reason.String(), "start the program again") {
		t.Errorf("the answer: %s, %v", refused, err)
	}
}

// TestUnleased: time without a lease that a process tells of is charged when it asks for a
// lease and when it gives one back, once, and no more than can have passed.
func TestUnleased(t *testing.T) {
	s := serve(t, Config{})
	joined := time.Now()
	a := s.join(reg("a", 100, 1, 1))
	charged := func() (sum time.Duration) {
		_ = s.d.locked(func() {
			for _, g := range s.d.gpus {
				sum += g.sched.Snapshot().Instance("a").Charged
			}
		})
		return sum
	}
	const used = 100 * time.Nanosecond // the request comes later than that
	atomic.StoreUint64(&a.Slot().UnleasedNS, uint64(used))
	lease := s.lease(a)
	if got := charged(); got != used {
		t.Errorf("%v charged with the request, want %v", got, used)
	}
	atomic.StoreUint64(&a.Slot().UnleasedNS, uint64(time.Hour))
	if err := a.Return(lease, 0, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the return is charged", func() bool { return charged() > used })
	if got, most := charged(), used+time.Since(joined); got > most {
		t.Errorf("%v charged within %v", got, most)
	}
}
