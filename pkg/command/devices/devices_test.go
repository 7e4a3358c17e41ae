package devices

import (
	"errors"
	"testing"

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
