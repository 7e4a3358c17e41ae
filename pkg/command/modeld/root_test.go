package modeld

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// TestNoRoomIsBusy checks that for a lack of room, the exit status is that of a timeout, and the code for -o json is "busy".
func TestNoRoomIsBusy(t *testing.T) {
	err := explain(fmt.Errorf("put m: %w", &wire.Error{Code: wire.CodeBusy, Message: "full"}))
	var of *cli.Error
	var named interface{ JSONCode() string }
	if !errors.As(err, &of) || of.Exit != cli.ExitTimeout || !errors.As(of.Err, &named) || named.JSONCode() != "busy" {
		t.Errorf("lack of room: got %#v, want the exit status %d and the code busy", err, cli.ExitTimeout)
	}
	if err := explain(&wire.Error{Code: wire.CodeCapacity}); errors.As(err, &named) && named.JSONCode() == "busy" {
		t.Errorf("model above the capacity: got %#v, want another code than busy", err)
	}
}

// TestPutInALog checks that if standard error is not a terminal, a line every 30 s reports how much of a model is
// loaded or written to a file, and that with --quiet there are no such lines.
func TestPutInALog(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			began := time.Now()
			var written atomic.Int64
			// The model waits for room, then it is loaded, then it is written to a file.
			status := func(context.Context) (*wire.Status, error) {
				m := &wire.Status{State: wire.StateFile, Bytes: 1000}
				switch passed := time.Since(began); { // the changes never coincide with a line
				case passed > 135*time.Second:
					m.State = wire.StateGPU
					written.Store(250)
				case passed > 105*time.Second:
					m.State, m.Loaded = wire.StateLoading, 800
				case passed > 75*time.Second:
					m.State, m.Loaded = wire.StateLoading, 500
				case passed > 45*time.Second:
					m.State, m.Loaded = wire.StateLoading, 200
				}
				return m, nil
			}
			env := &cli.Env{Prog: "gfaas-modeld", Err: &log, Quiet: quiet}
			end := follow(t.Context(), env, "llama/8b", &written, status)
			time.Sleep(151*time.Second + time.Millisecond)
			synctest.Wait()
			end()
			want := `gfaas-modeld: loading llama/8b: 0 of 100 percent after 30s
gfaas-modeld: loading llama/8b: 20 of 100 percent after 1m0s, about 4m0s left
gfaas-modeld: loading llama/8b: 50 of 100 percent after 1m30s, about 1m30s left
gfaas-modeld: loading llama/8b: 80 of 100 percent after 2m0s, about 30s left
gfaas-modeld: writing llama/8b: 25 of 100 percent after 2m30s, about 7m30s left
`
			if quiet {
				want = ""
			}
			if got := log.String(); got != want {
				t.Errorf("quiet %v: got\n%swant\n%s", quiet, got, want)
			}
		})
	}
}
