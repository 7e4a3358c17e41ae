// Package journal keeps accepted calls on disk until they have ended, and what
// became of them for a while after that.
//
// It is an append-only log with a checksum a record, not bbolt, because of what
// is written: many bodies that are read back once, soon, and then are waste. A
// log takes them with one sequential write and one sync for all that came
// meanwhile, where a B+tree rewrites pages and syncs twice; it gives the disk
// back by removing files, which a bbolt file never does; and damage costs the
// records that it hit.
//
// The folder holds
//
//	lock          held by the one Journal that is open
//	N.log         segments, in the order of N: the header, then records
//	N.body        a body of more than 64 KiB, named by the record of its call
//	reserve       1 MiB to end calls with when the disk is full
//
// A record is the state of a call as it then was, with its body, so that of two
// records of a call the later one says all; or a note, of how often the call has
// been tried since. What a kill left unfinished at the end of a segment is
// ignored, and no segment is written to by a second process. Only the oldest
// segment is ever removed, after what is needed of it was written again at the
// end of the log: so a record that says that a call has ended is there for as
// long as any that says that it has not.
package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
)

// State is how far a call is.
type State string

// The states that are kept.
const (
	Queued   State = "queued"   // to be run
	Callback State = "callback" // its answer is to be delivered
	Done     State = "done"     // it was answered, and the answer delivered if that was asked for
	Failed   State = "failed"
)

// Ended says whether nothing more is to be done.
func (s State) Ended() bool { return s == Done || s == Failed }

func (s State) valid() bool { return s == Queued || s == Callback || s.Ended() }

// Call is what is kept of a call.
type Call struct {
	ID       string    `json:"id"` // tells it from all others
	Function string    `json:"function"`
	State    State     `json:"state"`
	Attempts int       `json:"attempts,omitempty"` // how often it was run
	Posts    int       `json:"posts,omitempty"`    // how often its answer was sent to CallbackURL
	Status   int       `json:"status,omitempty"`   // of its last answer; 0 before there is one
	Accepted time.Time `json:"accepted"`
	Ended    time.Time `json:"ended,omitzero"`

	CallbackURL string `json:"callback_url,omitempty"`
	Content     string `json:"content,omitempty"` // what the caller asked for, to tell a repetition from another call; the owner's

	// While it is queued: the request.
	Path   string `json:"path,omitempty"`   // escaped, after the function's name
	Query  []byte `json:"query,omitempty"`  // as it came
	Header []byte `json:"header,omitempty"` // as in HTTP/1.1
	Host   string `json:"host,omitempty"`
	Remote string `json:"remote,omitempty"` // address of the caller

	// While its answer is to be delivered.
	ContentType string  `json:"content_type,omitempty"`
	Seconds     float64 `json:"seconds,omitempty"` // that it ran, the last time
	GaveUp      bool    `json:"gave_up,omitempty"` // it is no answer of the function, or one to try again after
}

// Errors of a call that cannot be kept or read.
var (
	ErrExists  = errors.New("a call of that id was accepted before")
	ErrUnknown = errors.New("no call has that id")
)

// DamagedError says that a call's record or body is not as it was written.
type DamagedError struct {
	Path string
	Why  string
}

func (e *DamagedError) Error() string { return e.Path + ": " + e.Why }

// LockedError says that another process has the journal open.
type LockedError struct {
	Dir string
	PID int // 0 if that is not known
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("the journal %s is in use", e.Dir)
	}
	return fmt.Sprintf("the journal %s is in use by process %d", e.Dir, e.PID)
}

// Locked marks the error for the exit status.
func (e *LockedError) Locked() bool { return true }

// Options say what a Journal keeps.
type Options struct {
	Retention time.Duration // how long an ended call is remembered
	MaxEnded  int           // how many are, at most: the oldest are forgotten
	Log       *slog.Logger
}

// Journal is open until it is closed. It is safe for concurrent use.
type Journal struct {
	dir   string
	opts  Options
	sizes sizes
	lock  *lockfile.Lock
	began time.Time

	io       sync.Mutex // held by who writes; taken before mu
	segments []*segment // oldest first
	active   *segment   // the last, if this process may write to it
	file     *os.File   // of active
	next     uint64     // number of the next file
	closed   bool

	mu      sync.Mutex
	entries map[string]*entry
	named   map[string][]*entry // those of each name
	ended   []*entry            // in the order of their ends
	batch   *batch              // what the next write writes; nil is nothing
	live    int64               // bytes of records that are needed
	short   bool                // the reserve is not there: the disk is, or was, full
	bodies  uint64              // number of the next body
}

// entry is what is in memory of a call.
type entry struct {
	summary
	at      place
	file    string        // of its body; empty is none
	writing *batch        // that writes its first record; nil once it is on disk
	over    time.Duration // ended: when, as the journal's age
}

// summary is what can be asked of a call without reading the disk.
type summary struct {
	id, function     string
	content          string
	state            State
	attempts, posts  int
	status           int
	accepted, endedT time.Time
}

func summarize(c *Call) summary {
	return summary{id: c.ID, function: c.Function, content: c.Content, state: c.State, attempts: c.Attempts, posts: c.Posts, status: c.Status, accepted: c.Accepted, endedT: c.Ended}
}

func (s summary) call() Call {
	return Call{ID: s.id, Function: s.function, Content: s.content, State: s.state, Attempts: s.attempts, Posts: s.posts, Status: s.status, Accepted: s.accepted, Ended: s.endedT}
}

// Open opens the journal in a folder, which it makes. Where another process has
// it open, the error is a *LockedError. Calls that ended long enough ago are
// forgotten.
func Open(dir string, opts Options) (*Journal, error) { return open(dir, opts, usual) }

func open(dir string, opts Options, sizes sizes) (*Journal, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if err := owndir.Ensure(dir); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	lock, err := lockfile.Take(filepath.Join(dir, "lock"))
	var held *lockfile.HeldError
	switch {
	case errors.As(err, &held):
		return nil, &LockedError{dir, held.PID}
	case err != nil:
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &Journal{dir: dir, opts: opts, sizes: sizes, lock: lock, next: 1, bodies: 1, entries: map[string]*entry{}, named: map[string][]*entry{}, began: time.Now()}
	if err := j.load(); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("journal: %w", err)
	}
	j.Expire(time.Now())
	_ = j.restoreReserve() // else no new calls are taken until it can be
	return j, nil
}

// Close closes the journal. What comes later, or is under way, is not kept.
func (j *Journal) Close() error {
	j.io.Lock()
	defer j.io.Unlock()
	j.closed = true
	var err error
	if j.file != nil {
		err = j.file.Close()
	}
	return errors.Join(err, j.lock.Remove())
}

// Accept keeps a new call, and returns when it is on disk. Where the id is known
// already the error is ErrExists; any other says that the call is not kept, for
// want of space most likely.
func (j *Journal) Accept(c Call, b *Body) error {
	if err := j.settled(c.ID); err != nil {
		return err
	}
	if err := j.roomForNew(); err != nil {
		return err
	}
	if err := b.sync(); err != nil {
		return err
	}
	r, err := newRecord(&c, b)
	if err != nil {
		return err
	}
	j.mu.Lock()
	if j.entries[c.ID] != nil {
		j.mu.Unlock()
		return j.settled(c.ID)
	}
	e := &entry{summary: summarize(&c), file: b.name()}
	j.add(e)
	e.writing = j.join(r, func(at place) { e.at, e.writing = at, nil })
	writing := e.writing
	j.mu.Unlock()
	if err := j.commit(writing); err != nil {
		j.mu.Lock()
		j.remove(e)
		j.mu.Unlock()
		return err
	}
	b.keep()
	return nil
}

// settled waits until a call of that id is on disk, and is nil if there is none
// then.
func (j *Journal) settled(id string) error {
	j.mu.Lock()
	e := j.entries[id]
	var writing *batch
	if e != nil {
		writing = e.writing
	}
	j.mu.Unlock()
	switch {
	case e == nil:
		return nil
	case writing == nil:
		return ErrExists
	}
	<-writing.done
	if writing.err != nil {
		return writing.err
	}
	return ErrExists
}

// Put replaces what is kept of a call, and returns when that is on disk. Unlike
// Accept it uses the reserve where the disk is full, and after an error it may be
// tried again.
func (j *Journal) Put(c Call, b *Body) error {
	if err := b.sync(); err != nil {
		return err
	}
	r, err := newRecord(&c, b)
	if err != nil {
		return err
	}
	j.mu.Lock()
	e := j.entries[c.ID]
	j.mu.Unlock()
	if e == nil {
		return ErrUnknown
	}
	file, old := b.name(), ""
	err = j.insist(r, func(at place) {
		j.drop(e.at)
		old, e.file = e.file, file
		e.summary, e.at = summarize(&c), at
		if e.state.Ended() {
			j.end(e)
		}
	})
	if err != nil {
		return err
	}
	b.keep()
	j.removeBody(old)
	return nil
}

// Note keeps how often a call was run and its answer sent, as Put does.
func (j *Journal) Note(id string, attempts, posts int) error {
	j.mu.Lock()
	e := j.entries[id]
	j.mu.Unlock()
	if e == nil {
		return ErrUnknown
	}
	r, err := encode(head{Note: true, Call: Call{ID: id, Attempts: attempts, Posts: posts}}, nil)
	if err != nil {
		return err
	}
	return j.insist(r, func(at place) {
		j.drop(at) // only its place in the order counts
		e.attempts, e.posts = attempts, posts
	})
}

// Get returns what is kept of a call, less its request and answer.
func (j *Journal) Get(id string) (Call, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.entries[id]
	if e == nil || e.writing != nil {
		return Call{}, false
	}
	return e.call(), true
}

// Separator ends the name of a call in its ID, if it has more than that. Calls of one
// name are found by Named.
const Separator = "\x00"

// NameOf returns the name of a call.
func NameOf(id string) string {
	name, _, _ := strings.Cut(id, Separator)
	return name
}

// add makes a call known. Locked.
func (j *Journal) add(e *entry) {
	j.entries[e.id] = e
	j.named[NameOf(e.id)] = append(j.named[NameOf(e.id)], e)
}

// remove forgets a call. Locked.
func (j *Journal) remove(e *entry) {
	delete(j.entries, e.id)
	name := NameOf(e.id)
	rest := slices.DeleteFunc(j.named[name], func(other *entry) bool { return other == e })
	if j.named[name] = rest; len(rest) == 0 {
		delete(j.named, name)
	}
}

// Named returns the calls whose ID is a name, or begins with it and Separator, as Get
// does, in the order that they were accepted in.
func (j *Journal) Named(name string) []Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Call
	for _, e := range j.named[name] {
		if e.writing == nil {
			out = append(out, e.call())
		}
	}
	slices.SortFunc(out, func(a, b Call) int { return a.Accepted.Compare(b.Accepted) })
	return out
}

// Pending returns the calls that have not ended, as Get does, in the order that
// they were accepted in.
func (j *Journal) Pending() []Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Call
	for _, e := range j.entries {
		if !e.state.Ended() && e.writing == nil {
			out = append(out, e.call())
		}
	}
	slices.SortFunc(out, func(a, b Call) int { return a.Accepted.Compare(b.Accepted) })
	return out
}

// end puts a call with those that ended. The wall's clock says for how long that has
// been so only of what was read from the disk: it may be set, and a call must not be
// run again, or kept for ever, for that.
func (j *Journal) end(e *entry) {
	now := time.Now()
	e.over = now.Sub(j.began) - max(now.Sub(e.endedT), 0)
	j.ended = append(j.ended, e)
}

// Expire forgets the calls that ended longer ago than Retention, and the oldest
// beyond MaxEnded.
func (j *Journal) Expire(now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.ended) > 0 && (len(j.ended) > j.opts.MaxEnded || now.Sub(j.began)-j.ended[0].over > j.opts.Retention) {
		e := j.ended[0]
		j.ended = j.ended[1:]
		j.drop(e.at)
		j.remove(e)
	}
}

// drop says that a record is not needed any more.
func (j *Journal) drop(at place) {
	at.segment.live -= at.size
	j.live -= at.size
}

// Read returns all that is kept of a call that has not ended, and its body: of
// the request while it is queued, of the answer after that. What cannot be read
// any more is a *DamagedError.
func (j *Journal) Read(id string) (Call, io.ReadCloser, int64, error) {
	j.mu.Lock()
	e := j.entries[id]
	if e == nil || e.writing != nil {
		j.mu.Unlock()
		return Call{}, nil, 0, ErrUnknown
	}
	at, now := e.at, e.summary
	// Opened under the lock: afterwards the segment may be removed.
	f, err := os.Open(at.segment.path)
	j.mu.Unlock()
	if err != nil {
		return Call{}, nil, 0, gone(err, at.segment.path)
	}
	defer f.Close()
	data := make([]byte, at.size)
	if _, err := f.ReadAt(data, at.offset); err != nil {
		if errors.Is(err, io.EOF) {
			err = &DamagedError{at.segment.path, "the file was cut"}
		}
		return Call{}, nil, 0, err
	}
	h, inline, _, ok := decode(data)
	if !ok || h.ID != id {
		return Call{}, nil, 0, &DamagedError{at.segment.path, "the record of call " + NameOf(id) + " is damaged"}
	}
	h.Attempts, h.Posts = now.attempts, now.posts
	body, size, err := j.openBody(h, inline)
	return h.Call, body, size, err
}

// gone makes an error of a file that is not there one of damage.
func gone(err error, path string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &DamagedError{path, "the file is gone"}
	}
	return err
}

// batch is the records that are written and synced together.
type batch struct {
	data    []byte
	records []queued
	done    chan struct{} // closed when that is done
	err     error         // then, why not
	led     bool          // somebody is about to write it
}

// queued is a record of a batch.
type queued struct {
	offset, size int64
	apply        func(place) // runs under mu, when the record is on disk
}

// join adds a record to the next write. The caller holds mu.
func (j *Journal) join(r []byte, apply func(place)) *batch {
	if j.batch == nil {
		j.batch = &batch{done: make(chan struct{})}
	}
	b := j.batch
	b.records = append(b.records, queued{int64(len(b.data)), int64(len(r)), apply})
	b.data = append(b.data, r...)
	return b
}

// commit returns when a batch that was joined is on disk. The first who asks
// writes it, once what is being written is: meanwhile others join.
func (j *Journal) commit(b *batch) error {
	j.mu.Lock()
	lead := !b.led
	b.led = true
	j.mu.Unlock()
	if !lead {
		<-b.done
		return b.err
	}
	j.io.Lock()
	defer j.io.Unlock()
	j.mu.Lock()
	j.batch = nil
	j.mu.Unlock()
	at, err := j.write(b.data)
	if err != nil {
		b.err = fmt.Errorf("journal: %w", err)
	} else {
		j.mu.Lock()
		for _, q := range b.records {
			to := place{at.segment, at.offset + q.offset, q.size}
			j.live += to.size
			to.segment.live += to.size
			q.apply(to)
		}
		j.mu.Unlock()
	}
	close(b.done)
	j.tidy(err)
	return b.err
}

// insist writes a record without which a call would be run again, from the
// reserve if need be.
func (j *Journal) insist(r []byte, apply func(place)) error {
	once := func() error {
		j.mu.Lock()
		b := j.join(r, apply)
		j.mu.Unlock()
		return j.commit(b)
	}
	if err := once(); err == nil {
		return nil
	}
	j.spendReserve()
	return once()
}

// write appends data to the log and syncs it.
func (j *Journal) write(data []byte) (place, error) {
	if j.closed {
		return place{}, os.ErrClosed
	}
	if j.active != nil && j.active.size+int64(len(data)) > j.sizes.segment {
		j.seal()
	}
	if j.active == nil {
		if err := j.begin(); err != nil {
			return place{}, err
		}
	}
	s := j.active
	at := place{s, s.size, int64(len(data))}
	_, err := j.file.WriteAt(data, s.size)
	full := err != nil
	if err == nil {
		err = unix.Fdatasync(int(j.file.Fd()))
	}
	if err != nil {
		// What a failed sync left on disk nobody knows: then the next write
		// begins a new segment.
		if cut := j.file.Truncate(s.size); cut != nil || !full {
			j.seal()
		}
		return place{}, err
	}
	s.size += int64(len(data))
	return at, nil
}

// seal ends the active segment.
func (j *Journal) seal() {
	_ = j.file.Close()
	j.active, j.file = nil, nil
}

// begin makes a new segment the active one.
func (j *Journal) begin() error {
	s := &segment{number: j.next, path: filepath.Join(j.dir, fmt.Sprintf("%016x%s", j.next, segmentSuffix)), size: int64(len(magic))}
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write([]byte(magic)); err == nil {
		err = syncDir(j.dir)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(s.path))
	}
	j.next++
	j.segments = append(j.segments, s)
	j.active, j.file = s, f
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
