package tokend

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// A process is reported once, even if a new daemon numbers its entries anew. A daemon that
// does not know the instance is not requested again.
func TestWatch(t *testing.T) {
	a, b := wire.Unmanaged{PID: 7, Start: 1}, wire.Unmanaged{PID: 7, Start: 2}
	answers := []*wire.UnmanagedList{
		{Found: []wire.Unmanaged{a}, Next: 1},
		{Found: []wire.Unmanaged{}, Next: 1},
		{Found: []wire.Unmanaged{a, b}, Next: 2}, // of another daemon
		nil,
	}
	var requested []string
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if len(requested) >= len(answers) || answers[len(requested)] == nil {
			requested = append(requested, r.URL.RequestURI())
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(answers[len(requested)])
		requested = append(requested, r.URL.RequestURI())
	})
	var reported []wire.Unmanaged
	w := NewWatch(c, "a b", func(u wire.Unmanaged) { reported = append(reported, u) })
	w.Run(context.Background())
	w.Flush(context.Background(), true)
	w.Flush(context.Background(), false)
	path := "/v1/instances/a%20b/unmanaged?after="
	if want := []string{path + "0", path + "1", path + "1", path + "2", path + "2&wait=0", path + "2&wait=0&search=0"}; !reflect.DeepEqual(requested, want) {
		t.Errorf("requested %q, want %q", requested, want)
	}
	if want := []wire.Unmanaged{a, b}; !reflect.DeepEqual(reported, want) {
		t.Errorf("reported of %v, want %v", reported, want)
	}
}
