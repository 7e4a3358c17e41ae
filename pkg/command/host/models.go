package host

import (
	"context"
	"sync"

	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/launch"
)

// models is a client of a run directory's model daemons, one per GPU. It implements launch.Models.
type models struct {
	runDir string
	debug  func(format string, args ...any)

	mu      sync.Mutex
	uploads map[modelKey]*upload
}

// modelKey identifies a model on a GPU: name is the model's name, and file is the path of its file.
type modelKey struct{ gpu, tenant, name, file string }

// upload records whether a model's file has been sent to the daemon of its GPU. Its lock is held while the file is
// sent, so that concurrent callers send it once.
type upload struct {
	mu   sync.Mutex
	sent bool
}

// Hold loads a model onto a GPU, unless it is loaded, and keeps it there until the result is closed (see also
// HeldModel.ExtendTo). The first call for a model sends the file to the daemon; later calls use that content, even if the
// file has changed.
func (m *models) Hold(ctx context.Context, gpu, tenant, name, file string) (launch.HeldModel, error) {
	client, started, err := modeld.Ensure(ctx, m.runDir, gpu)
	if err != nil {
		return nil, err
	}
	if started {
		m.debug("started gfaas-modeld for GPU %s", gpu)
	}
	u := m.upload(modelKey{gpu, tenant, name, file})
	u.mu.Lock()
	defer u.mu.Unlock()
	held, err := modeld.Hold(ctx, client, tenant, name, file, !u.sent)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	u.sent = true
	return held, nil
}

// upload returns the record of a model, and creates it if there is none.
func (m *models) upload(key modelKey) *upload {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uploads == nil {
		m.uploads = map[modelKey]*upload{}
	}
	if m.uploads[key] == nil {
		m.uploads[key] = &upload{}
	}
	return m.uploads[key]
}
