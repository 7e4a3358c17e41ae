// Package gpuclaim lets the token daemons of a machine find each other. A daemon that
// hands out a GPU's time claims the GPU; another daemon that also wants it learns which
// process has the claim. A claim is advisory: any user can take it, so it never keeps a
// daemon from its work.
//
// A claim is a socket in the kernel's abstract namespace, which all users of a network
// namespace share. It needs no file, ends with its process, and the kernel reports the
// owner's user and PID.
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

	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// patience is the time limit for the holder of a claim to name its run directory.
const patience = time.Second

// Claims holds the claims of one daemon.
type Claims struct {
	runDir string
	mu     sync.Mutex
	held   map[string]net.Listener
	closed bool
}

// New returns an empty Claims for the daemon of a run directory.
func New(runDir string) *Claims { return &Claims{runDir: runDir, held: map[string]net.Listener{}} }

// Other is the process that holds the claim on a GPU.
type Other struct {
	GPU    string
	UID    int    // -1 if unknown
	PID    int    // 0 if unknown
	RunDir string // as reported by the process; empty if it reports none and so may not be a daemon
}

// Claim claims a GPU. It returns nil if this daemon now holds the claim or if claims do not
// work here, and the holder otherwise.
func (c *Claims) Claim(name string) *Other {
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

// serve sends the run directory to each client.
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

// Close releases all claims.
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
	if cred, err := procfs.Peer(conn.(*net.UnixConn)); err == nil {
		o.UID, o.PID = int(cred.Uid), int(cred.Pid)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	line, err := bufio.NewReader(io.LimitReader(conn, wire.MaxSocketPath+1)).ReadString('\n')
	if dir := strings.TrimSuffix(line, "\n"); err == nil && plain(dir) {
		o.RunDir = dir
	}
	return o
}

// plain reports whether a string from another process is an absolute path without
// characters that need quoting.
func plain(path string) bool {
	odd := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+@", r))
	}
	return filepath.IsAbs(path) && !strings.ContainsFunc(path, odd)
}

// address returns the socket address of a GPU's claim. Simulated GPUs belong to a folder;
// the users' default folders all stand for the machine's one GPU.
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

// Owner returns the user of the process, for messages.
func (o *Other) Owner() string {
	if o.UID < 0 {
		return "an unknown user"
	}
	if u, err := user.LookupId(strconv.Itoa(o.UID)); err == nil {
		return "user " + u.Username
	}
	return fmt.Sprintf("user %d", o.UID)
}

// String describes the conflict and how to join the other daemon.
func (o *Other) String() string {
	who := fmt.Sprintf("process %d of %s", o.PID, o.Owner())
	if o.RunDir == "" {
		return fmt.Sprintf("GPU %s is claimed by %s, which gives no run directory and may not be a gfaas-tokend; if it is, each of the two daemons hands out the whole GPU", o.GPU, who)
	}
	text := fmt.Sprintf("GPU %s is already shared by another gfaas-tokend, %s, in %s: each of the two daemons hands out the whole GPU, so quotas do not hold; ", o.GPU, who, o.RunDir)
	if o.UID == os.Geteuid() {
		return text + "to use that daemon, set GFAAS_RUN_DIR=" + o.RunDir
	}
	return text + Join(o.UID, o.RunDir)
}

// Join returns how to use the token daemon of another user, for messages.
func Join(uid int, runDir string) string {
	as := "'#" + strconv.Itoa(uid) + "'"
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		as = u.Username
	}
	return "to use that daemon, run as its user: sudo -u " + as + " gfaas run …, with GFAAS_RUN_DIR=" + runDir + "; for a team, see docs/how-to/team-on-one-gpu.md"
}
