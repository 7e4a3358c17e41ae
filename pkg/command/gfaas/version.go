package gfaas

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// versionInfo is the output of gfaas version.
type versionInfo struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func newVersion(t *tool) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Long:    "Print the version of gfaas, the version of Go that built it, and its platform.",
		Example: "  # Print the version as JSON\n  gfaas version -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{Version: cli.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			return t.env.Show(v, func() [][]string {
				return [][]string{{"VERSION", "GO", "PLATFORM"}, {v.Version, v.Go, v.OS + "/" + v.Arch}}
			})
		},
	}
	t.env.Outputs(cmd, "table", "json", "yaml")
	return cmd
}
