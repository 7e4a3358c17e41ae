package kgraph

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// Files compiled from a kernel scale(x, a, n) and a kernel none() with .maxntid 128: a cubin for sm_80, and a fatbin
// with this cubin and the PTX for sm_50. ptxas and fatbinary of CUDA 11.8 made them.
const (
	cubinFile  = "testdata/scale.cubin"
	fatbinFile = "testdata/scale.fatbin"
)

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestReadBinary(t *testing.T) {
	entries := map[string]*Entry{
		"scale": {Params: []Param{{Size: 8, Pointer: true}, {Size: 4}, {Size: 4}}},
		"none":  {MaxThreads: 128},
	}
	cubin := &Image{Signature: Signature{Target: 80, Entries: entries}, Machine: true}
	ptx := &Image{Signature: Signature{Target: 50, Entries: entries}}
	compressed := readFile(t, fatbinFile)
	const elf, flags = fatbinHeader, 40
	compressed[elf+flags+1] |= imageCompressed >> 8
	for _, c := range []struct {
		what string
		code []byte
		want []*Image
	}{
		{"cubin", readFile(t, cubinFile), []*Image{cubin}},
		{"fatbin", readFile(t, fatbinFile), []*Image{cubin, ptx}},
		{"fatbin with a compressed cubin", compressed, []*Image{{Signature: Signature{Target: 80}, Machine: true, Compressed: true}, ptx}},
	} {
		got, err := ReadBinary(string(c.code))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v; want %+v", c.what, got, err, c.want)
		}
	}
}

// Malformed files are refused with the reason.
func TestReadBadBinary(t *testing.T) {
	put16 := func(at int, v uint16) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint16(b[at:], v); return b }
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	for _, c := range []struct {
		file   string
		change func([]byte) []byte
		want   string
	}{
		{cubinFile, func([]byte) []byte { return nil }, "no bytes"},
		{cubinFile, func([]byte) []byte { return []byte(".version 7.0") }, "neither a cubin (an ELF file) nor a fatbin: it starts with 2e 76 65 72"},
		{cubinFile, cut(40), "malformed cubin"},
		{cubinFile, cut(3000), "malformed cubin"},
		{cubinFile, put16(18, 62), "an ELF file for EM_X86_64"},
		{cubinFile, put16(16, 1), "a cubin of the type ET_REL"},
		{cubinFile, func(b []byte) []byte { b[7] = 0; return b }, "the ABI of the cubin is 0x0"},
		{cubinFile, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(".text.scale"), []byte(".text.scal_")) }, "no code for the kernel scale"},
		{cubinFile, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte{3, 0x19, 0x10}, []byte{3, 0x19, 0x14}) }, "kernel scale of the cubin: 16 bytes of parameters are described, expected 20"},
		{fatbinFile, cut(10), "the header of the fatbin has 10 bytes"},
		{fatbinFile, put16(4, 2), "version 2 of the fatbin"},
		{fatbinFile, cut(4000), "the fatbin has 3984 bytes after its header, expected 4768"},
		{fatbinFile, func(b []byte) []byte { b[16+8+2] = 1; return b }, "image 0 of the fatbin: a header of 64 bytes and 69544 bytes of code"},
		{fatbinFile, put16(16+64+18, 62), "image 0 of the fatbin: an ELF file for EM_X86_64"},
		{fatbinFile, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(".version"), []byte(".varsion")) }, "image 1 of the fatbin: not PTX"},
	} {
		_, err := ReadBinary(string(c.change(readFile(t, c.file))))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with a fault: got %v, want %q", c.file, err, c.want)
		}
	}
}

// A launch of a kernel in a binary is checked like one in PTX, against the image for the device.
func TestCheckBinary(t *testing.T) {
	request := func(file, name, args string) string {
		return fmt.Sprintf(`{"version":1,"modules":{"m":{"binary":%q}},"buffers":{"x":{"kind":"output","key":"x","size":64}},
"kernels":[{"module":"m","name":%q,"grid":[1,1,1],"block":[256,1,1],"args":[%s]}]}`, base64.StdEncoding.EncodeToString(readFile(t, file)), name, args)
	}
	const good = `{"buffer":"x"},{"f32":2},{"u32":16}`
	for _, c := range []struct {
		request    string
		arch       int
		code, want string
	}{
		{request(cubinFile, "scale", good), 80, "", ""},
		{request(cubinFile, "scale", good), 86, "", ""},
		{request(cubinFile, "scale", good), 90, Unsupported, "the code is for sm_80, but the GPU is sm_90"},
		{request(cubinFile, "scale", good), 75, Unsupported, "the code is for sm_80"},
		{request(fatbinFile, "scale", good), 90, "", ""},
		{request(fatbinFile, "scale", good), 37, Unsupported, "the code is for sm_80, sm_50, but"},
		{request(fatbinFile, "scale", `{"buffer":"x"},{"f32":2}`), 80, BadRequest, "2 arguments, but scale takes 3"},
		{request(cubinFile, "scale", `{"f32":2},{"buffer":"x"},{"u32":16}`), 80, BadRequest, "f32 is 4 bytes, but scale takes 8 there"},
		{request(cubinFile, "other", good), 80, BadRequest, `the module "m" has no kernel "other"`},
		{request(cubinFile, "none", ""), 80, BadRequest, "256 threads, but none allows at most 128"},
		{strings.Replace(request(cubinFile, "scale", good), `"binary"`, `"ptx":".version 7.0","binary"`, 1), 80, BadRequest, "2 of the keys ptx, binary, file, stored and builtin"},
		{strings.Replace(request(cubinFile, "scale", good), `"binary":"f0VM`, `"binary":"AAAA`, 1), 80, BadRequest, "neither a cubin"},
	} {
		r, problems := Parse([]byte(c.request))
		if problems == nil {
			w := world()
			w.Device.Arch = c.arch
			problems = r.Check(w)
			text, err := r.Encode()
			again, _ := Parse(text)
			if err != nil || again == nil || again.Modules[0].Binary != r.Modules[0].Binary {
				t.Errorf("encoded and parsed again: the binary differs (%v)", err)
			}
		}
		switch {
		case c.want == "" && problems != nil:
			t.Errorf("sm_%d: got the problem %v, want none", c.arch, problems[0])
		case c.want != "" && (problems == nil || problems[0].Code != c.code || !strings.Contains(problems[0].Message, c.want)):
			t.Errorf("sm_%d: got the problems %v, want %s with %q", c.arch, problems, c.code, c.want)
		}
	}
}

func FuzzReadBinary(f *testing.F) {
	f.Add(readFile(f, cubinFile))
	f.Add(readFile(f, fatbinFile))
	f.Fuzz(func(t *testing.T, code []byte) {
		images, err := ReadBinary(string(code))
		if err == nil && len(images) == 0 {
			t.Error("got neither an image nor an error")
		}
	})
}
