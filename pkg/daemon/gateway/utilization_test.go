package gateway

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// lockedBuffer is a buffer that a test can read while the gateway writes to it.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestUtilizationSource checks that a policy that adapts D receives the utilization that the token
// daemon reports, or that of the driver if Config.Busy is set, and never a mixture of both: a GPU
// whose driver fails has no samples.
func TestUtilizationSource(t *testing.T) {
	t.Parallel()
	driver := func(name string) (float64, error) {
		if name == "sim" {
			return 0.75, nil
		}
		return 0, errors.New("not reported")
	}
	for name, c := range map[string]struct {
		busy      func(string) (float64, error)
		want, not string
	}{
		"token daemon": {nil, `"busy":0.25`, `"busy":0.75`},
		"driver":       {driver, `"busy":0.75`, `"busy":0.25`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text lockedBuffer
			w := newWorld(t, http.HandlerFunc(echo), func(cfg *Config) {
				cfg.Policy.Utilization, cfg.Busy, cfg.Record = 0.9, c.busy, &text
				cfg.GPUs = []GPU{{Name: "sim"}, {Name: "sim:1"}}
				cfg.Usage = func(context.Context) (wire.Status, error) {
					rows := []wire.ClientStatus{{Instance: "i", Used: 0.25, SMPct: 100}}
					return wire.Status{GPUs: []wire.GPUStatus{{GPU: "sim", Clients: rows}, {GPU: "sim:1", Clients: rows}}}, nil
				}
			})
			w.until("two samples are recorded", func() bool { return strings.Count(text.String(), c.want) >= 2 })
			w.close()
			if strings.Contains(text.String(), c.not) {
				t.Errorf("a sample has %s, want only samples of the %s:\n%s", c.not, name, text.String())
			}
		})
	}
}
