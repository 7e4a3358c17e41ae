package tokend

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/gfaas/gfaas/pkg/adapter/mps/keeper"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/token"
	"github.com/gfaas/gfaas/pkg/grant"
)

// grants returns the configuration for instances with grants, or nil without --trust.
func (o *serveOptions) grants() (*token.Grants, error) {
	if o.trust == "" {
		return nil, nil
	}
	path, err := filepath.Abs(o.trust)
	if err != nil {
		return nil, err
	}
	read := func() (grant.Trust, error) { return cli.ReadTrust(path) }
	trust, err := read()
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil && o.node == "" {
		return nil, fmt.Errorf("--node is not set, and the name of this machine is unknown: %w", err)
	}
	return &token.Grants{Trust: trust, Node: cmp.Or(o.node, host), Keep: o.grantKeep, Reload: read}, nil
}

// provide creates what containers of instances with grants mount before they register themselves: the preload
// library and its list, the simulated GPU's folder, and the folder of an MPS daemon, which must run before their
// processes use the driver.
func provide(ctx context.Context, runDir string, shared *keeper.Keeper, log *slog.Logger) error {
	dir := filepath.Join(runDir, token.GrantedDir)
	if err := preload.WriteList(dir, ""); err != nil {
		return err
	}
	libs, err := preload.FindLibs()
	if err == nil {
		err = preload.Furnish(dir, libs)
	}
	if err != nil {
		log.Warn("tasks of gfaas serve --swarm cannot start: their library is missing", "err", err)
	}
	if !preload.HasNVIDIA() {
		if err := simgpu.Retain("token.sock"); err != nil { // no instance has this ID
			log.Warn("cannot provide the folder of the simulated GPU", "err", err)
		}
		return nil
	}
	if note := shared.Provide(ctx).Note; note != "" {
		log.Warn("instances with grants: " + note)
	}
	return nil
}
