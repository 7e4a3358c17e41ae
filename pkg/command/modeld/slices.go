package modeld

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/model"
	tokens "github.com/gfaas/gfaas/pkg/wire"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// slices implements model.Slices by several token daemons: the first that answers counts.
type slices []*tokend.Client

// slicesFor returns the token daemons for a model daemon with that socket: the one in the run
// directory of the socket, then the one in the user's run directory. The socket of a second
// GPU is in models/GPU of its run directory.
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
	var failed *tokend.Error
	for _, client := range s {
		if count, err = client.CountStored(ctx, of); !errors.As(err, &failed) || !failed.Missing {
			break
		}
	}
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
