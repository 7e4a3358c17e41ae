package token

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	instances "github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// rejoin is how long after its start a daemon waits for the processes of an
// instance whose owner is dead.
const rejoin = 2 * time.Second

// instance is a registered instance.
type instance struct {
	reg         wire.Registration   // without the secret
	secret      [sha256.Size]byte   // its hash
	ownerStart  uint64              // tells the owner from a later process of the same number
	watched     bool                // the owner was seen alive, and nothing was done about its end
	allocations []*allocation       // as its processes count their devices
	listener    *instanceListener   // its own; nil until Serve, or if there is none to be had
	loose       bool                // nothing holds it to its SM share
	strays      strays              // what its processes have started
	fault       *wire.InstanceFault // the first CUDA error that ended a process's use of CUDA; nil if there was none
	mps         string              // pipe directory of the MPS server that its processes are clients of; empty without one

	members    map[int]uint64             // its processes at the last census, and when they began
	outside    int                        // those that the library is not in
	leader     int                        // the first of them that leads a session; 0 if there is none
	unmanaged  map[process]wire.Unmanaged // those that use the driver without the library, and live
	found      []wire.Unmanaged           // the last of those that ever did, in the order in which they were found
	foundInAll int
	news       chan struct{} // closed when another is found; nil while nobody waits for that

	parked parking    // its memory waits on the host
	moves  sync.Mutex // of its memory, one at a time; taken before all others
}

// connected counts the connections of the instance's processes.
func (i *instance) connected() (n int) {
	for _, a := range i.allocations {
		n += a.connected
	}
	return n
}

// began is when the instance's processes that are connected did, by their number.
func (i *instance) began() map[int]uint64 {
	out := map[int]uint64{}
	for _, a := range i.allocations {
		for _, c := range a.clients {
			if c != nil && c.pid > 0 {
				out[c.pid] = c.start
			}
		}
	}
	return out
}

// alive says whether there are processes that use the instance's slice, or may use the
// GPU beside it: who has ended may be connected still.
func (i *instance) alive() bool {
	if i.outside > 0 {
		return true
	}
	for _, a := range i.allocations {
		for _, c := range a.clients {
			if c != nil && c.pid != 0 && procfs.Alive(c.pid) && !c.gone() {
				return true
			}
		}
	}
	return false
}

// ownerDead says whether the instance had an owner that is gone. One that cannot be
// looked at is not.
func (i *instance) ownerDead() bool {
	if i.reg.OwnerPID == 0 {
		return false
	}
	lives, err := procfs.Lives(i.reg.OwnerPID, i.ownerStart)
	return err == nil && !lives
}

// errIdentity does not say which of the two is wrong.
var errIdentity = errors.New("instance and secret do not match a registration")

// identify finds the instance that a process says it is of: it must know the
// secret, and have connected where it may.
func (d *Daemon) identify(l *listener, id, secret wire.Name) (*instance, error) {
	inst, known := d.instances[id.String()]
	want := [sha256.Size]byte{}
	if known {
		want = inst.secret
	}
	got := sha256.Sum256([]byte(secret.String()))
	if subtle.ConstantTimeCompare(got[:], want[:]) == 0 || !known || l.instance != "" && l.instance != inst.reg.Instance {
		return nil, errIdentity
	}
	return inst, nil
}

// join lets a process in, unless it is another instance's, and finds which of the
// instance's GPUs the connection is for.
func (d *Daemon) join(conn *net.UnixConn, l *listener, hello wire.Hello, older bool, cred unix.Ucred, above []ancestor) error {
	inst, err := d.identify(l, hello.Instance, hello.Secret)
	if err != nil {
		return err
	}
	if other := d.inside(above, inst.reg.Instance); other != "" {
		return fmt.Errorf("process %d runs inside instance %s", cred.Pid, other)
	}
	if uint64(hello.Device) >= uint64(len(inst.allocations)) {
		return fmt.Errorf("instance %s has %d GPU(s): there is no device %d", inst.reg.Instance, len(inst.allocations), hello.Device)
	}
	return inst.allocations[hello.Device].admit(d, conn, hello.MemUsed, older, cred, above)
}

// add makes an instance known or replaces one that admits says may be.
func (d *Daemon) add(fresh *instance) {
	id := fresh.reg.Instance
	if old, ok := d.instances[id]; ok {
		if old.secret != fresh.secret { // another's by that name
			if old.orphaned() {
				d.orphan(old)
			}
			old.forget()
			old.fault, old.watched = nil, false
		}
		old.reg, old.secret, old.ownerStart = fresh.reg, fresh.secret, fresh.ownerStart
		if old.listener == nil {
			old.listener = fresh.listener
		}
		fresh = old
	}
	fresh.watched = fresh.watched || !fresh.ownerDead()
	d.instances[id] = fresh
	d.busy = time.Now()
	d.allocate(fresh)
}

// admits says why an instance may not be registered now, if so.
func (d *Daemon) admits(fresh *instance) error {
	old, ok := d.instances[fresh.reg.Instance]
	switch {
	case !ok:
		return nil
	case old.connected() > 0 && (old.secret != fresh.secret || !old.sameGPUs(fresh.reg.Allocations())):
		return fmt.Errorf("instance %s has %d processes: a new secret or GPU is for when they are gone", fresh.reg.Instance, old.connected())
	case old.reg.OwnerPID != 0 && old.secret != fresh.secret && !old.ownerDead():
		return fmt.Errorf("instance %s belongs to process %d", fresh.reg.Instance, old.reg.OwnerPID)
	}
	return nil
}

// remove forgets an instance; its processes stay behind closed gates.
func (d *Daemon) remove(id, why string) bool {
	inst, ok := d.instances[id]
	if !ok {
		return false
	}
	for _, a := range inst.allocations {
		for _, c := range a.clients {
			if c != nil {
				c.hangUp()
				d.leave(c)
			}
		}
	}
	d.deallocate(inst)
	inst.listener.remove()
	delete(d.instances, id)
	d.busy = time.Now()
	d.log.Info("instance removed", "instance", id, "why", why)
	return true
}

// hangUpGone drops processes that have ended while someone else holds their
// connection open. The lock is not held while they are looked at.
func (d *Daemon) hangUpGone() {
	var all []*client
	_ = d.locked(func() { all = slices.Collect(maps.Values(d.clients)) })
	for _, c := range all {
		if c.gone() {
			_ = d.locked(func() {
				if d.clients[c.id] == c {
					c.hangUp()
				}
			})
		}
	}
}

// reap drops instances whose owner is dead and that no process belongs
// to, and takes note of processes that are to end with it.
func (d *Daemon) reap() {
	if d.regMu.TryLock() { // else its file may just be written anew
		for _, inst := range d.sortedInstances() {
			inst.lost() // who leaves may not have ended yet
			if len(inst.waiting()) > 0 {
				d.called(inst) // it may not have fitted before
			}
			if inst.orphaned() {
				d.orphan(inst)
			}
			if inst.connected() == 0 && inst.outside == 0 && inst.ownerDead() && time.Since(d.epoch) >= rejoin {
				d.remove(inst.reg.Instance, "owner is gone")
				d.forgetFile(inst.reg.Instance)
			}
		}
		d.regMu.Unlock()
	}
}

func (d *Daemon) sortedInstances() []*instance {
	var out []*instance
	for _, i := range d.instances {
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b *instance) int { return strings.Compare(a.reg.Instance, b.reg.Instance) })
	return out
}

// prepared takes note of what preparations for an instance came to: where
// there is something to note its SM share holds nobody back.
func (d *Daemon) prepared(i *instance, answer wire.Registered) {
	_ = d.locked(func() {
		known := d.instances[i.reg.Instance]
		if known != nil {
			known.mps = answer.MPSPipeDir
		}
		if loose := answer.Note != ""; known != nil && known.loose != loose {
			known.loose = loose
			d.allocate(known)
		}
	})
}

// record is a registration on disk: the secret is kept as a hash only.
type record struct {
	wire.Registration
	Secret     string `json:"secret,omitempty"` // shadows the one that is not kept
	SecretHash string `json:"secret_sha256"`
	OwnerStart uint64 `json:"owner_start,omitempty"`
	Parked     []int  `json:"parked,omitempty"` // processes whose memory waits on the host
}

// newInstance checks a registration and takes its secret out.
func newInstance(reg wire.Registration) (*instance, error) {
	if err := reg.Validate(); err != nil {
		return nil, err
	}
	i := &instance{secret: sha256.Sum256([]byte(reg.Secret))}
	if reg.OwnerPID != 0 {
		var err error
		if i.ownerStart, err = startTime(reg.OwnerPID); err != nil {
			return nil, fmt.Errorf("instance %s: look at owner_pid: %w", reg.Instance, err)
		}
		if i.ownerStart == 0 {
			return nil, fmt.Errorf("instance %s: owner_pid %d is no process", reg.Instance, reg.OwnerPID)
		}
	}
	reg.Secret = ""
	i.reg = reg
	return i, nil
}

func (d *Daemon) recordPath(id string) string { return filepath.Join(d.instancesDir(), id+".json") }

// encode prints the instance as it is kept on disk. Locked, if it is known.
func (i *instance) encode() ([]byte, error) {
	r := record{Registration: i.reg, SecretHash: hex.EncodeToString(i.secret[:]), OwnerStart: i.ownerStart, Parked: i.parked.pids}
	text, err := json.MarshalIndent(r, "", "  ")
	return append(text, '\n'), err
}

// save writes down an instance that is not known yet, so that the next daemon knows it.
func (d *Daemon) save(i *instance) error {
	text, err := i.encode()
	if err != nil {
		return err
	}
	return d.keep(&i.reg, text)
}

// keep writes what is printed of an instance.
func (d *Daemon) keep(reg *wire.Registration, text []byte) error {
	if reg.OwnerPID != 0 {
		return d.write(reg.Instance, text)
	}
	return renameio.WriteFile(d.recordPath(reg.Instance), text, 0o600)
}

// write keeps the registration of an instance that has an owner for the next daemon,
// not for after the machine has failed: then there is no owner. So whoever registers
// need not wait for the disk.
func (d *Daemon) write(id string, text []byte) error {
	fresh := d.recordPath(id) + ".new" // which is no registration to whoever reads the folder
	err := os.WriteFile(fresh, text, 0o600)
	if err == nil {
		err = os.Rename(fresh, d.recordPath(id))
	}
	if err != nil {
		_ = os.Remove(fresh)
	}
	return err
}

func (d *Daemon) forgetFile(id string) {
	if err := os.Remove(d.recordPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Error("cannot remove a registration", "instance", id, "err", err)
	}
}

// parseRecord reads a registration file.
func parseRecord(text []byte) (*instance, error) {
	var r record
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&r); err != nil {
		return nil, err
	}
	hash, err := hex.DecodeString(r.SecretHash)
	if err != nil || len(hash) != sha256.Size {
		return nil, fmt.Errorf("secret_sha256 %q is no SHA-256", r.SecretHash)
	}
	i := &instance{reg: r.Registration, secret: [sha256.Size]byte(hash), ownerStart: r.OwnerStart, parked: parking{pids: r.Parked}}
	i.reg.Secret = "kept as a hash"
	if err := i.reg.Validate(); err != nil {
		return nil, err
	}
	i.reg.Secret = ""
	return i, nil
}

// loadRegistrations takes over what the daemon before knew. A file that
// cannot be read is left alone and said.
func (d *Daemon) loadRegistrations() error {
	files, err := fs.Glob(os.DirFS(d.instancesDir()), "*.json")
	if err != nil {
		return err
	}
	for _, file := range files {
		path, id := filepath.Join(d.instancesDir(), file), strings.TrimSuffix(file, ".json")
		if !instances.ValidID(id) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			d.log.Error("cannot read a registration", "file", path, "err", err)
			continue
		}
		inst, err := parseRecord(text)
		if err == nil && inst.reg.Instance != id {
			err = fmt.Errorf("it is of instance %q", inst.reg.Instance)
		}
		if err != nil {
			d.log.Error("not a registration", "file", path, "err", err)
			continue
		}
		d.add(inst)
		d.log.Info("instance known from before", "instance", id, "gpu", inst.reg.GPU)
	}
	return nil
}

// startTime tells when a process started, in clock ticks since boot, or 0 if
// there is no such process. A zombie counts as none.
func startTime(pid int) (uint64, error) {
	s, err := procfs.Read(pid)
	switch {
	case procfs.Gone(err), err == nil && s.Ended():
		return 0, nil
	}
	return s.Start, err
}
