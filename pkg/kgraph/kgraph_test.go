package kgraph

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

const vaddPTX = `// .entry not_this(.param .u32 n)
.version 7.0
.target sm_50
.address_size 64
/* nor .entry this( */
.visible .entry vadd(
	.param .u64 .ptr .global .align 4 a,
	.param .u64 b, .param .u64 c,
	.param .u32 n
)
.maxntid 512, 1, 1
{ .reg .b32 %r<2>; { ret; } }
.entry fixed(.param .align 8 .b8 pair[16], .param .f64 d, .param .s64 s) .reqntid 32 { ret; }
`

// good returns a valid request, in which tests change one place.
func good() string {
	return fmt.Sprintf(`{"version":1,"iterations":2,
 "modules":{"m":{"ptx":%q},"b":{"builtin":"blas"}},
 "buffers":{"x":{"kind":"input","key":"vec/x","size":4096},"y":{"kind":"output","key":"vec/y","size":4096,"inline":true},
            "t":{"kind":"temporary","size":4096},"io":{"kind":"inout","key":"vec/io","volatile":true},
            "d":{"kind":"input","data":"AAAAAAAAAAA="}},
 "kernels":[{"module":"m","name":"vadd","grid":[4,1,1],"block":[256,1,1],"shared":0,
             "args":[{"buffer":"x"},{"buffer":"x","offset":8},{"buffer":"y"},{"i32":1024}]},
            {"module":"m","name":"fixed","grid":[1,1,1],"block":[32,1,1],"args":[{"bytes":"AAAAAAAAAAAAAAAAAAAAAA=="},{"f64":-1.5e300},{"i64":-9223372036854775808}]},
            {"module":"b","name":"saxpy","args":[{"f32":0.1},{"buffer":"x"},{"buffer":"t"},{"i32":1024}]},
            {"module":"b","name":"sgemm","args":[{"buffer":"x"},{"buffer":"t"},{"buffer":"y"},{"i32":32},{"i32":32},{"i32":32}]}]}`, vaddPTX)
}

func world() World {
	return World{
		Object: func(key string) (int64, bool) {
			size, found := map[string]int64{"vec/x": 4096, "vec/io": 64}[key]
			return size, found
		},
		Device: &Device{Name: "the GPU", Arch: 80, MaxGrid: [3]int{1 << 30, 65535, 65535}, MaxBlock: [3]int{1024, 1024, 64},
			MaxThreads: 1024, MaxShared: 49152, Budget: 1 << 20},
	}
}

func TestGoodRequest(t *testing.T) {
	r, problems := Parse([]byte(good()))
	if problems != nil {
		t.Fatalf("parse: got the problem %v, want none", problems[0])
	}
	if problems := r.Check(world()); problems != nil {
		t.Fatalf("check: got the problem %v, want none", problems[0])
	}
	if r.Iterations != 2 || len(r.Modules) != 2 || len(r.Buffers) != 5 || len(r.Kernels) != 4 {
		t.Fatalf("request: got %d iterations, %d modules, %d buffers and %d kernels, want 2, 2, 5 and 4", r.Iterations, len(r.Modules), len(r.Buffers), len(r.Kernels))
	}
	if b := r.Buffers[3]; b.Size != 64 || !b.Volatile || !b.Reads() || !b.Writes() {
		t.Errorf("buffer 3: got %+v, want the object's size 64, volatile, read and written", b)
	}
	if a := r.Kernels[0].Args[1]; a.Buffer != 0 || a.Offset != 8 || a.Size() != 8 {
		t.Errorf("argument 1 of kernel 0: got %+v, want buffer 0 at offset 8 with size 8", a)
	}
	if k := r.Kernels[2]; k.Grid != [3]int{4, 1, 1} || k.Block != [3]int{256, 1, 1} {
		t.Errorf("launch of the built-in kernel: got grid %v and block %v, want [4 1 1] and [256 1 1]", k.Grid, k.Block)
	}
	if k := r.Kernels[3]; k.Grid != [3]int{1, 1, 1} || k.Block != [3]int{256, 1, 1} {
		t.Errorf("launch of the matrix product: got grid %v and block %v, want [1 1 1] and [256 1 1]", k.Grid, k.Block)
	}
}

// TestBadRequests checks that each problem is reported with its place and code.
func TestBadRequests(t *testing.T) {
	tests, err := os.ReadFile("testdata/bad.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(tests)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, " | ")
		if len(fields) != 4 {
			t.Fatalf("line %q of the list: got %d fields, want 4", line, len(fields))
		}
		n++
		t.Run(fields[0], func(t *testing.T) {
			text := broken(t, fields[1])
			r, problems := Parse([]byte(text))
			if problems == nil {
				problems = r.Check(world())
			}
			if problems == nil {
				t.Fatalf("no problem was found, want %s, in %.600s", fields[2], text)
			}
			p := problems[0]
			if got := p.Code + " " + p.Where; got != fields[2] || !strings.Contains(p.Message, fields[3]) {
				t.Errorf("%s: %q\nwant %s: …%s…", got, p.Message, fields[2], fields[3])
			}
		})
	}
	if n < 60 {
		t.Errorf("%d cases, want at least 60", n)
	}
}

// broken applies an edit to the good request: OLD => NEW, where NEW may contain REPEAT(n,text) and BYTES(n).
// An edit that starts with = is the whole text.
func broken(t *testing.T, edit string) string {
	t.Helper()
	if whole, is := strings.CutPrefix(edit, "="); is {
		return expand(t, whole)
	}
	old, replacement, ok := strings.Cut(edit, " => ")
	if !ok || !strings.Contains(good(), old) {
		t.Fatalf("the replaced text %q is not part of the valid request", old)
	}
	return strings.Replace(good(), old, expand(t, replacement), 1)
}

func expand(t *testing.T, text string) string {
	t.Helper()
	for {
		before, rest, found := strings.Cut(text, "REPEAT(")
		if !found {
			break
		}
		args, after, _ := strings.Cut(rest, ")REPEAT")
		count, what, _ := strings.Cut(args, ",")
		n := 0
		if _, err := fmt.Sscan(count, &n); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for i := range n {
			out.WriteString(strings.ReplaceAll(what, "#", fmt.Sprint(i)))
		}
		text = before + out.String() + after
	}
	for {
		before, rest, found := strings.Cut(text, "BYTES(")
		if !found {
			return strings.ReplaceAll(text, `\xff`, "\xff")
		}
		count, after, _ := strings.Cut(rest, ")")
		n := 0
		if _, err := fmt.Sscan(count, &n); err != nil {
			t.Fatal(err)
		}
		text = before + base64.StdEncoding.EncodeToString(make([]byte, n)) + after
	}
}

// After a problem, Parse continues and reports further problems.
func TestManyProblems(t *testing.T) {
	text := strings.NewReplacer(`"i32":1024`, `"i32":1e3`, `"kind":"output"`, `"kind":"outptu"`, `"builtin":"blas"`, `"builtin":"blast"`).Replace(good())
	_, problems := Parse([]byte(text))
	var at []string
	for _, p := range problems {
		at = append(at, p.Where)
	}
	for _, want := range []string{"/modules/b/builtin", "/buffers/y/kind", "/kernels/0/args/3/i32", "/kernels/2/args/3/i32"} {
		if !strings.Contains(strings.Join(at, " ")+" ", want+" ") {
			t.Errorf("%s is not among %v", want, at)
		}
	}
}

// JSON syntax errors are reported with line and column.
func TestPlaceOfSyntaxErrors(t *testing.T) {
	for text, want := range map[string][2]int{
		"{\n\n\"version\":1 \"x\"}":                         {3, 13},
		"{\"version\":1,\n\"modules\":{\"é\":{\"ptx\":]}}}": {2, 23},
		"\xef\xbb\xbf{\n\"version\":1,,":                    {2, 13},
		"{\"version\":1,\n\"kernels\":[{}":                  {2, 13},
		"{\"version\":1,\"kernels\":[]}\n\n {}":             {3, 2},
		"{\"frob\":1,\n  oops}":                             {2, 3},
	} {
		_, problems := Parse([]byte(text))
		if len(problems) == 0 {
			t.Errorf("%q: got no problem, want a syntax error", text)
			continue
		}
		line, column := problems[len(problems)-1].Place([]byte(text))
		if line != want[0] || column != want[1] {
			t.Errorf("%q: line %d, character %d, want %v: %v", text, line, column, want, problems)
		}
	}
}

// Parse stops at excessive nesting.
func TestNesting(t *testing.T) {
	_, problems := Parse([]byte(`{"version":1,"kernels":` + strings.Repeat("[", 1<<20)))
	if last := problems[len(problems)-1]; !strings.Contains(last.Message, "nested too deeply") {
		t.Errorf(`last problem: got %v, want "nested too deeply"`, last)
	}
}

func TestKeys(t *testing.T) {
	for key, want := range map[string]bool{
		"a": true, "0": true, "A/b.c_d-e": true, strings.Repeat("k", 255): true,
		"": false, "/a": false, ".a": false, "a b": false, "ä": false, "a\n": false, strings.Repeat("k", 256): false,
	} {
		if got := ValidKey(key); got != want {
			t.Errorf("%q: %v, want %v", key, got, want)
		}
	}
}

func TestReadPTX(t *testing.T) {
	s, isPTX := ReadPTX(vaddPTX)
	if !isPTX || s.Target != 50 || s.Exact || len(s.Entries) != 2 {
		t.Fatalf("PTX: got %v, target %d, exact %v and %d entries, want true, 50, false and 2", isPTX, s.Target, s.Exact, len(s.Entries))
	}
	address := Param{8, true}
	if got := s.Entries["vadd"]; !reflect.DeepEqual(got, &Entry{Params: []Param{address, address, address, {4, false}}, MaxThreads: 512}) {
		t.Errorf("entry vadd: got %+v, want three addresses, a parameter of 4 bytes and at most 512 threads", got)
	}
	if got := s.Entries["fixed"]; !reflect.DeepEqual(got, &Entry{Params: []Param{{16, false}, {8, false}, {8, false}}, RequiredThreads: [3]int{32}}) {
		t.Errorf("entry fixed: got %+v, want parameters of 16, 8 and 8 bytes and the block [32 0 0]", got)
	}
	if s, isPTX := ReadPTX(blasPTX()); !isPTX || len(s.Entries) != len(builtins) {
		t.Errorf("built-in PTX: got %v with %d entries, want true with %d", isPTX, len(s.Entries), len(builtins))
	} else {
		for name, b := range builtins {
			if got := s.Entries[name]; got == nil || !reflect.DeepEqual(got.Params, b.entry.Params) {
				t.Errorf("%s: %+v, want %+v", name, got, b.entry)
			}
		}
	}
}

func TestMemoryCountsAnObjectOnce(t *testing.T) {
	r := &Request{Buffers: []Buffer{{Kind: Input, Key: "a", Size: 100}, {Kind: Input, Key: "a", Size: 100}, {Kind: Inout, Key: "a", Size: 100}, {Kind: Temporary, Size: 7}}}
	if got := r.memory(nil); got != 207 {
		t.Errorf("%d bytes, want 207", got)
	}
	if got := r.memory(func(int64) int64 { return 512 }); got != 3*512 {
		t.Errorf("memory of the request: got %d bytes, want %d", got, 3*512)
	}
}

// FuzzParse checks that Parse returns a request or a problem, and that encoding and parsing a request
// again yields the same request.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good()))
	f.Add([]byte(`{"version":1,"kernels":[{"module":"b","name":"vadd","args":[]}],"modules":{"b":{"builtin":"blas"}}}`))
	f.Add([]byte(`{"version":1,"version":1}`))
	f.Add([]byte(strings.Repeat(`{"a":[`, 20)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, problems := Parse(data)
		if (r == nil) != (len(problems) > 0) {
			t.Fatalf("Parse: got the request %v with the problems %v, want either a request or problems", r, problems)
		}
		if r == nil {
			return
		}
		text, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, problems := Parse(text)
		if problems != nil {
			t.Fatalf("parse the encoded request %s: %v", text, problems[0])
		}
		more, err := again.Encode()
		if err != nil || !bytes.Equal(text, more) {
			t.Fatalf("encoded again: got %s, %v; want %s", more, err, text)
		}
		r.Check(world())
	})
}

// FuzzReadPTX checks that ReadPTX terminates for any text.
func FuzzReadPTX(f *testing.F) {
	f.Add(vaddPTX)
	f.Add(".version 7.0 .entry a(.param .b8 x[")
	f.Fuzz(func(t *testing.T, text string) {
		s, _ := ReadPTX(text)
		for name, e := range s.Entries {
			for _, p := range e.Params {
				if p.Size < 0 || p.Size > 16<<16 {
					t.Errorf("parameter of %s: got %d bytes, want 0 to %d", name, p.Size, 16<<16)
				}
			}
		}
	})
}

// If the text ends right after the largest number of values of a list, that is the only problem.
func TestCutListHasOneProblem(t *testing.T) {
	text := tokens{dec: jsontext.NewDecoder(strings.NewReader("[1,2"))}
	text.list("a list", 2, func(int) { text.skip() })
	if len(text.problems) != 1 || !strings.Contains(text.problems[0].Message, "unexpected end of the text") {
		t.Errorf("problems of a list that is cut off: got %d, %v; want only the end of the text", len(text.problems), text.problems)
	}
}

// TestEncodePTXInLatin1 checks that PTX from a file that is not in UTF-8, as a comment may be, can be sent.
func TestEncodePTXInLatin1(t *testing.T) {
	r, problems := Parse([]byte(good()))
	if problems != nil {
		t.Fatal(problems[0])
	}
	r.Modules[0].PTX += "// r\xe9sum\xe9\n"
	text, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, problems = Parse(text); problems != nil {
		t.Errorf("got the problem %v, want none", problems[0])
	}
}
