package host

import (
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
)

func TestUnsupported(t *testing.T) {
	for _, c := range []struct {
		fn   function.Function
		want string
	}{
		{function.Function{Image: "x", GPUs: 1}, ""},
		{function.Function{Image: "x", GPUs: 1, Command: []string{"a"}, Model: &function.Model{Name: "m"}}, ""},
		{function.Function{Image: "x", GPUs: 1, Kind: function.Training}, ""},
		{function.Function{Command: []string{"a"}, GPUs: 1}, "it has no image"},
		{function.Function{Image: "x", GPUs: 2}, "it spans 2 GPUs"},
		{function.Function{Kind: function.Kernels, GPUs: 1}, "kind kernels"},
		{function.Function{Image: "x", GPUs: 1, Model: &function.Model{Name: "m", File: "m.safetensors"}}, "share the weights"},
	} {
		if got := Unsupported(c.fn); got == "" != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want a reason with %q", c.fn, got, c.want)
		}
	}
}
