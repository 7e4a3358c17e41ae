package function

import (
	"bytes"
	"reflect"
	"testing"
)

// FuzzParse: a file that Parse accepts is equal after printing and parsing again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("name: a\ncommand: [&c ./a, *c, \"\\t\\x85\"]\n---\nname: b\nimage: x\nenv: {A: 0x1f, B: yes, C: \"\\r\\n\"}\n"))
	f.Add([]byte("name: a\nimage: x\nprobes: {paths: [], methods: [GET]}\n---\nname: b\nimage: x\nprobes: {methods: []}\n"))
	f.Add([]byte("name: a\nimage: x\nready: {path: /ping, status: 204}\naliases: [Q/q, \"e\\u0301\"]\nserved: q\nlisted: false\nloading: comment\n"))
	f.Add([]byte("name: a\nimage: |\n  x\n<<: *x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := Parse(bytes.NewReader(data), "f.yaml")
		if err != nil {
			return
		}
		text, err := Format(first)
		if err != nil {
			t.Fatal(err)
		}
		second, err := Parse(bytes.NewReader(text), "f.yaml")
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !reflect.DeepEqual(first, second) {
			t.Errorf("%+v became %+v\n%s", first, second, text)
		}
	})
}
