// Package journal stores accepted calls on disk until they have ended, and their outcome
// for a while after that. Package async is its only user.
//
// The folder holds
//
//	lock          held by the one open Journal
//	calls.db      a bbolt file with one record for each call
//	N.body        a body of more than 64 KiB, named by the record of its call
//	reserve       1 MiB of disk space to end calls with when the disk is full
//	damaged-TIME/ calls.db and bodies that Open could not read and moved aside
//
// Operations of concurrent callers share a transaction, and thus a sync of the file.
package journal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
)

// State is the progress of a call.
type State string

// The states of a call.
const (
	Queued   State = "queued"   // to be run
	Callback State = "callback" // the answer is to be delivered
	Done     State = "done"     // answered, and the answer delivered if the caller wants a callback
	Failed   State = "failed"
)

// Final reports whether a call in this state needs no more work.
func (s State) Final() bool { return s == Done || s == Failed }

// Call is the record of a call.
type Call struct {
	ID       string    `json:"id"` // unique in the journal
	Function string    `json:"function"`
	State    State     `json:"state"`
	Attempts int       `json:"attempts,omitempty"` // number of times the call was run
	Posts    int       `json:"posts,omitempty"`    // number of times the answer was sent to CallbackURL
	Status   int       `json:"status,omitempty"`   // HTTP status of the last answer; 0 before the first
	Accepted time.Time `json:"accepted"`
	Ended    time.Time `json:"ended,omitzero"`

	CallbackURL string `json:"callback_url,omitempty"`
	Content     string `json:"content,omitempty"` // digest of the request, by which the owner tells a repetition from another call

	// The request, while the call is queued.
	Path   string `json:"path,omitempty"`   // escaped, after the function's name
	Query  []byte `json:"query,omitempty"`  // as received
	Header []byte `json:"header,omitempty"` // as in HTTP/1.1
	Host   string `json:"host,omitempty"`
	Remote string `json:"remote,omitempty"` // the caller's address

	// The answer, while it is to be delivered.
	ContentType string  `json:"content_type,omitempty"`
	Seconds     float64 `json:"seconds,omitempty"` // duration of the last run
	GaveUp      bool    `json:"gave_up,omitempty"` // the answer is an error of the gateway, or one after which the retries were used up
}

// Errors of storing and reading calls.
var (
	ErrExists  = errors.New("a call of that id was accepted before")
	ErrUnknown = errors.New("no call has that id")
)

// DamagedError reports that a call's record or body differs from the one written.
type DamagedError struct {
	Path   string
	Reason string
}

func (e *DamagedError) Error() string { return e.Path + ": " + e.Reason }

// LockedError reports that another process has the journal open.
type LockedError struct {
	Dir string
	PID int // 0 if unknown
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("the journal %s is in use", e.Dir)
	}
	return fmt.Sprintf("the journal %s is in use by process %d", e.Dir, e.PID)
}

// Locked marks the error for the exit status.
func (e *LockedError) Locked() bool { return true }

// Options configures a Journal.
type Options struct {
	Retention time.Duration // how long an ended call is remembered
	MaxEnded  int           // limit on remembered ended calls; the oldest are forgotten first
	Log       *slog.Logger
}

// Journal is an open journal. It is safe for concurrent use.
type Journal struct {
	dir     string
	opts    Options
	lock    *lockfile.Lock
	opened  time.Time
	db      *bbolt.DB
	writer  writer // of db
	index   index
	reserve reserve

	mu    sync.Mutex
	ended []endedCall // in the order in which they ended
}

// endedCall is a call that has ended.
type endedCall struct {
	id  string
	age time.Duration // age of the journal when the call ended
}

// Open opens the journal in a folder and creates the folder if necessary. It forgets calls
// that ended longer ago than opts.Retention. It returns a *LockedError if another process
// has the journal open. If the database is damaged, Open logs an error, moves the database
// and the bodies aside, and starts with an empty one.
func Open(dir string, opts Options) (*Journal, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if err := owndir.Ensure(dir); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	lock, err := lockfile.Acquire(filepath.Join(dir, "lock"))
	var held *lockfile.HeldError
	switch {
	case errors.As(err, &held):
		return nil, &LockedError{dir, held.PID}
	case err != nil:
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &Journal{dir: dir, opts: opts, lock: lock, opened: time.Now(), index: index{keys: map[string]uint64{}}}
	j.reserve.path, j.reserve.spent = filepath.Join(dir, "reserve"), true
	err = j.load()
	if damaged, ok := errors.AsType[*DamagedError](err); ok {
		err = j.moveAside(damaged)
	}
	if err != nil {
		j.closeDB()
		_ = lock.Close()
		return nil, fmt.Errorf("journal: %w", err)
	}
	j.Expire(time.Now())
	_ = j.reserve.restore() // on failure, Accept tries again and returns the error
	return j, nil
}

var bucket = []byte("calls")

// moveAside moves the files of a damaged journal to a new folder and loads an empty journal.
func (j *Journal) moveAside(cause *DamagedError) error {
	j.closeDB()
	j.index, j.ended = index{keys: map[string]uint64{}}, nil
	aside := filepath.Join(j.dir, "damaged-"+time.Now().UTC().Format("20060102T150405.000"))
	if err := os.Mkdir(aside, 0o700); err != nil {
		return errors.Join(cause, err)
	}
	bodies, err := filepath.Glob(filepath.Join(j.dir, "*"+bodySuffix))
	for _, path := range append(bodies, j.path()) {
		err = errors.Join(err, os.Rename(path, filepath.Join(aside, filepath.Base(path))))
	}
	if err != nil {
		return errors.Join(cause, err)
	}
	j.opts.Log.Error("the journal of asynchronous calls is damaged; the calls in it are lost",
		"err", cause, "moved_to", aside)
	return j.load()
}

// closeDB closes the database if it is open. It recovers from a panic of a damaged database.
func (j *Journal) closeDB() {
	defer func() { _ = recover() }()
	if j.db != nil {
		_ = j.db.Close()
		j.db = nil
	}
}

// load opens the database, builds the index and removes files of bodies without a call. It
// returns a *DamagedError if the database is damaged.
func (j *Journal) load() (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // reading a truncated mapped file faults
	defer func() {
		if panicked := recover(); panicked != nil { // bbolt panics if pages are damaged
			err = &DamagedError{j.path(), fmt.Sprint(panicked)}
		}
	}()
	if j.db, err = openDB(j.path()); err != nil {
		return err
	}
	if err := owndir.Sync(j.dir); err != nil { // bbolt syncs only the file itself
		return err
	}
	switch err := j.compact(); {
	case j.db == nil: // it could not be opened again
		return err
	case err != nil:
		j.opts.Log.Warn("the journal was not compacted", "err", err)
	}
	if err := j.importLog(); err != nil {
		return err
	}
	bodies := map[string]bool{}
	var final []Call
	err = j.forEach(func(key uint64, h head) {
		j.index.set(h.ID, key)
		if h.State.Final() {
			final = append(final, h.Call)
		} else {
			bodies[h.File] = true
		}
	})
	if err != nil {
		return err
	}
	slices.SortFunc(final, func(a, b Call) int { return a.Ended.Compare(b.Ended) })
	for _, c := range final {
		j.end(c)
	}
	files, err := filepath.Glob(filepath.Join(j.dir, "*"+bodySuffix))
	for _, path := range files {
		if !bodies[filepath.Base(path)] {
			_ = os.Remove(path)
		}
	}
	return err
}

func (j *Journal) path() string { return filepath.Join(j.dir, "calls.db") }

func openDB(path string) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	if errno := syscall.Errno(0); err != nil && !errors.As(err, &errno) { // not an error of the system
		return nil, &DamagedError{path, err.Error()}
	}
	if err != nil {
		return nil, err
	}
	exists := false
	err = db.View(func(tx *bbolt.Tx) error { exists = tx.Bucket(bucket) != nil; return nil })
	if err == nil && !exists {
		err = db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket(bucket); return err })
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

// maxFree is how many bytes of free pages compact tolerates.
const maxFree = 16 << 20

// compact rewrites the file if more than maxFree bytes and at least half of it are free
// pages.
func (j *Journal) compact() error {
	info, err := os.Stat(j.path())
	if err != nil {
		return err
	}
	if free := int64(j.db.Stats().FreePageN * j.db.Info().PageSize); free < max(maxFree, info.Size()/2) {
		return nil
	}
	path := j.path() + ".new"
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	small, err := openDB(path)
	if err != nil {
		return err
	}
	err = errors.Join(bbolt.Compact(small, j.db, 1<<20), small.Close())
	if err == nil {
		err = os.Rename(path, j.path())
	}
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	err = errors.Join(owndir.Sync(j.dir), j.db.Close())
	var opening error
	j.db, opening = openDB(j.path())
	return errors.Join(err, opening)
}

// Close closes the journal. Later operations fail with os.ErrClosed.
func (j *Journal) Close() error { return errors.Join(j.db.Close(), j.lock.Remove()) }

// Accept stores a new call and returns when it is on disk. It returns ErrExists if the ID
// is known. After an error, the call is not stored.
func (j *Journal) Accept(c Call, b *Body) error {
	if err := j.reserve.restore(); err != nil {
		return err
	}
	v, err := b.record(c)
	if err != nil {
		return err
	}
	err = j.transact(func(calls *bbolt.Bucket) error {
		if key := j.index.key(c.ID); key != nil && calls.Get(key) != nil { // a key without a record stems from a failed transaction
			return ErrExists
		}
		return calls.Put(j.index.add(c.ID), v)
	})
	if err == nil {
		b.detach()
	}
	return err
}

// Put replaces the record of a call and returns when the new record is on disk. If the disk
// is full, it uses the reserve, unlike Accept. After an error, the caller may try again.
func (j *Journal) Put(c Call, b *Body) error {
	v, err := b.record(c)
	if err != nil {
		return err
	}
	old := ""
	err = j.change(c.ID, func(h head, _ []byte, _ bool) ([]byte, error) {
		old = h.File
		return v, nil
	})
	if err != nil {
		return err
	}
	b.detach()
	if old != "" {
		_ = os.Remove(filepath.Join(j.dir, filepath.Base(old))) // otherwise the next Open removes it
	}
	if c.State.Final() {
		j.end(c)
	}
	return nil
}

// Note stores new counts of a call's attempts and posts, in the same way as Put.
func (j *Journal) Note(id string, attempts, posts int) error {
	return j.change(id, func(h head, body []byte, ok bool) ([]byte, error) {
		if !ok {
			return nil, j.damaged(id)
		}
		h.Attempts, h.Posts = attempts, posts
		return encode(h, body)
	})
}

// change changes the record of a call. If that fails, it frees the reserve and tries again:
// without the change, the call would be run again.
func (j *Journal) change(id string, edit func(h head, body []byte, ok bool) ([]byte, error)) error {
	key := j.index.key(id)
	do := func(calls *bbolt.Bucket) error {
		old := calls.Get(key)
		if old == nil {
			return ErrUnknown
		}
		v, err := edit(decode(old))
		if err != nil {
			return err
		}
		return calls.Put(key, v)
	}
	err := j.transact(do)
	if err == nil || errors.Is(err, ErrUnknown) || errors.Is(err, os.ErrClosed) {
		return err
	}
	j.reserve.spend()
	return j.transact(do)
}

// Separator separates the name in an ID from the rest, if the ID has more than a name.
const Separator = "\x00"

// NameOf returns the name of a call.
func NameOf(id string) string {
	name, _, _ := strings.Cut(id, Separator)
	return name
}

// Get returns a call and reports whether it is known.
func (j *Journal) Get(id string) (Call, bool) {
	h, _, _, err := j.get(id)
	h.ID = id // also if the record is damaged
	return h.Call, err == nil
}

// get returns the record of a call, and reports whether its checksum is correct.
func (j *Journal) get(id string) (h head, body []byte, ok bool, err error) {
	err = j.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(bucket).Get(j.index.key(id))
		if v == nil {
			return ErrUnknown
		}
		h, body, ok = decode(slices.Clone(v))
		return nil
	})
	return h, body, ok, err
}

// Named returns the calls whose ID is the name, or begins with the name and Separator, in
// the order of acceptance.
func (j *Journal) Named(name string) []Call {
	var calls []Call
	for _, id := range j.index.named(name) {
		if c, known := j.Get(id); known {
			calls = append(calls, c)
		}
	}
	return sortByAccepted(calls)
}

// Pending returns the calls that have not ended, in the order of acceptance.
func (j *Journal) Pending() []Call {
	var calls []Call
	_ = j.forEach(func(_ uint64, h head) {
		if !h.State.Final() {
			calls = append(calls, h.Call)
		}
	})
	return sortByAccepted(calls)
}

func sortByAccepted(calls []Call) []Call {
	slices.SortFunc(calls, func(a, b Call) int { return a.Accepted.Compare(b.Accepted) })
	return calls
}

// forEach calls visit for each record that can be decoded, and logs the others.
func (j *Journal) forEach(visit func(key uint64, h head)) error {
	return j.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(k, v []byte) error {
			h, _, _ := decode(v)
			if len(k) != 8 || h.ID == "" {
				j.opts.Log.Error("the record of a call is damaged", "file", j.path(), "key", k)
				return nil
			}
			visit(binary.BigEndian.Uint64(k), h)
			return nil
		})
	})
}

// end records that a call has ended. It uses the wall clock only for the time before the
// journal was opened, so that setting the clock cannot shorten or extend the retention of
// later calls.
func (j *Journal) end(c Call) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	j.ended = append(j.ended, endedCall{c.ID, now.Sub(j.opened) - max(now.Sub(c.Ended), 0)})
}

// Expire forgets the calls that ended longer ago than Retention, and the oldest ones beyond
// MaxEnded.
func (j *Journal) Expire(now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.ended) > 0 && (len(j.ended) > j.opts.MaxEnded || now.Sub(j.opened)-j.ended[0].age > j.opts.Retention) {
		j.index.remove(j.ended[0].id)
		j.ended = j.ended[1:]
	}
}

// Read returns the record of a call that has not ended, its body and the body's size: the
// request's body while the call is queued, and the answer's body afterwards. It returns a
// *DamagedError if the record or the body is damaged.
func (j *Journal) Read(id string) (Call, io.ReadCloser, int64, error) {
	h, inline, ok, err := j.get(id)
	if err != nil {
		return Call{}, nil, 0, err
	}
	if !ok || h.ID != id {
		return Call{}, nil, 0, j.damaged(id)
	}
	body, size, err := openBody(j.dir, h, inline)
	return h.Call, body, size, err
}

func (j *Journal) damaged(id string) error {
	return &DamagedError{j.path(), "the record of call " + NameOf(id) + " is damaged"}
}

// head is the JSON of a record.
type head struct {
	Call
	File string `json:"file,omitempty"` // name of a long body's file
	Size int64  `json:"size,omitempty"` // size of that file in bytes
	CRC  uint32 `json:"crc,omitempty"`  // CRC-32C of that file
}

var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// encode returns a record: the CRC-32C of the rest (4 bytes, little-endian), the JSON, a
// newline and the body, unless the body has a file.
func encode(h head, body []byte) ([]byte, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	v := slices.Concat(make([]byte, 4), text, []byte("\n"), body)
	binary.LittleEndian.PutUint32(v, crc32.Checksum(v[4:], castagnoli()))
	return v, nil
}

// decode reads a record and reports whether its checksum is correct. If not, it returns the
// readable fields.
func decode(v []byte) (h head, body []byte, ok bool) {
	if len(v) < 4 {
		return head{}, nil, false
	}
	i := slices.Index(v[4:], '\n')
	if i < 0 || json.Unmarshal(v[4:4+i], &h) != nil {
		return head{}, nil, false
	}
	return h, v[4+i+1:], binary.LittleEndian.Uint32(v) == crc32.Checksum(v[4:], castagnoli())
}
