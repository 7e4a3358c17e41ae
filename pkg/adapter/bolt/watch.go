package bolt

import (
	"context"
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

const (
	// pollInterval is the interval at which Watch checks whether the file has changed. A
	// check takes a microsecond. Unlike inotify, it works on every file system, and for
	// a file that does not exist yet or that is replaced.
	pollInterval = 20 * time.Millisecond
	// settledAge is the age of an mtime from which it identifies the content of a file. On
	// some file systems, two writes within two seconds can have the same mtime.
	settledAge = 2 * time.Second
)

// lastListing is the state that List returned last, and the stamp of the file at that time.
type lastListing struct {
	mu      sync.Mutex
	stamp   stamp
	listing ports.Listing
}

// stamp identifies the content of a file, unless recent is set. Two files with the same
// size and mtime, such as a file and its backup, differ in ctime.
type stamp struct {
	device, inode uint64
	size          int64
	mtime, ctime  unix.Timespec
	recent        bool // written just now: the next content may have the same stamp
}

func (d *DB) stamp() (stamp, error) {
	var st unix.Stat_t
	err := unix.Stat(d.path, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return stamp{}, nil
	}
	if err != nil {
		return stamp{}, &FileError{Path: d.path, Err: err}
	}
	return stamp{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim, time.Since(time.Unix(st.Mtim.Unix())) < settledAge}, nil
}

// List returns the state. It reads nothing while the file is unchanged.
func (d *DB) List(ctx context.Context) (ports.Listing, error) {
	l := &d.lastListing
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return ports.Listing{}, err
	}
	current, err := d.stamp() // before reading, so that a write during or after it changes the stamp
	if err != nil {
		return ports.Listing{}, err
	}
	if l.listing.Revision > 0 && current == l.stamp && !current.recent {
		return l.listing, nil
	}
	s, err := d.view(ctx)
	if err != nil {
		return ports.Listing{}, err
	}
	next := ports.Listing{Revision: l.listing.Revision, Functions: slices.Clip(s.functions), Instances: slices.Clip(s.instances), Applied: map[string]time.Time{}}
	for i, fn := range s.functions {
		if !s.applied[i].IsZero() {
			next.Applied[fn.Name] = s.applied[i]
		}
	}
	if next.Revision == 0 || !reflect.DeepEqual(next, l.listing) {
		next.Revision++
		l.listing = next
	}
	l.stamp = current
	return l.listing, nil
}

// Watch waits until the revision of the state differs from last. While another process
// holds the lock of the file, Watch tries again.
func (d *DB) Watch(ctx context.Context, last ports.Revision) (ports.Listing, error) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		l, err := d.List(ctx)
		var locked *LockedError
		if err != nil && !errors.As(err, &locked) || err == nil && l.Revision != last {
			return l, err
		}
		select {
		case <-ctx.Done():
			return ports.Listing{}, ctx.Err()
		case <-tick.C:
		}
	}
}
