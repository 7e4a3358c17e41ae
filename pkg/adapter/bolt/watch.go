package bolt

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

const (
	// lookEvery is how often a watch asks whether the file is another. Asking
	// takes a microsecond and works on every file system, for a file that is not
	// there yet and for one that is replaced; inotify would do neither.
	lookEvery = 20 * time.Millisecond
	// settled is for how long a file was not written when its time tells that it
	// has not been written since: two writes can have one time, on some file
	// systems for two seconds.
	settled = 2 * time.Second
)

// seen is the state as it was last read.
type seen struct {
	mu        sync.Mutex
	stamp     stamp
	listing   ports.Listing
	functions map[string]parsed[function.Function]
	instances map[string]parsed[instance.Record]

	telling sync.Mutex
	written chan struct{} // closed and replaced when this process has written
}

// parsed is what was read, and what it means.
type parsed[T any] struct {
	text  []byte
	value T
}

// stamp tells one content of the file from another, if it is not recent. Its ctime
// does where a backup has the size and mtime of the file that it replaces.
type stamp struct {
	device uint64
	inode  uint64
	size   int64
	mtime  time.Time
	ctime  time.Time
	recent bool // written just now: the next content may have the same stamp
}

func (d *DB) stamp() (stamp, error) {
	info, err := os.Stat(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return stamp{}, nil
	}
	if err != nil {
		return stamp{}, &FileError{Path: d.path, Err: err}
	}
	s := stamp{size: info.Size(), mtime: info.ModTime(), recent: time.Since(info.ModTime()) < settled}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.device, s.inode, s.ctime = sys.Dev, sys.Ino, time.Unix(sys.Ctim.Unix())
	}
	return s, nil
}

// tell wakes those who watch, after a write of this process.
func (s *seen) tell() {
	s.telling.Lock()
	defer s.telling.Unlock()
	close(s.written)
	s.written = make(chan struct{})
}

func (s *seen) news() <-chan struct{} {
	s.telling.Lock()
	defer s.telling.Unlock()
	return s.written
}

// Look returns the state. Of a file that is as it was, nothing is read; of one
// that is not, what is as it was is not parsed.
func (d *DB) Look(ctx context.Context) (ports.Listing, error) {
	s := &d.seen
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return ports.Listing{}, err
	}
	// Before it is read: what is written meanwhile has another one.
	now, err := d.stamp()
	if err != nil {
		return ports.Listing{}, err
	}
	if s.listing.Revision > 0 && now == s.stamp && !now.recent {
		return s.listing, nil
	}
	functions, instances := map[string]parsed[function.Function]{}, map[string]parsed[instance.Record]{}
	next := ports.Listing{Revision: s.listing.Revision}
	changed := next.Revision == 0
	err = d.view(ctx, func(tx *bbolt.Tx) error {
		more, err := read(tx.Bucket(functionsBucket), s.functions, functions, &next.Functions, decodeFunction)
		changed = changed || more
		if err != nil {
			return d.damaged(err)
		}
		more, err = read(tx.Bucket(instancesBucket), s.instances, instances, &next.Instances, decodeRecord)
		changed = changed || more
		if err != nil {
			return d.damaged(err)
		}
		return nil
	})
	if err != nil {
		return ports.Listing{}, err
	}
	if changed || len(functions) < len(s.functions) || len(instances) < len(s.instances) {
		next.Revision++
		next.Functions, next.Instances = slices.Clip(next.Functions), slices.Clip(next.Instances)
		s.listing, s.functions, s.instances = next, functions, instances
	}
	s.stamp = now
	return s.listing, nil
}

// read takes all of a bucket, by key, and says whether any of it is new.
func read[T any](bucket *bbolt.Bucket, before, now map[string]parsed[T], list *[]T, decode func(string, []byte) (T, error)) (changed bool, err error) {
	err = bucket.ForEach(func(k, v []byte) error {
		p, known := before[string(k)]
		if !known || !bytes.Equal(p.text, v) {
			changed = true
			if p.value, err = decode(string(k), v); err != nil {
				return err
			}
			p.text = bytes.Clone(v)
		}
		now[string(k)] = p
		*list = append(*list, p.value)
		return nil
	})
	return changed, err
}

// Watch looks when this process has written, and every now and then for what
// others do. A file that somebody keeps locked is looked at again.
func (d *DB) Watch(ctx context.Context, last ports.Revision) (ports.Listing, error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		written := d.seen.news()
		l, err := d.Look(ctx)
		var locked *LockedError
		if err != nil && !errors.As(err, &locked) || err == nil && l.Revision != last {
			return l, err
		}
		select {
		case <-ctx.Done():
			return ports.Listing{}, ctx.Err()
		case <-written:
		case <-tick.C:
		}
	}
}
