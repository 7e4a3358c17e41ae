package async

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"

	"github.com/gfaas/gfaas/pkg/daemon/async/journal"
)

// Callers choose the IDs of their calls, so two callers can choose the same one. An ID is
// therefore valid per function and path: the journal's key for a call is the ID,
// journal.Separator and a digest of function and path. Calls from earlier versions have
// their plain ID as the key.

// ErrReused reports that a call of the same function and path has the ID, but another
// query, callback URL or body.
var ErrReused = errors.New("another call of this function and path has the id")

func key(id, function, path string) string {
	sum := sha256.Sum256([]byte(function + "\x00" + path))
	return id + journal.Separator + hex.EncodeToString(sum[:16])
}

func (r *Request) key() string { return key(r.ID, r.Function, r.Path) }

// content returns a digest of the query and the callback URL, to which the caller adds the
// body.
func (r *Request) content() hash.Hash {
	h := sha256.New()
	_, _ = io.WriteString(h, r.Query+"\x00"+r.Header.Get("X-Callback-Url")+"\x00") // neither has a zero byte
	return h
}

func digest(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:16]) }

// known returns the earlier call with the request's ID, function and path.
func (q *Queue) known(r Request) (journal.Call, bool) {
	if c, known := q.journal.Get(r.key()); known {
		return c, true
	}
	c, known := q.journal.Get(r.ID) // written by an earlier version, without the path
	return c, known && c.Function == r.Function
}

// repeats reads the body of a request. It returns nil if the request repeats the earlier
// call and ErrReused if it differs.
func (r *Request) repeats(earlier journal.Call) error {
	content := r.content()
	if r.Body != nil {
		if _, err := io.Copy(content, r.Body); err != nil {
			return err
		}
	}
	return same(earlier, digest(content))
}

// same returns ErrReused if the digest of an earlier call differs from content.
func same(earlier journal.Call, content string) error {
	if earlier.Content == content || earlier.Content == "" { // earlier versions stored no digest
		return nil
	}
	return ErrReused
}
