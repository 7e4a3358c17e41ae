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

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// slices are what executors run under: of each GPU a slice of the daemon's own, one
// that somebody else put the daemon under, or none.
type slices struct {
	env    *cli.Env
	runDir string
	libs   preload.Libs

	environs map[string][]string // by GPU
	client   *tokend.Client
	ids      []string
	stop     context.CancelFunc
	keeping  sync.WaitGroup
}

// enter takes the slices that the flags ask for.
func (s *slices) enter(ctx context.Context, o *serveOptions, devices []string, changed func(string) bool) error {
	s.environs = map[string][]string{}
	own := o.quota != "" || changed("sm")
	if os.Getenv("GFAAS_INSTANCE") != "" {
		if own || len(devices) > 1 || changed("gpu") {
			return cli.Usagef("under gfaas run its slice counts: --gpu, --quota and --sm are not for here")
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
			s.environs[device] = cli.Environ(set)
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
	s.client = client
	for _, device := range devices {
		if err := s.register(ctx, device, slice); err != nil {
			return err
		}
	}
	return nil
}

// register takes a slice of one GPU.
func (s *slices) register(ctx context.Context, device string, slice gpu.Slice) error {
	id := fmt.Sprintf("kerneld-%s-%d", strings.NewReplacer(":", "").Replace(device), os.Getpid())
	if len(id) > 63 {
		id = id[:63] // a MIG instance's
	}
	grant := preload.Grant{Socket: filepath.Join(tokend.ClientSocketDir(s.runDir), "token.sock"), Instance: id,
		Secret: preload.NewSecret(), GPU: []string{device}, SMPct: slice.SMPct, Libs: s.libs}
	answer, err := s.client.Register(ctx, wire.Registration{
		Instance: id, Function: "gfaas-kerneld", Secret: grant.Secret, OwnerPID: os.Getpid(),
		Allocation: wire.Allocation{GPU: device, SMPct: slice.SMPct, QuotaRequest: slice.QuotaRequest, QuotaLimit: slice.QuotaLimit},
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
	s.environs[device] = cli.Environ(set)
	if answer.IdleExit { // nobody else looks after the token daemon
		ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		before := s.stop
		s.stop = func() {
			stop()
			if before != nil {
				before()
			}
		}
		s.keeping.Go(func() {
			s.client.Keep(ctx, id, time.Second, func(failed error) {
				if failed != nil {
					s.env.Debugf("the token daemon is gone and cannot be started: %v", failed)
				}
			})
		})
	}
	return nil
}

// leave gives the slices back.
func (s *slices) leave() {
	if s.stop != nil {
		s.stop()
	}
	s.keeping.Wait()
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, id := range s.ids {
		_ = s.client.Unregister(ctx, id) // else the token daemon drops what has no owner
	}
}

// environ is the environment of an executor on that GPU.
func (s *slices) environ(device string) []string { return s.environs[device] }

// quiet is where executors print: their libraries say once more that the GPU is
// simulated.
func quiet(env *cli.Env) io.Writer {
	if env.Verbose {
		return env.Err
	}
	return nil
}
