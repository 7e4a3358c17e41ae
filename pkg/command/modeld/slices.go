package modeld

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/model"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	tokens "github.com/gfaas/gfaas/pkg/wire"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// slices implements model.Slices with several token daemons. It uses the first one that answers.
type slices []*tokend.Client

// slicesFor returns clients of the token daemons that may manage the slices of a model daemon's clients:
// of the daemon in the run directory of the socket, then of the daemon in the user's run directory. The
// model socket of a second GPU is in the folder models/GPU of its run directory.
func slicesFor(socket string) slices {
	dir := filepath.Dir(socket)
	if above := filepath.Dir(dir); filepath.Base(above) == "models" {
		dir = filepath.Dir(above)
	}
	s := slices{tokend.Dial(dir)}
	if run, err := filepath.Abs(cli.RunDir()); err == nil && run != dir {
		s = append(s, tokend.Dial(run))
	}
	return s
}

// Count implements model.Slices.
func (s slices) Count(ctx context.Context, of tokens.Stored) (model.Counted, error) {
	var count *tokend.Count
	var err error
	for _, client := range s {
		if count, err = client.CountStored(ctx, of); !ports.Unavailable(err) {
			break
		}
	}
	var failed *tokend.Error
	switch {
	case errors.As(err, &failed) && failed.Status == http.StatusConflict:
		return nil, wire.Errorf(wire.CodeSliceMemory, "%v", err)
	case errors.As(err, &failed) && failed.Status == http.StatusGone:
		return nil, wire.Errorf(wire.CodeDenied, "%v: connect again", err)
	case err != nil || count == nil:
		return nil, err
	}
	return count, nil
}
