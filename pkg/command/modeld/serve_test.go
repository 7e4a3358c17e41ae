package modeld

import (
	"maps"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/model"
	"github.com/gfaas/gfaas/pkg/gpu"
)

func TestShares(t *testing.T) {
	const capacity = 8 * gpu.MiB
	for words, c := range map[string]struct {
		want map[string]gpu.Bytes
		err  string
	}{
		"":                {want: map[string]gpu.Bytes{}},
		"a":               {want: map[string]gpu.Bytes{"a": capacity}},
		"a,b":             {want: map[string]gpu.Bytes{"a": capacity / 2, "b": capacity / 2}},
		"a,b,a":           {want: map[string]gpu.Bytes{"a": capacity / 2, "b": capacity / 2}},
		"a=2MiB,b,c":      {want: map[string]gpu.Bytes{"a": capacity / 4, "b": 3 * gpu.MiB, "c": 3 * gpu.MiB}},
		"a=2MiB,default":  {want: map[string]gpu.Bytes{"a": capacity / 4, "default": 6 * gpu.MiB}},
		"a=5MiB,b=3MiB":   {want: map[string]gpu.Bytes{"a": 5 * gpu.MiB, "b": 3 * gpu.MiB}},
		"a=1MiB":          {want: map[string]gpu.Bytes{"a": gpu.MiB}},
		"a=5MiB,b=4MiB":   {err: "sum to 9MiB, more than the capacity of 8MiB"},
		"a=8MiB,b":        {err: "use the whole capacity of 8MiB, so nothing remains for tenant b"},
		"a=0":             {err: "a=0: expected more than 0"},
		"a=-1MiB":         {err: "a: "},
		"a=":              {err: "a: "},
		"a=much":          {err: "a: "},
		"=1MiB":           {err: "invalid tenant name"},
		"a/b=1MiB":        {err: "invalid tenant name"},
		"a=1MiB=2MiB":     {err: "a: "},
		"a=1e300,b":       {err: "a: "},
		"a=99999999999TB": {err: "a: "},
	} {
		var list []string
		if words != "" {
			list = strings.Split(words, ",")
		}
		names, sizes, err := parseTenants(list)
		var got map[string]gpu.Bytes
		if err == nil {
			got, err = model.Shares(capacity, names, sizes)
		}
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: %v, want an error with %q", words, err, c.err)
			}
		case err != nil || !maps.Equal(got, c.want):
			t.Errorf("%q: %v, %v, want %v", words, got, err, c.want)
		}
	}
}
