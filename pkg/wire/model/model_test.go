package model

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"a": true, "A9": true, "meta-llama/Llama-3.1_8B": true, "a/../b": true, strings.Repeat("a", 255): true,
		"": false, ".a": false, "/a": false, "-a": false, "a b": false, "a\n": false, "é": false, strings.Repeat("a", 256): false,
	} {
		if err := CheckName(name); (err == nil) != good {
			t.Errorf("CheckName(%q): got the error %v, want a valid name: %v", name, err, good)
		}
	}
	for tenant, good := range map[string]bool{"blue": true, "a.b-c_d": true, "": false, "a/b": false, "..": false, ".a": false, "a.": false, strings.Repeat("a", 64): false} {
		if err := CheckTenant(tenant); (err == nil) != good {
			t.Errorf("CheckTenant(%q): got the error %v, want a valid tenant: %v", tenant, err, good)
		}
	}
}

func TestFileOf(t *testing.T) {
	for name, want := range map[string]string{"a": "/m/a.safetensors", "a/b.c": "/m/a/b.c.safetensors", "a/../b": "", "a/..": "", "a..b": "/m/a..b.safetensors"} {
		if got, ok := FileOf("/m", name); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, ok, want)
		}
	}
}

func TestParseRequest(t *testing.T) {
	r, err := ParseRequest([]byte(` {"op":"get","name":"a","Name":"b","ID":7,"more":[1,{}],"timeout_ms":5,"id":"x"} `))
	if err != nil || r.Op != OpGet || r.Name != "a" || r.TimeoutMS != 5 || string(r.ID) != `"x"` {
		t.Errorf(`ParseRequest: got %+v, %v; want Op %v, Name a, TimeoutMS 5, ID "x"`, r, err, OpGet)
	}
	for _, bad := range []string{"", " ", "null", " null", "[]", "7", `"get"`, "{}{}", `{"op":`, `{"op":null,}`, `{"op":"\xff"}`, `{"timeout_ms":1e400}`} {
		if r, err := ParseRequest([]byte(bad)); err == nil {
			t.Errorf("ParseRequest(%s): got %+v, want an error", bad, r)
		}
	}
}

// FuzzParseRequest checks that any bytes decode to a request or an error.
func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(`{"op":"get","id":[1,{"a":null}],"name":"a","timeout_ms":10,"more":1}`))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if _, err := ParseRequest(packet); err == nil && len(packet) > MaxRequest {
			t.Errorf("ParseRequest of %d bytes: got no error, want one above %d bytes", len(packet), MaxRequest)
		}
	})
}

// TestManifestEncodesLikeHeader checks that a manifest encodes texts in the same way as a safetensors header, so
// that a valid header never makes a manifest that is too long.
func TestManifestEncodesLikeHeader(t *testing.T) {
	const want = `{"tensors":{"<a>":{"dtype":"U8","shape":[1],"offset":0,"bytes":1}},"metadata":{"&":"<b>","é":"\u0001"}}`
	got, err := AppendManifest(nil, []Place{{"<a>", "U8", []int64{1}, 0, 1}}, map[string]string{"é": "\x01", "&": "<b>"})
	if string(got) != want || err != nil {
		t.Errorf("manifest: got %s, %v; want %s", got, err, want)
	}
	if got, err := AppendManifest(nil, nil, nil); string(got) != `{"tensors":{},"metadata":{}}` || err != nil {
		t.Errorf(`empty manifest: got %s, %v; want {"tensors":{},"metadata":{}}`, got, err)
	}
}

// TestParseManifest checks that a manifest is parsed as strictly as a file's header.
func TestParseManifest(t *testing.T) {
	const size = 1 << 20
	entry := func(name, dtype, shape string, offset, bytes int) string {
		return fmt.Sprintf(`%q:{"dtype":%q,"shape":%s,"offset":%d,"bytes":%d}`, name, dtype, shape, offset, bytes)
	}
	of := func(entries ...string) string {
		return `{"tensors":{` + strings.Join(entries, ",") + `},"metadata":{}}`
	}
	full, empty := entry("a", "F32", "[2,32]", 0, 256), entry("z", "U8", "[0]", 0, 0)
	for text, want := range map[string]string{
		of():            "",
		of(full, empty): "",
		of(full, entry("b", "BF16", "[]", 256, 2), entry("c", "U8", "[0,7]", 512, 0), entry("d", "U8", "[1]", 512, 1)): "",
		`{"tensors":{},"more":[]}`:    "",
		`[]`:                          "invalid manifest",
		`null`:                        "no tensors",
		`{}`:                          "no tensors",
		`{"Tensors":{}}`:              "no tensors",
		of() + of():                   "invalid manifest",
		of(full, full):                "duplicate",
		`{"tensors":{},"tensors":{}}`: "duplicate",
		`{"tensors":{},"metadata":{"a":"","a":""}}`:           "duplicate",
		`{"tensors":{},"metadata":{"a":1}}`:                   "invalid manifest",
		of(entry("__metadata__", "U8", "[1]", 0, 1)):          `tensor "__metadata__": a file has its metadata`,
		of(entry("a", "F32", "[2]", 0, 4)):                    `tensor "a": 4 bytes, expected 8 for F32 of shape [2]`,
		of(entry("a", "F32", "[1000000]", 0, 8)):              `tensor "a": 8 bytes, expected 4000000`,
		of(entry("a", "F33", "[2]", 0, 8)):                    `tensor "a": unknown dtype "F33"`,
		of(entry("a", "", "[2]", 0, 8)):                       `tensor "a": unknown dtype ""`,
		of(entry("a", "U8", "null", 0, 1)):                    `tensor "a": shape is missing`,
		of(entry("a", "U8", "[-1,-1]", 0, 1)):                 `tensor "a": shape has -1`,
		of(entry("a", "U8", "[4294967296,4294967296]", 0, 0)): "exceeds 64 bits",
		of(entry("a", "U8", "[1]", 8, 1)):                     "expected a multiple of 256",
		of(entry("a", "U8", "[1]", size, 1)):                  "an end within 1048576",
		of(entry("a", "U8", "[1]", -256, 1)):                  "1 bytes at -256",
		of(full, entry("b", "U8", "[256]", 0, 256)):           `tensor "b" begins at 0, within the previous tensor, which ends at 256`,
		of(entry("a", "U8", "[600]", 0, 600), entry("z", "U8", "[0]", 256, 0), entry("b", "U8", "[1]", 512, 1)): `tensor "b" begins at 512, within`,
	} {
		_, _, err := ParseManifest(strings.NewReader(text), size)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// FuzzParseManifest checks that parsed places lie within the allocation, and that encoding and parsing them again
// yields the same places.
func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(`{"tensors":{"b":{"dtype":"F32","shape":[2,1],"offset":256,"bytes":8},"a":{"dtype":"U8","shape":[],"offset":0,"bytes":1}},"metadata":{"k":"v"}}`), int64(1024))
	f.Fuzz(func(t *testing.T, text []byte, size int64) {
		first, metadata, err := ParseManifest(bytes.NewReader(text), size)
		if err != nil {
			return
		}
		for _, p := range first {
			if p.Offset < 0 || p.Bytes < 0 || p.Offset+p.Bytes > size || p.Offset%Alignment != 0 {
				t.Fatalf("place in an allocation of %d bytes: got %+v, want one within it, aligned to %d", size, p, Alignment)
			}
		}
		printed, err := AppendManifest(nil, first, metadata)
		if err != nil {
			t.Fatal(err)
		}
		second, again, err := ParseManifest(bytes.NewReader(printed), size)
		if err != nil {
			t.Fatalf("parse the printed manifest: %v\n%s", err, printed)
		}
		if !reflect.DeepEqual(first, second) || len(metadata) != len(again) {
			t.Errorf("round trip of a manifest: got %+v and %d items of metadata, want %+v and %d, in\n%s", second, len(again), first, len(metadata), printed)
		}
	})
}
