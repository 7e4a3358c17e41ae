package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/swarm"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// fakeRuntime is a swarmRuntime that saves the state in memory.
type fakeRuntime struct {
	claim, load error
	saved       *swarm.Saved
	services    []string // IDs of instances with a service

	mu      sync.Mutex
	save    error // of the next saves
	claims  int
	states  []string // functions of each save, also of failed ones
	stopped []string
}

func (r *fakeRuntime) Claim(context.Context) error                { r.claims++; return r.claim }
func (r *fakeRuntime) Load(context.Context) (*swarm.Saved, error) { return r.saved, r.load }

func (r *fakeRuntime) Save(_ context.Context, s swarm.Saved) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states = append(r.states, strings.Join(namesOf(s.Functions), " "))
	if r.save == nil {
		r.saved = &s
	}
	return r.save
}

// answer lets the next saves return err.
func (r *fakeRuntime) answer(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.save = err
}

func (r *fakeRuntime) Find(context.Context, string) (found []instance.Record, err error) {
	for _, id := range r.services {
		found = append(found, instance.Record{ID: id, Handle: instance.Handle{Runtime: instance.Swarm, Container: id}})
	}
	return found, nil
}

func (r *fakeRuntime) Stop(_ context.Context, h instance.Handle, _ time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = append(r.stopped, h.Container)
	return nil
}

func namesOf(list []function.Function) (names []string) {
	for _, fn := range list {
		names = append(names, fn.Name)
	}
	return names
}

func named(names ...string) (list []function.Function) {
	for _, name := range names {
		list = append(list, function.Function{Name: name, Image: "x", GPUs: 1})
	}
	return list
}

func recordOf(fn, id string) instance.Record {
	return instance.Record{ID: id, Function: fn, Runtime: instance.Swarm, State: instance.Ready, Owner: instance.Gateway,
		Handle: instance.Handle{Runtime: instance.Swarm, Container: id}}
}

// catalogWith returns a catalog with functions and one instance of the first.
func catalogWith(t *testing.T, id string, names ...string) *instancetest.FakeCatalog {
	t.Helper()
	c := &instancetest.FakeCatalog{}
	if err := errors.Join(c.Apply(t.Context(), named(names...)...), c.Reserve(t.Context(), recordOf(names[0], id))); err != nil {
		t.Fatal(err)
	}
	return c
}

// state returns the functions and instances of a catalog.
func state(t *testing.T, c ports.Catalog) (names, ids []string) {
	t.Helper()
	listing, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range listing.Instances {
		ids = append(ids, r.ID)
	}
	return namesOf(listing.Functions), ids
}

// stateFile returns the path of a state file with an ID.
func stateFile(t *testing.T, id string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "state.db")
	if err := errors.Join(os.WriteFile(path, []byte("state"), 0o600), os.WriteFile(path+markerSuffix, []byte(id), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRestore checks which state a gateway continues with, and which services it stops.
func TestRestore(t *testing.T) {
	other := &swarm.Saved{Writer: "another file", Functions: named("f", "h"), Instances: []instance.Record{recordOf("h", "h-0")}}
	own := &swarm.Saved{Writer: "own file", Functions: named("f", "h")}
	for _, c := range []struct {
		name                string
		saved               *swarm.Saved
		names, ids, stopped []string
	}{
		{"nothing is saved", nil, []string{"f", "g"}, []string{"f-0"}, []string{"h-0", "stray"}},
		{"this state file was saved last", own, []string{"f", "g"}, []string{"f-0"}, []string{"h-0", "stray"}},
		{"another state file was saved last", other, []string{"f", "h"}, []string{"h-0"}, []string{"f-0", "stray"}},
		{"another one without functions", &swarm.Saved{Writer: "another file"}, nil, nil, []string{"f-0", "h-0", "stray"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := stateFile(t, "own file\n")
			catalog := catalogWith(t, "f-0", "f", "g")
			r := &fakeRuntime{saved: c.saved, services: []string{"f-0", "h-0", "stray"}}
			k := stateKeeper{runtime: r}
			if err := k.Restore(t.Context(), catalog, file); err != nil {
				t.Fatal(err)
			}
			names, ids := state(t, catalog)
			slices.Sort(r.stopped)
			if !reflect.DeepEqual([][]string{names, ids, r.stopped}, [][]string{c.names, c.ids, c.stopped}) || r.claims != 1 || k.writer != "own file" {
				t.Errorf("after Restore: got functions %v, instances %v, stopped services %v, %d claims, writer %q; want %v, %v, %v, 1 and %q",
					names, ids, r.stopped, r.claims, k.writer, c.names, c.ids, c.stopped, "own file")
			}
		})
	}
}

// TestRestoreIdentifiesStateFile checks that a state file keeps its identity, and that two files have different ones.
func TestRestoreIdentifiesStateFile(t *testing.T) {
	dir := t.TempDir()
	var writers []string
	for _, name := range []string{"a", "a", "b"} {
		k, file := stateKeeper{runtime: &fakeRuntime{}}, filepath.Join(dir, name)
		if err := k.Restore(t.Context(), &instancetest.FakeCatalog{}, file); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("state"), 0o600); err != nil { // with the first change of the state
			t.Fatal(err)
		}
		writers = append(writers, k.writer)
	}
	if writers[0] == "" || writers[0] != writers[1] || writers[0] == writers[2] {
		t.Errorf("IDs of the state files a, a and b: got %q, want two equal ones and a different one", writers)
	}
}

// TestRestoreRemovedStateFile checks that a state file that is created again after it was removed or emptied is not taken
// for the one before.
func TestRestoreRemovedStateFile(t *testing.T) {
	for name, remove := range map[string]func(file string) error{
		"removed": os.Remove,
		"emptied": func(file string) error { return os.Truncate(file, 0) },
	} {
		file := stateFile(t, "own file\n")
		if err := remove(file); err != nil {
			t.Fatal(err)
		}
		catalog := &instancetest.FakeCatalog{}
		r := &fakeRuntime{saved: &swarm.Saved{Writer: "own file", Functions: named("f"), Instances: []instance.Record{recordOf("f", "f-0")}}, services: []string{"f-0"}}
		if err := (&stateKeeper{runtime: r}).Restore(t.Context(), catalog, file); err != nil {
			t.Fatal(err)
		}
		if names, ids := state(t, catalog); !slices.Equal(names, []string{"f"}) || !slices.Equal(ids, []string{"f-0"}) || len(r.stopped) > 0 {
			t.Errorf("%s: functions %v, instances %v, stopped services %v; want those that are saved", name, names, ids, r.stopped)
		}
	}
}

// TestRestoreFails checks that an error leaves the catalog and the services as they were.
func TestRestoreFails(t *testing.T) {
	for name, r := range map[string]*fakeRuntime{
		"no quorum":        {claim: errors.New("no quorum")},
		"a damaged config": {load: errors.New("a damaged config")},
	} {
		catalog := catalogWith(t, "f-0", "f")
		r.services = []string{"stray"}
		err := (&stateKeeper{runtime: r}).Restore(t.Context(), catalog, filepath.Join(t.TempDir(), "state.db"))
		names, ids := state(t, catalog)
		if err == nil || err.Error() != name || len(names) != 1 || len(ids) != 1 || len(r.stopped) != 0 {
			t.Errorf("%s: got error %v, functions %v, instances %v, stopped services %v; want the error, f, f-0 and none", name, err, names, ids, r.stopped)
		}
	}
}

// TestKeepSaved checks that each change is saved, that a failed save is tried again and reported once, and that the
// last state is saved at the end.
func TestKeepSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		catalog, r := &instancetest.FakeCatalog{}, &fakeRuntime{}
		apply := func(names ...string) {
			t.Helper()
			if err := catalog.Apply(t.Context(), named(names...)...); err != nil {
				t.Fatal(err)
			}
		}
		apply("a")
		ctx, stop := context.WithCancel(t.Context())
		var reports []string
		ended := make(chan bool)
		k := stateKeeper{runtime: r, writer: "w"}
		go func() {
			k.KeepSaved(ctx, catalog, func(err error) {
				r.mu.Lock()
				defer r.mu.Unlock()
				reports = append(reports, err.Error())
			})
			close(ended)
		}()
		expect := func(when, last string, saves, failures int) {
			t.Helper()
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			if n := len(r.states); n != saves || r.states[n-1] != last || len(reports) != failures {
				t.Fatalf("%s: got saves %q and reports %q, want %d saves, the last one of %q, and %d reports", when, r.states, reports, saves, last, failures)
			}
		}
		expect("at first", "a", 1, 0)
		apply("b")
		expect("after a change", "a b", 2, 0)
		r.answer(errors.New("no quorum"))
		apply("c")
		expect("without a quorum", "a b c", 3, 1)
		time.Sleep(savePause + saveRetry)
		expect("after another attempt", "a b c", 4, 1)
		r.answer(nil)
		time.Sleep(savePause + saveRetry)
		expect("with a quorum", "a b c", 5, 1)
		time.Sleep(time.Hour)
		expect("without a change", "a b c", 5, 1)
		stop()
		<-ended
		expect("at the end", "a b c", 6, 1)
		if r.saved.Writer != "w" || len(r.saved.Functions) != 3 {
			t.Errorf("saved state: got %+v, want 3 functions with the writer w", r.saved)
		}
	})
}

// TestKeepSavedEnds checks that a gateway stops saving after another one has taken over.
func TestKeepSavedEnds(t *testing.T) {
	r, reports := &fakeRuntime{save: swarm.ErrSuperseded}, 0
	(&stateKeeper{runtime: r}).KeepSaved(t.Context(), catalogWith(t, "f-0", "f"), func(error) { reports++ })
	if len(r.states) != 1 || reports != 1 {
		t.Errorf("after another gateway has taken over: got %d saves and %d reports, want one of each", len(r.states), reports)
	}
}

// endingContext calls asked after each question whether it has ended.
type endingContext struct {
	context.Context
	asked func()
}

func (c endingContext) Err() error {
	defer c.asked()
	return c.Context.Err()
}

// watchedCatalog calls returned after each Watch.
type watchedCatalog struct {
	*instancetest.FakeCatalog
	returned func()
}

func (c watchedCatalog) Watch(ctx context.Context, last ports.Revision) (ports.Listing, error) {
	defer c.returned()
	return c.FakeCatalog.Watch(ctx, last)
}

// TestKeepSavedSavesLastChange checks that a change just before the end is saved, even if KeepSaved has just read the
// state before it.
func TestKeepSavedSavesLastChange(t *testing.T) {
	catalog, r := catalogWith(t, "a-0", "a"), &fakeRuntime{}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	read := false
	ending := endingContext{ctx, func() {
		if !read || ctx.Err() != nil {
			return
		}
		if err := catalog.Apply(t.Context(), named("b")...); err != nil {
			t.Error(err)
		}
		stop()
	}}
	(&stateKeeper{runtime: r}).KeepSaved(ending, watchedCatalog{catalog, func() { read = true }}, func(err error) { t.Error(err) })
	if n := len(r.states); n == 0 || r.states[n-1] != "a b" {
		t.Errorf("saves %q, want the last one of a and b", r.states)
	}
}
