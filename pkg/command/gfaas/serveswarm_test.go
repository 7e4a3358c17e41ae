package gfaas

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/gateway"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// The error of a missing secret names the commands that create and mount it, and so does that of a secret that other
// users can read: its mode is the service's.
func TestExplainSecret(t *testing.T) {
	_, missing := os.Open(filepath.Join(t.TempDir(), "key"))
	open := &gateway.OpenFileError{Path: "/run/secrets/auth", Mode: 0o444}
	other := errors.New("other")
	fleet, single := &serveOptions{swarm: true}, &serveOptions{}
	for _, c := range []struct {
		name, file, hint string
		options          *serveOptions
		err              error
	}{
		{"missing", "/run/secrets/grant.key", "source=NAME,target=grant.key,mode=0400", fleet, missing},
		{"missing elsewhere", "/etc/grant.key", "source=NAME,target=/etc/grant.key,mode=0400", fleet, missing},
		{"readable secret", "/run/secrets/auth", "target=auth,mode=0400", fleet, open},
		{"readable file", "/etc/auth", "chmod 600", fleet, open},
		{"no swarm", "/run/secrets/auth", "chmod 600", single, open},
		{"another error", "/run/secrets/auth", "", fleet, other},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.options.explainSecret(c.file, c.err)
			hint := ports.Hint(err)
			if failure, ok := errors.AsType[*cli.Error](err); ok {
				hint = failure.Hint
			}
			if !errors.Is(err, c.err) || !strings.Contains(hint, c.hint) || c.hint == "" && hint != "" {
				t.Errorf("error %v, hint %q; want the hint %q", err, hint, c.hint)
			}
		})
	}
}
