package host

import (
	"context"
	"sync"

	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/launch"
)

// models are the model daemons of a run directory, one a GPU.
type models struct {
	runDir string
	debug  func(format string, args ...any)

	mu  sync.Mutex
	put map[wanted]*putting
}

// wanted is a model that instances are to have.
type wanted struct{ gpu, tenant, name, file string }

// putting is one that is put once.
type putting struct {
	mu   sync.Mutex
	done bool
}

// Hold has a model on a GPU. Its file is put at the first call, so that what is new
// in it is loaded; others get what is there.
func (m *models) Hold(ctx context.Context, gpu, tenant, name, file string) (launch.HeldModel, error) {
	client, started, err := modeld.Ensure(ctx, m.runDir, gpu)
	if err != nil {
		return nil, err
	}
	if started {
		m.debug("started gfaas-modeld for GPU %s", gpu)
	}
	one := m.one(wanted{gpu, tenant, name, file})
	one.mu.Lock()
	defer one.mu.Unlock()
	held, err := modeld.Hold(ctx, client, tenant, name, file, !one.done)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	one.done = true
	return held, nil
}

func (m *models) one(key wanted) *putting {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.put == nil {
		m.put = map[wanted]*putting{}
	}
	if m.put[key] == nil {
		m.put[key] = &putting{}
	}
	return m.put[key]
}
