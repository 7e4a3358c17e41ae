package profile

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/measure/loadtest"
	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// server answers as the path requests, and appends a line for each request to the file served.
type server struct {
	mu     sync.Mutex
	served *os.File
	count  int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	user, password, _ := r.BasicAuth()
	s.mu.Lock()
	s.count++
	odd := s.count%2 == 1
	fmt.Fprintln(s.served, r.Method, r.RequestURI, r.Host, user+":"+password, r.Header.Get("X-Test"), r.Proto, string(body))
	s.mu.Unlock()
	switch {
	case strings.HasSuffix(r.URL.Path, "/hang"):
		<-r.Context().Done()
	case strings.HasSuffix(r.URL.Path, "/endless"):
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 1<<10))
			_ = http.NewResponseController(w).Flush()
		}
	case strings.HasSuffix(r.URL.Path, "/flaky") && odd:
		http.Error(w, "no such luck", http.StatusInternalServerError)
	case strings.HasSuffix(r.URL.Path, "/cut"):
		w.Header().Set("Content-Length", "9")
		_, _ = w.Write([]byte("half"))
	case strings.HasSuffix(r.URL.Path, "/moved"):
		http.Redirect(w, r, "/", http.StatusFound)
	}
}

func newServer(ts *testscript.TestScript) *server {
	f, err := os.OpenFile(ts.MkAbs("served"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	ts.Check(err)
	ts.Defer(func() { _ = f.Close() })
	return &server{served: f}
}

// serve implements the script command serve. It starts a server at $ADDRESS and, with HTTP/2 and TLS, at $SECURE; the
// file ca.pem contains its certificate. Nothing listens at $NOBODY.
func serve(ts *testscript.TestScript, _ bool, _ []string) {
	handler := newServer(ts)
	s := httptest.NewServer(handler)
	ts.Defer(s.Close)
	ts.Setenv("ADDRESS", s.Listener.Addr().String())
	secure := httptest.NewUnstartedServer(handler)
	secure.EnableHTTP2 = true
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // clients without the certificate disconnect
	secure.StartTLS()
	ts.Defer(secure.Close)
	ts.Setenv("SECURE", secure.Listener.Addr().String())
	ts.Check(os.WriteFile(ts.MkAbs("ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Setenv("NOBODY", free.Addr().String())
	ts.Check(free.Close())
}

// serveGateway implements the script command gateway. It serves a gateway of the run directory that knows all functions.
func serveGateway(ts *testscript.TestScript, _ bool, _ []string) {
	dir := ts.Getenv("GFAAS_RUN_DIR")
	ts.Check(owndir.Ensure(dir))
	l, err := net.Listen("unix", gateway.Socket(dir))
	ts.Check(err)
	s := &http.Server{Handler: newServer(ts), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	ts.Defer(func() { _ = s.Close() })
}

// applied implements the script command applied NAME CONTRACT SLO [ADDRESS…]. It stores a function with that objective,
// and an instance at each address with the PID of this process.
func applied(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	state := bolt.Open(filepath.Join(ts.Getenv("WORK"), "state.db"), nil)
	slo, err := time.ParseDuration(args[2])
	ts.Check(err)
	fns, err := function.Parse(strings.NewReader(fmt.Sprintf("name: %s\ncommand: [x]\ncontract: %s\n", args[0], args[1])), "-")
	ts.Check(err)
	fns[0].SLO = slo
	ts.Check(state.Apply(ctx, fns...))
	self, err := procfs.Read(os.Getpid())
	ts.Check(err)
	for i, address := range args[3:] {
		r := instance.Record{ID: fmt.Sprintf("%s-%d", args[0], i), Function: args[0], Runtime: instance.Process, GPUs: []string{"sim"},
			Slice: gpu.Slice{SMPct: 50, QuotaRequest: 1, QuotaLimit: 1}, State: instance.Ready, Contract: args[1],
			Handle: instance.Handle{Runtime: instance.Process, PID: self.PID, StartTime: self.Start, Address: address}}
		if address == "gone" {
			r.Handle.StartTime++
			r.Handle.Address = ts.Getenv("ADDRESS")
		}
		if address == "starting" {
			r.State = instance.Starting
		}
		ts.Check(state.Reserve(ctx, r))
	}
}

// TestLoadColumns checks that every metric of a condition is a column.
func TestLoadColumns(t *testing.T) {
	text := loadCSV(loadtest.Result{})
	for _, metric := range loadtest.Metrics() {
		if !slices.Contains(text[0], metric) {
			t.Errorf("%s is no column", metric)
		}
	}
	if len(text[0]) != len(text[1]) {
		t.Errorf("%d columns, %d cells", len(text[0]), len(text[1]))
	}
}
