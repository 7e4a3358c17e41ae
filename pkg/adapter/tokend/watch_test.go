package tokend

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// A process is told of once, also by a daemon that begins to count anew; one that does
// not know the instance is not asked again.
func TestWatch(t *testing.T) {
	a, b := wire.Unmanaged{PID: 7, Start: 1}, wire.Unmanaged{PID: 7, Start: 2}
	answers := []*wire.UnmanagedList{
		{Found: []wire.Unmanaged{a}, Next: 1},
		{Found: []wire.Unmanaged{}, Next: 1},
		{Found: []wire.Unmanaged{a, b}, Next: 2}, // of another daemon
		nil,
	}
	var asked []string
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if len(asked) >= len(answers) || answers[len(asked)] == nil {
			asked = append(asked, r.URL.RequestURI())
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(answers[len(asked)])
		asked = append(asked, r.URL.RequestURI())
	})
	var told []wire.Unmanaged
	w := NewWatch(c, "a b", func(u wire.Unmanaged) { told = append(told, u) })
	w.Run(context.Background())
	w.Last(context.Background())
	path := "/v1/instances/a%20b/unmanaged?after="
	if want := []string{path + "0", path + "1", path + "1", path + "2", path + "2&wait=0"}; !reflect.DeepEqual(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	if want := []wire.Unmanaged{a, b}; !reflect.DeepEqual(told, want) {
		t.Errorf("told of %v, want %v", told, want)
	}
}
