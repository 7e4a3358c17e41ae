package tokend

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// A short slice costs four requests. The removal of the owner is the last one, after the callbacks.
func TestShortSlice(t *testing.T) {
	defer func(before time.Duration) { firstWatch = before }(firstWatch)
	firstWatch = time.Hour // the slice is short, even on a busy host
	var mu sync.Mutex
	var seen, reported []string
	note := func(to *[]string, text string) {
		mu.Lock()
		defer mu.Unlock()
		*to = append(*to, text)
	}
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		note(&seen, r.Method+" "+r.URL.RequestURI())
		switch {
		case strings.HasPrefix(r.URL.Path, "/v1/faults"):
			_ = json.NewEncoder(w).Encode(wire.Faults{Faults: []wire.InstanceFault{{Instance: "a", PID: 7}}})
		case strings.HasSuffix(r.URL.Path, "/unmanaged"):
			_ = json.NewEncoder(w).Encode(wire.UnmanagedList{Found: []wire.Unmanaged{{PID: 8}}, Next: 1})
		case r.Method == http.MethodDelete:
			mu.Lock()
			defer mu.Unlock()
			if len(reported) != 2 {
				t.Errorf("callbacks before the removal: got %q, want two", reported)
			}
		default:
			_ = json.NewEncoder(w).Encode(wire.Registered{})
		}
	})
	_, end, err := Enter(t.Context(), c, wire.Registration{Instance: "a"}, Events{
		Unmanaged: func(wire.Unmanaged) { note(&reported, "unmanaged") },
		Faulted:   func(wire.InstanceFault) { note(&reported, "faulted") },
	})
	if err != nil {
		t.Fatal(err)
	}
	end(false)
	slices.Sort(reported)
	if want := []string{"faulted", "unmanaged"}; !reflect.DeepEqual(reported, want) {
		t.Errorf("callbacks: got %q, want %q", reported, want)
	}
	if len(seen) == 4 {
		slices.Sort(seen[1:3])
	}
	want := []string{
		"POST /v1/instances", "GET /v1/faults?instance=a", "GET /v1/instances/a/unmanaged?after=0&wait=0&search=0", "DELETE /v1/instances/a/owner",
	}
	if !reflect.DeepEqual(seen, want) {
		t.Errorf("requests: got %q, want %q", seen, want)
	}
}
