package token

import (
	"fmt"
	"strings"

	"github.com/gfaas/gfaas/pkg/wire"
)

// strays counts, by wire.Stray.Kind, the programs that processes of an instance
// have started and that left its slice or would have.
type strays [wire.StrayKinds]struct {
	count int
	last  string // path of the last program
}

// strayKinds say what the programs are.
var strayKinds = [wire.StrayKinds]string{
	wire.StrayRestored: "put back into the slice",
	wire.StrayStatic:   "outside of it, statically linked",
	wire.StrayLibc:     "outside of it, of another libc than glibc",
	wire.StraySetuid:   "outside of it, setuid or setgid",
	wire.StrayCapable:  "outside of it, with file capabilities",
	wire.StrayMachine:  "outside of it, for another machine",
}

// String reads like "2 put back into the slice (last: env)"; it is empty if there
// were none.
func (s *strays) String() string {
	var parts []string
	for kind, k := range s {
		if k.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s (last: %s)", k.count, strayKinds[kind], k.last))
		}
	}
	return strings.Join(parts, "; ")
}

// noteStray counts one and says whether it is the first of its kind. Locked.
func (d *Daemon) noteStray(l *listener, msg wire.Stray) (wire.Message, error) {
	inst, err := d.identify(l, msg.Instance, msg.Secret)
	if err != nil {
		return nil, err
	}
	if msg.Kind >= wire.StrayKinds {
		return nil, fmt.Errorf("kind %d of programs is unknown", msg.Kind)
	}
	of := &inst.strays[msg.Kind]
	of.count++
	of.last = printable(msg.Program.String())
	if of.count > 1 {
		return wire.Noted{}, nil
	}
	d.log.Warn("a program is started that is not held to its slice, or would not have been",
		"instance", inst.reg.Instance, "program", of.last, "is", strayKinds[msg.Kind])
	return wire.Noted{First: 1}, nil
}
