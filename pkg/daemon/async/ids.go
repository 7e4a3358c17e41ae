package async

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"strings"

	"github.com/gfaas/gfaas/pkg/daemon/async/journal"
)

// Callers choose the ids of their calls, so two callers can choose the same one. An id
// therefore belongs to its function and path: the journal knows a call by its key, which is
// the id, journal.Separator and a digest of both. Calls of earlier versions have their
// id for a key.

// ErrReused says that another call has the id: of the same function and path, with another
// query, receiver or body.
var ErrReused = errors.New("another call of this function and path has the id")

func key(id, function, path string) string {
	sum := sha256.Sum256([]byte(function + "\x00" + path))
	return id + journal.Separator + hex.EncodeToString(sum[:16])
}

func (r *Request) key() string { return key(r.ID, r.Function, r.Path) }

// isScoped reports whether a key is of an id and its function and path.
func isScoped(key string) bool { return strings.Contains(key, journal.Separator) }

// content begins the digest of what a call asks for; the body follows.
func (r *Request) content() hash.Hash {
	h := sha256.New()
	_, _ = io.WriteString(h, r.Query+"\x00"+r.Header.Get("X-Callback-Url")+"\x00") // neither has a zero byte
	return h
}

func digest(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:16]) }

// known returns the earlier call that has the id of a request and its function and path.
func (q *Queue) known(r Request) (journal.Call, bool) {
	if c, known := q.journal.Get(r.key()); known {
		return c, true
	}
	c, known := q.journal.Get(r.ID) // of an earlier version, which did not keep the path
	return c, known && c.Function == r.Function
}

// repeats reads the body of a request and returns nil if it repeats an earlier call, or
// ErrReused if it is another one.
func (r *Request) repeats(earlier journal.Call) error {
	content := r.content()
	if r.Body != nil {
		if _, err := io.Copy(content, r.Body); err != nil {
			return err
		}
	}
	return same(earlier, digest(content))
}

// same returns ErrReused unless an earlier call asked for the same.
func same(earlier journal.Call, content string) error {
	if earlier.Content == content || earlier.Content == "" { // an earlier version kept none
		return nil
	}
	return ErrReused
}
