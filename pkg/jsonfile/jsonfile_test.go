package jsonfile

import (
	"errors"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/textfile"
)

type item struct {
	ID string   `json:"id"`
	SM float64  `json:"sm"`
	X  *float64 `json:"x,omitempty"`
}

type doc struct {
	Version int    `json:"version"`
	Items   []item `json:"items"`
}

func TestRead(t *testing.T) {
	var d doc
	if _, err := Read(strings.NewReader(`{"items":[{"sm":1.5,"id":"a"},{"id":"b","sm":2,"x":0}],"version":1}`), "f.json", &d); err != nil {
		t.Fatal(err)
	}
	if d.Version != 1 || len(d.Items) != 2 || d.Items[0].SM != 1.5 || d.Items[0].X != nil || *d.Items[1].X != 0 {
		t.Errorf("got %+v", d)
	}
	if _, err := Read(strings.NewReader("\uFEFF{\"items\":[],\r\n\"version\":1}\r\n"), "f.json", &d); err != nil {
		t.Errorf("BOM and CRLF: %v", err)
	}
	if _, err := Read(strings.NewReader(`{"items":null,"version":1}`), "f.json", &d); err != nil || d.Items != nil {
		t.Errorf("null as a list: %v, %v", err, d.Items)
	}
}

func TestReadFaults(t *testing.T) {
	for what, c := range map[string]struct{ text, want string }{
		"empty":       {" \n", "f.json:1: the file is empty"},
		"binary":      {"\xff\xfe", "f.json:1: the file is in UTF-16"},
		"syntax":      {"{\"version\":1,\n\"items\":[}\n", "f.json:2: invalid character '}'"},
		"cut off":     {"{\"version\":1,\n ", "f.json:2: unexpected end"},
		"two values":  {`{"version":1,"items":[]} {}`, "f.json:1: invalid character '{' after top-level value"},
		"no object":   {"[]", "f.json:1: a list, expected an object"},
		"unknown":     {"{\"version\":1,\n\"items\":[{\"id\":\"a\",\n\"SM\":2}]}", "f.json:3: items[0].SM: unknown key, expected one of id, sm, x"},
		"twice":       {"{\"version\":1,\n\"version\":1,\"items\":[]}", "f.json:2: version: the key is on line 1 already"},
		"missing":     {"{\"version\":1,\"items\":[\n{\"id\":\"a\"}]}", "f.json:2: items[0].sm: the key is missing"},
		"whole":       {`{"version":1.5,"items":[]}`, "f.json:1: version: 1.5, expected a whole number"},
		"string":      {`{"version":"1","items":[]}`, `f.json:1: version: "1", expected a whole number`},
		"null":        {`{"version":null,"items":[]}`, "f.json:1: version: null, expected a whole number"},
		"null number": {`{"version":1,"items":[{"id":"a","sm":1,"x":null}]}`, "f.json:1: items[0].x: null, expected a number"},
		"huge":        {`{"version":1,"items":[{"id":"a","sm":1e999}]}`, "items[0].sm: 1e999, expected a number"},
		"vanishing":   {`{"version":1,"items":[{"id":"a","sm":1e-400}]}`, "items[0].sm: 1e-400, expected a number"},
		"deep":        {`{"version":1,"items":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "}", "items[0]: a list, expected an object"},
		"long key":    {`{"` + strings.Repeat("k", 1<<20) + `":1}`, "unknown key"},
	} {
		t.Run(what, func(t *testing.T) {
			var d doc
			_, err := Read(strings.NewReader(c.text), "f.json", &d)
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 400 {
				t.Errorf("got %.400v\nwant %s", err, c.want)
			}
		})
	}
}

func TestLaterFaultsFindTheirLine(t *testing.T) {
	var d doc
	f, err := Read(strings.NewReader("{\"version\":1,\n\"items\":[{\"id\":\"a\",\"sm\":1},\n{\"id\":\"b\",\n\"sm\":2}]}"), "f.json", &d)
	if err != nil {
		t.Fatal(err)
	}
	for path, line := range map[string]int{"version": 1, "items[1].sm": 4, "items[1]": 3, "items[1].x": 3, "items[0].x": 2, "none": 1} {
		var fault *textfile.Fault
		if err := f.Fault(&d, path, "wrong"); !errors.As(err, &fault) || fault.Line != line || fault.Where != path {
			t.Errorf("%s: got %v, want line %d", path, err, line)
		}
	}
}
