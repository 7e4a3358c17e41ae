package cli

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// signals decides how a program ends after a signal. Its fields are accessed atomically; they are plain
// numbers because commands copy an Env.
type signals struct {
	cleansUp, reloads int32
	cancelledBy       int32 // signal that cancelled the context of catch, or 0
}

// grace is how long a command that does not clean up may run after a signal.
const grace = 500 * time.Millisecond

// CleansUp declares that the command has resources to clean up from now on. After a signal, Main
// then waits until the command returns. Otherwise it waits for at most grace, because a command that
// only reads, computes and writes may block in a read of standard input, which cancelling the
// context does not interrupt.
func (s *signals) CleansUp() { atomic.StoreInt32(&s.cleansUp, 1) }

// Reloads declares that the command handles SIGHUP itself from now on, so that the signal does not
// end the program.
func (s *signals) Reloads() { atomic.StoreInt32(&s.reloads, 1) }

// caught returns the signal that cancelled the context of catch, or 0.
func (s *signals) caught() syscall.Signal { return syscall.Signal(atomic.LoadInt32(&s.cancelledBy)) }

// catch returns a context that the first SIGINT, SIGTERM or SIGHUP (a closed terminal) cancels, and a
// function that stops the handling. It respects an ignored SIGHUP, as under nohup.
func (s *signals) catch(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	// Two channels, because a full channel drops signals.
	end, hangUp := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(hangUp, syscall.SIGHUP)
	}
	go func() {
		defer cancel()
		for {
			var received os.Signal
			select {
			case received = <-end:
			case received = <-hangUp:
				if atomic.LoadInt32(&s.reloads) != 0 {
					continue
				}
			case <-ctx.Done():
				return
			}
			atomic.StoreInt32(&s.cancelledBy, int32(received.(syscall.Signal)))
			return
		}
	}()
	return ctx, func() { signal.Stop(end); signal.Stop(hangUp); cancel() }
}

// wait returns the command's error. It returns late = true if the command still runs when grace has
// passed since ctx was cancelled, unless the command cleans up.
func (s *signals) wait(ctx context.Context, result <-chan error) (err error, late bool) {
	select {
	case err := <-result:
		return err, false
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return err, false
	case <-time.After(grace):
	}
	if atomic.LoadInt32(&s.cleansUp) != 0 {
		return <-result, false
	}
	return nil, true
}
