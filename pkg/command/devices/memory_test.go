package devices

import (
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestOccupancy checks that an unused simulated GPU is free, and that a GPU that does not exist is an error.
func TestOccupancy(t *testing.T) {
	t.Setenv("GFAAS_SIM_GPU", "mem=2GiB")
	t.Setenv("GFAAS_SIM_DIR", t.TempDir())
	o := NewOccupancy()
	defer o.Close()
	if free, total, err := o.Free("sim"); free != 2*gpu.GiB || total != 2*gpu.GiB || err != nil {
		t.Errorf("memory of the simulated GPU: got %v of %v free, %v; want 2 GiB of 2 GiB", free, total, err)
	}
	for limit, beyond := range map[gpu.Bytes]bool{0: false, gpu.GiB: false, 2 * gpu.GiB: false, 2*gpu.GiB + 1: true} {
		if text := o.Beyond("sim", limit); (text != "") != beyond {
			t.Errorf("Beyond of a limit of %v: got %q, want a text: %v", limit, text, beyond)
		}
	}
	if all, err := o.Processes("sim"); len(all) > 0 || err != nil {
		t.Errorf("processes of the simulated GPU: got %v, %v; want none", all, err)
	}
	for _, name := range []string{"none", "0"} {
		if name == "0" && preload.HasNVIDIA() {
			continue
		}
		if _, _, err := o.Free(name); err == nil {
			t.Errorf("free memory of GPU %s, which does not exist: got no error, want one", name)
		}
		if _, err := o.Busy(name); err == nil {
			t.Errorf("utilization of GPU %s, which does not exist: got no error, want one", name)
		}
		if _, err := o.Processes(name); err == nil {
			t.Errorf("processes of GPU %s, which does not exist: got no error, want one", name)
		}
	}
}
