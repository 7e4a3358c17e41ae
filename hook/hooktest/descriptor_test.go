package hooktest

import (
	"fmt"
	"strings"
	"testing"
)

// TestDescriptors lets a program close the library's descriptors and open its own files
// with the same numbers. The program continues to launch, and the library neither
// reads, writes nor closes the program's files.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for _, which := range []string{"socket", "epoll", "all"} {
		for _, kind := range []string{"closed", "file", "stream", "seqpacket", "pipe", "write", "event", "epoll", "timer"} {
			for _, when := range []string{"idle", "busy"} {
				name := which + "-" + kind + "-" + when
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					h := h.within(t)
					p := h.run(h.register(name, tenth), "check/descriptors", which, kind, when)
					if err := p.wait(); err != nil {
						t.Fatalf("run the program: %v: %s", err, p.errout.String())
					}
					if output := p.errout.String(); output != "" {
						t.Errorf("messages of the program: got %q, want none", output)
					}
					lowest := 0
					if _, err := fmt.Sscan(p.out.String(), &lowest); err != nil || lowest < 256 {
						t.Errorf("the library keeps descriptor %d (%v), want high numbers", lowest, err)
					}
				})
			}
		}
	}
}

// TestFewDescriptors checks that under a low limit on descriptors, the library's
// descriptors still differ from the standard streams'.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for _, limit := range []string{"24", "64", "1000000"} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			h := h.within(t)
			p := h.run(h.register("few-"+limit, tenth), "check/descriptors", "socket", "closed", "idle", limit)
			if err := p.wait(); err != nil {
				t.Fatalf("run the program: %v: %s", err, p.errout.String())
			}
			lowest := 0
			if _, err := fmt.Sscan(p.out.String(), &lowest); err != nil || lowest < 8 || lowest >= 1024 {
				t.Errorf("the library keeps descriptor %d (%v); want at least 8 and less than 1024", lowest, err)
			}
		})
	}
}

// TestDenied lets a program deny itself the system calls with which the library talks
// to the daemon, as sandboxes do. The program continues, and one line names the denied
// call and the reason.
func TestDenied(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for _, row := range []struct{ process, calls, want string }{
		{"thread", "sendto sendmsg", "may not call sendto (Operation not permitted)"},
		{"all", "sendto sendmsg", "may not call sendto (Operation not permitted)"},
		{"all", "recvmsg recvfrom", "may not call recvmsg (Operation not permitted)"},
		{"all", "sendto sendmsg recvmsg recvfrom", "(Operation not permitted)"},
		{"early", "sendto sendmsg", "may not call sendto (Operation not permitted)"},
		{"early", "epoll_ctl", ""},
		{"thread", "epoll_ctl", ""},
		{"all", "epoll_ctl", ""},
		{"all", "socket connect", ""},
	} {
		name := row.process + "-" + strings.ReplaceAll(row.calls, " ", "-")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := h.within(t)
			p := h.run(h.register(name, tenth), "check/denied", append([]string{row.process}, strings.Fields(row.calls)...)...)
			if err := p.wait(); err != nil {
				t.Fatalf("run the program: %v: %s", err, p.errout.String())
			}
			output := p.errout.String()
			if row.want == "" && output != "" || row.want != "" && (strings.Count(output, "\n") != 1 || !strings.Contains(output, row.want)) {
				t.Errorf("messages of the program: got %q, want one line with %q", output, row.want)
			}
		})
	}
}

// TestDeniedConnection denies the system calls for the connection. The program waits,
// and the message names the call; it does not claim that the daemon is missing.
func TestDeniedConnection(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for _, call := range []string{"socket", "connect", "recvmsg"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			h := h.within(t)
			p := h.run(h.register(call, tenth), "check/denied", "early", call)
			h.eventually("the program prints why it waits", func() bool { return strings.Contains(p.errout.String(), "\n") })
			h.alive(p, call)
			if output := p.errout.String(); !strings.Contains(output, "may not call "+call+" (Operation not permitted): GPU work waits") {
				t.Errorf("messages of the program: got %q, want one that it may not call %s", output, call)
			}
		})
	}
}
