package devices

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

func TestSimDevices(t *testing.T) {
	for shape, want := range map[string]int{
		"": 1, "sms=80,mem=16GiB,count=4": 4, "count=2": 2, "sms=80, count=3": 3, "count=0": 1, "count=x": 1,
	} {
		if got := simDevices(shape); got != want {
			t.Errorf("%q: %d, want %d", shape, got, want)
		}
	}
}

// TestNoteSimulated checks that the note gives the missing driver as the reason, unless the user chose the simulated GPU.
func TestNoteSimulated(t *testing.T) {
	if preload.HasNVIDIA() {
		t.Skip("SKIPPED: there is an NVIDIA driver")
	}
	t.Setenv("GFAAS_SIM_NOTED", "")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, gpu := range []string{"", "sim"} {
		var errs strings.Builder
		env := &cli.Env{Prog: "tool", Out: io.Discard, Err: &errs}
		root := env.Tree(func(env *cli.Env) *cobra.Command {
			cmd := &cobra.Command{Use: "tool", RunE: func(*cobra.Command, []string) error { NoteSimulated(env); return nil }}
			cmd.Flags().String("gpu", "", "")
			return cmd
		})
		root.SetArgs([]string{"--gpu=" + gpu})
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		missing := strings.Contains(errs.String(), "no NVIDIA driver found: ")
		if !strings.Contains(errs.String(), "running on the simulated GPU; its figures are not those of a real GPU") || missing != (gpu == "") {
			t.Errorf("note with --gpu %q: got %q, want that the GPU is simulated, and the missing driver only without --gpu", gpu, &errs)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Setenv("GFAAS_SIM_GPU", "sms=80,count=2")
	for name, want := range map[string]int{
		"sim": 0, "sim:1": 0, "sim:2": cli.ExitUnavailable, "4096": cli.ExitUnavailable, "none": cli.ExitUsage,
	} {
		err := Check(name)
		var chosen *cli.Error
		if got := errors.As(err, &chosen); got != (want != 0) || got && chosen.Exit != want {
			t.Errorf("%s: %v, want exit %d", name, err, want)
		}
	}
}
