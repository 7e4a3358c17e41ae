package journal

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// writer combines operations of concurrent callers into one transaction, so that they share
// a sync.
type writer struct {
	committing sync.Mutex // held during a transaction; guards the results of operations

	mu      sync.Mutex
	pending []*operation // for the next transaction
}

type operation struct {
	do    func(calls *bbolt.Bucket) error
	ended bool
	err   error
}

// removePending removes and returns the pending operations.
func (w *writer) removePending() []*operation {
	w.mu.Lock()
	defer w.mu.Unlock()
	ops := w.pending
	w.pending = nil
	return ops
}

// transact runs an operation in a transaction and returns its error after the commit. The
// transaction includes all operations that were pending when it began, which is after the end
// of the one before. If the database is closed, transact returns os.ErrClosed.
func (j *Journal) transact(do func(calls *bbolt.Bucket) error) error {
	w, op := &j.writer, &operation{do: do}
	w.mu.Lock()
	w.pending = append(w.pending, op)
	w.mu.Unlock()
	w.committing.Lock()
	defer w.committing.Unlock()
	if op.ended { // in the transaction of another caller
		return op.err
	}
	var ops []*operation
	err := j.db.Update(func(tx *bbolt.Tx) error {
		ops = w.removePending()
		calls := tx.Bucket(bucket)
		calls.FillPercent = 1 // records are added at the end
		for _, key := range j.index.takeForgotten() {
			if err := calls.Delete(bytesOf(key)); err != nil {
				return err
			}
		}
		for _, op := range ops {
			op.err = op.do(calls)
		}
		return nil
	})
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		err = os.ErrClosed
	}
	if ops == nil { // the transaction did not begin
		ops = w.removePending()
	}
	for _, op := range ops {
		op.ended = true
		if err != nil {
			op.err = fmt.Errorf("journal: %w", err)
		}
	}
	return op.err
}
