// Package gpuclaim lets the token daemons of a machine find each other. A daemon that
// hands out a GPU's time claims the GPU; another daemon that also wants it learns which
// process has the claim. A claim is advisory: any user can take it, so it never keeps a
// daemon from its work.
//
// A claim is a socket in the kernel's abstract namespace, which all users of a network
// namespace share. It needs no file, ends with its process, and lets the kernel say
// whose it is.
package gpuclaim

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// patience is how long the holder of a claim may take to name its run directory.
const patience = time.Second

// Claims are those of one daemon.
type Claims struct {
	runDir string
	mu     sync.Mutex
	held   map[string]net.Listener
	closed bool
}

// New returns the claims of the daemon of that run directory: none so far.
func New(runDir string) *Claims { return &Claims{runDir: runDir, held: map[string]net.Listener{}} }

// Other is the process that holds the claim on a GPU.
type Other struct {
	GPU    string
	UID    int    // -1 if it is not known
	PID    int    // 0 if it is not known
	RunDir string // as the process says; empty if it says nothing, and so may be no daemon
}

// Take claims a GPU. It returns nil if this daemon has the claim now, or if claims do
// not work here.
func (c *Claims) Take(name string) *Other {
	key, err := address(name)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.held[key] != nil {
		return nil
	}
	l, err := net.Listen("unix", key)
	if err != nil {
		return Holder(name)
	}
	c.held[key] = l
	go c.serve(l)
	return nil
}

// serve names the run directory to all that ask.
func (c *Claims) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, c.runDir+"\n") // fits the socket's buffer
		_ = conn.Close()
	}
}

// Close gives up all claims.
func (c *Claims) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, l := range c.held {
		_ = l.Close()
	}
}

// Holder returns the process that holds the claim on a GPU, or nil.
func Holder(name string) *Other {
	key, err := address(name)
	if err != nil {
		return nil
	}
	conn, err := net.DialTimeout("unix", key, patience)
	if err != nil {
		return nil
	}
	defer conn.Close()
	o := &Other{GPU: name, UID: -1}
	if raw, err := conn.(*net.UnixConn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				o.UID, o.PID = int(cred.Uid), int(cred.Pid)
			}
		})
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	line, err := bufio.NewReader(io.LimitReader(conn, wire.MaxSocketPath+1)).ReadString('\n')
	if dir := strings.TrimSuffix(line, "\n"); err == nil && plain(dir) {
		o.RunDir = dir
	}
	return o
}

// plain reports whether a text from another process is a path that can be printed and
// typed in as it is.
func plain(path string) bool {
	odd := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+@", r))
	}
	return filepath.IsAbs(path) && !strings.ContainsFunc(path, odd)
}

// address is that of a GPU's claim. Simulated GPUs are those of a folder; in the default
// folders each user has one of one's own, and they stand for the machine's one GPU.
func address(name string) (string, error) {
	d, err := gpu.ParseDevice(name)
	if err != nil {
		return "", err
	}
	key := d.String()
	if d.Simulated && os.Getenv("GFAAS_SIM_DIR") != "" {
		dir, err := filepath.Abs(simgpu.Dir())
		if err != nil {
			return "", err
		}
		key += fmt.Sprintf("-%x", sha256.Sum256([]byte(dir)))[:17]
	}
	return "@gfaas-gpu-" + key, nil
}

// Owner names the user of the process.
func (o *Other) Owner() string {
	if o.UID < 0 {
		return "a user who is not known"
	}
	if u, err := user.LookupId(strconv.Itoa(o.UID)); err == nil {
		return "user " + u.Username
	}
	return fmt.Sprintf("user %d", o.UID)
}

// String says whose the GPU is and how to join that daemon.
func (o *Other) String() string {
	who := fmt.Sprintf("process %d of %s", o.PID, o.Owner())
	if o.RunDir == "" {
		return fmt.Sprintf("GPU %s is claimed by %s, which names no run directory and may be no gfaas-tokend: if it is one, both hand out the whole GPU", o.GPU, who)
	}
	text := fmt.Sprintf("GPU %s is already shared out by another gfaas-tokend, %s, in %s: both hand out the whole GPU, so quotas are not kept; ", o.GPU, who, o.RunDir)
	if o.UID == os.Geteuid() {
		return text + "to join that one, set GFAAS_RUN_DIR=" + o.RunDir
	}
	as := "'#" + strconv.Itoa(o.UID) + "'"
	if u, err := user.LookupId(strconv.Itoa(o.UID)); err == nil {
		as = u.Username
	}
	return text + "to join that one, run as its user: sudo -u " + as + " gfaas run …, with GFAAS_RUN_DIR=" + o.RunDir + "; for a team see docs/how-to/team-on-one-gpu.md"
}
