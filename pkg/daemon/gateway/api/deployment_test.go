package api

import (
	"reflect"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestListedFunctionCanBeDeployed checks that a function's entry in the list of functions
// can be deployed unchanged.
func TestListedFunctionCanBeDeployed(t *testing.T) {
	whole := function.Function{Name: "f", Contract: "http", Kind: "inference", GPUs: 1, Weight: 1, Tenant: "default", Port: 8080, Scale: function.DefaultScale}
	whole.Image, whole.Command, whole.GPUMem, whole.SLO = "x", []string{"./a", "b c"}, gpu.GiB, 69*time.Millisecond
	whole.Model = &function.Model{Name: "m", Size: gpu.MiB}
	whole.Limits = function.Limits{Memory: gpu.GiB, Pids: 9}
	whole.Restart, whole.Inflight, whole.Queue, whole.Timeout, whole.Unmanaged = "always", 4, 7, time.Minute, "stop"
	whole.Probes, whole.KeepUpgraded = function.Probes{Paths: []string{"/a"}, Methods: []string{}}, true
	whole.Labels, whole.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d: e"}
	again, err := deployment{Service: "f", Image: "x", Labels: labelsOf(whole), Annotations: annotationsOf(whole)}.function()
	if err != nil || !reflect.DeepEqual(again, whole) {
		t.Errorf("function deployed from its entry in the list: got %+v, %v\nwant %+v", again, err, whole)
	}
}
