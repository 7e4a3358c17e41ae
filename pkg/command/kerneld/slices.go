package kerneld

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/child"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// executorSlices manages the slices of the executors: a slice of the daemon's own on each GPU, the slice in which
// the daemon itself runs, or none.
type executorSlices struct {
	env    *cli.Env
	runDir string
	libs   preload.Libs

	environs    map[string][]string // environment of executors, by GPU
	client      *tokend.Client
	ids         []string
	stop        context.CancelFunc
	supervising sync.WaitGroup
}

// enter registers the slices that the flags request, and prepares the executors' environments.
func (s *executorSlices) enter(ctx context.Context, o *serveOptions, devices []string, changed func(string) bool) error {
	s.environs = map[string][]string{}
	own := o.quota != "" || changed("sm")
	if os.Getenv("GFAAS_INSTANCE") != "" {
		if own || len(devices) > 1 || changed("gpu") {
			return cli.Usagef("--gpu, --quota and --sm are not allowed under gfaas run, whose slice applies")
		}
		s.environs[devices[0]] = os.Environ()
		return nil
	}
	if !own {
		for _, device := range devices {
			set, err := preload.Driver(s.libs, device)
			if err != nil {
				return err
			}
			s.environs[device] = child.Environ(set)
		}
		return nil
	}
	slice := gpu.Slice{SMPct: o.sm, QuotaRequest: 1, QuotaLimit: 1}
	if o.quota != "" {
		var err error
		if slice.QuotaRequest, slice.QuotaLimit, err = gpu.ParseQuota(o.quota); err != nil {
			return cli.Usagef("--quota: %w", err)
		}
	}
	if err := slice.Validate(); err != nil {
		return cli.Usagef("%w", err)
	}
	client, _, err := tokend.Ensure(ctx, s.runDir)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.client, s.stop = client, stop
	for _, device := range devices {
		if err := s.register(ctx, running, device, slice); err != nil {
			return err
		}
	}
	return nil
}

// register registers a slice on one GPU. If the token daemon exits when idle, register supervises it
// until running ends.
func (s *executorSlices) register(ctx, running context.Context, device string, slice gpu.Slice) error {
	id := fmt.Sprintf("kerneld-%s-%d", strings.NewReplacer(":", "").Replace(device), os.Getpid())
	grant := preload.Grant{Socket: filepath.Join(tokend.ClientSocketDir(s.runDir), "token.sock"), Instance: id,
		Secret: preload.NewSecret(), GPU: []string{device}, SMPct: slice.SMPct, Libs: s.libs}
	answer, err := s.client.Register(ctx, wire.Registration{
		Instance: id, Function: "gfaas-kerneld", Secret: grant.Secret, OwnerPID: os.Getpid(),
		Allocation: wire.AllocationOf(device, slice),
	})
	if err != nil {
		return err
	}
	s.ids = append(s.ids, id)
	if answer.Note != "" {
		s.env.Notef("note: %s", answer.Note)
	}
	if answer.Warning != "" {
		s.env.Notef("warning: %s", answer.Warning)
	}
	grant.MPSPipeDir = answer.MPSPipeDir
	set, err := preload.Environ(grant)
	if err != nil {
		return err
	}
	s.environs[device] = child.Environ(set)
	if answer.IdleExit { // no service manager supervises the token daemon
		s.supervising.Go(func() {
			s.client.Supervise(running, id, time.Second, func(failed error) {
				if failed != nil {
					s.env.Debugf("the token daemon has ended and cannot be started again: %v", failed)
				}
			})
		})
	}
	return nil
}

// unregister unregisters the slices.
func (s *executorSlices) unregister() {
	if s.client == nil {
		return
	}
	s.stop()
	s.supervising.Wait()
	const limit = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for _, id := range s.ids {
		_ = s.client.Unregister(ctx, id) // after an error, the token daemon notices that the owner has ended
	}
}

// executorOutput returns where executors print: nowhere without --verbose, because their libraries repeat the note
// that the GPU is simulated.
func executorOutput(env *cli.Env) io.Writer {
	if env.Verbose {
		return env.Err
	}
	return nil
}
