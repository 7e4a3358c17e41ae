package executor_test

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// An executor on the simulated driver loads a cubin, refuses to launch its kernels, and refuses malformed files. It
// remains usable.
func TestBinaries(t *testing.T) {
	const (
		noBinary = job.CodeNoBinary
		elf      = 16 + 64 // offset of the cubin in the fatbin
		flags    = 16 + 40 // offset of the flags of the first image
	)
	put := func(at int, v uint32) func(b []byte) {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], v) }
	}
	withoutPTX := func(b []byte) { binary.LittleEndian.PutUint16(b[elf+4008:], 7) } // another kind of image
	e, _ := start(t, 1<<20)
	for i, c := range []struct {
		what, file string
		change     func(b []byte)
		step       job.Step // that must fail; NotStarted: none
	}{
		{"cubin", "scale.cubin", func([]byte) {}, job.Kernels},
		{"fatbin with PTX", "scale.fatbin", func([]byte) {}, job.NotStarted},
		{"fatbin without PTX", "scale.fatbin", withoutPTX, job.Kernels},
		{"compressed fatbin without PTX", "scale.fatbin", func(b []byte) { withoutPTX(b); b[flags+1] |= 0x20 }, job.Load},
		{"cubin for another architecture", "scale.cubin", put(48, 0x32055a), job.Load},
		{"ELF file for another machine", "scale.cubin", put(18, 62), job.Load},
		{"list of sections beyond the file", "scale.cubin", put(40, 1<<31), job.Load},
		{"section beyond the file", "scale.cubin", put(2944+64+24, 1<<31), job.Load},
		{"parameters that do not match their size", "scale.cubin", put(0x478+0x18, 0x14190300), job.Load},
		{"fatbin of 0 bytes", "scale.fatbin", put(8, 0), job.Load},
		{"image beyond the fatbin", "scale.fatbin", put(16+8, 1<<20), job.Load},
	} {
		code, err := os.ReadFile("../../kgraph/testdata/" + c.file)
		if err != nil {
			t.Fatal(err)
		}
		c.change(code)
		const x, a, n = 0, 1, 2
		j := &job.Job{ID: uint64(i + 1), Limit: 1 << 20, Load: []job.Module{{Number: uint32(i), PTX: string(code)}}, Alloc: []job.Block{{Number: uint32(i), Size: 64}}, Iterations: 1,
			Kernels: []job.Kernel{{Module: uint32(i), Name: "scale", Grid: [3]int{1, 1, 1}, Block: [3]int{16, 1, 1}, Args: []job.Arg{x: {Block: uint32(i)}, a: {Value: make([]byte, 4)}, n: {Value: make([]byte, 4)}}}}}
		o, err := carryOut(e, j.Append(nil), j.ID, patience)
		switch {
		case err != nil:
			t.Fatalf("%s: %v", c.what, err)
		case o.Step != c.step || o.Fatal || c.step != job.NotStarted && o.Code != noBinary:
			t.Errorf("%s: got %+v, want the step %v to fail with %d (0: none)", c.what, o, c.step, noBinary)
		}
	}
}
