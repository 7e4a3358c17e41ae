package kernel_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/kernel"
)

// addPTX returns PTX with a kernel k(a, b, c, n) that performs an operation of the simulated driver, and a comment of the
// given length.
func addPTX(op string, comment int) []byte {
	return []byte("// gfaas-sim: k op=" + op + "\n.version 7.0\n.target sm_50\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) { ret; }\n//" + strings.Repeat(" ", comment))
}

// stored returns a request for one launch of the kernel k in a stored module, with inline output c.
func stored(module string) string {
	request := strings.Replace(sum("a", "a", "c", 2, ""), `"key":"c"`, `"inline":true`, 1)
	request = strings.Replace(request, `{"builtin":"blas"}`, `{"stored":"`+module+`"}`, 1)
	return strings.Replace(request, `"name":"vadd"`, `"name":"k","grid":[1,1,1],"block":[32,1,1]`, 1)
}

// A request uses the code that had the name when the request was accepted. Replaced and removed code counts as memory
// until the last request that uses it has finished.
func TestStoredModules(t *testing.T) {
	d, open := serveGated(t, func(*kernel.Config) {})
	d.putObject("", "a", []float32{1, 2})
	put := func(client, name string, code []byte) error {
		_, err := d.do(client, "PUT", "/v1/modules/"+name, code)
		return err
	}
	const large = 100 << 10
	if err := put("", "lib/add", addPTX("vadd_f32", large)); err != nil {
		t.Fatal(err)
	}
	d.refused("bob", stored("lib/add"), "not-found", "/modules/m/stored") // another client's
	before := d.submit("", stored("lib/add"))
	idle := bytes.Replace(addPTX("vadd_f32", 0), []byte("gfaas-sim: k op"), []byte("no operation"), 1)
	if err := put("", "lib/add", idle); err != nil {
		t.Fatal(err)
	}
	if used := d.stats().Host.Used; used < large {
		t.Errorf("host memory while a request uses replaced code: got %d bytes, want at least the %d of the code", used, large)
	}
	d.delete("", "/v1/modules/lib/add")
	d.refused("", stored("lib/add"), "not-found", "/modules/m/stored")
	open()
	if s := d.wait("", before.ID); s.State != "done" || !slices.Equal(values(s.Answer.Outputs["c"].Data), []float32{2, 4}) {
		t.Errorf("run with the code of its arrival: got %+v with the error %+v, want done with 2 and 4", s, s.Error)
	}
	d.delete("", "/v1/runs/"+before.ID)
	if s := d.stats(); s.Host.Used != 8 || s.Clients[0].Modules != 0 {
		t.Errorf("after the end: got %+v and %d modules, want the 8 bytes of a", s.Host, s.Clients[0].Modules)
	}
	for _, c := range []struct {
		name, code, problem, message string
	}{
		{"bad", "hello", "bad-request", "neither PTX"},
		{"bad", ".version 7.0\x00", "bad-request", "zero bytes"},
		{"bad", "\x7fELF", "bad-request", "malformed cubin"},
		{"bad", "\x50\xed\x55\xba", "bad-request", "the header of the fatbin has 4 bytes"},
		{"-bad", ".version 7.0", "bad-request", "invalid name"},
		{"empty", "", "bad-request", "Content-Length is 0"},
	} {
		if err := put("", c.name, []byte(c.code)); !isProblem(err, c.problem, c.message) {
			t.Errorf("store %q as %s: got %v, want %s with %q", c.code, c.name, err, c.problem, c.message)
		}
	}
}

// Stored code counts in the limits on the memory and the number of objects.
func TestStoredModuleLimits(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.HostMem, c.MaxObjects = 1<<20, 4 })
	put := func(name string, comment int) error {
		_, err := d.do("", "PUT", "/v1/modules/"+name, addPTX("vadd_f32", comment))
		return err
	}
	if err := put("a", 600<<10); err != nil {
		t.Fatal(err)
	}
	if err := put("b", 600<<10); !isProblem(err, "too-large", "the host tier is full") {
		t.Errorf("code beyond the memory: got %v, want too-large", err)
	}
	if err := put("b", 0); err != nil {
		t.Error(err)
	}
	if err := put("b", 1); err != nil { // replaces
		t.Error(err)
	}
	if err := put("c", 0); !isProblem(err, "too-large", "more objects do not fit") {
		t.Errorf("a third module, more than half of the objects: got %v, want too-large", err)
	}
	d.delete("", "/v1/modules/b")
	if err := put("c", 0); err != nil {
		t.Error(err)
	}
}
