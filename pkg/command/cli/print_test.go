package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

type item struct {
	Name string  `json:"name"`
	Load float64 `json:"load"`
}

func TestShow(t *testing.T) {
	list := []item{{"a<b", 0.5}, {"long name", 1}}
	rows := func() [][]string {
		return [][]string{{"NAME", "LOAD"}, {"a<b", "0.5"}, {"long name", ""}}
	}
	for form, want := range map[string]string{
		"json":  "[\n  {\n    \"name\": \"a<b\",\n    \"load\": 0.5\n  },\n  {\n    \"name\": \"long name\",\n    \"load\": 1\n  }\n]\n",
		"jsonl": "{\"name\":\"a<b\",\"load\":0.5}\n{\"name\":\"long name\",\"load\":1}\n",
		"yaml":  "- load: 0.5\n  name: a<b\n- load: 1\n  name: long name\n",
		"csv":   "NAME,LOAD\na<b,0.5\nlong name,\n",
		"table": "NAME       LOAD\na<b        0.5\nlong name\n",
		"wide":  "NAME       LOAD\na<b        0.5\nlong name\n",
	} {
		var out bytes.Buffer
		env := &Env{Out: &out, Output: form}
		if err := env.Show(list, rows); err != nil || out.String() != want {
			t.Errorf("%s: %v\n%q, want\n%q", form, err, out.String(), want)
		}
	}
	var out bytes.Buffer
	env := &Env{Out: &out, Output: "jsonl"}
	if err := env.Show(list[0], rows); err != nil || out.String() != "{\"name\":\"a<b\",\"load\":0.5}\n" {
		t.Errorf("one value as jsonl: %v, %q", err, out.String())
	}
}

func TestOutFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	env := &Env{Out: &out, OutFile: path}
	broken := errors.New("broken")
	err := env.Emit(func(w io.Writer) error { _, _ = w.Write([]byte("half")); return broken })
	if text, _ := os.ReadFile(path); !errors.Is(err, broken) || string(text) != "before" {
		t.Errorf("after a failure: %v, the file holds %q", err, text)
	}
	if err := env.Write([]byte("after")); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(path); string(text) != "after" || out.Len() != 0 {
		t.Errorf("the file holds %q, standard output %q", text, out.String())
	}
	env.OutFile = "-"
	if err := env.Write([]byte("x")); err != nil || out.String() != "x" {
		t.Errorf("--out-file -: %v, %q", err, out.String())
	}
}

func TestQuiet(t *testing.T) {
	var errs bytes.Buffer
	env := &Env{Prog: "tool", Err: &errs, ErrTerminal: true, Quiet: true}
	env.Notef("note")
	bar := env.Progress(2, "work")
	_ = bar.Add(1)
	env.Debugf("detail")
	if errs.Len() != 0 {
		t.Errorf("quiet, and said %q", errs.String())
	}
	env.Quiet, env.Verbose = false, true
	env.Notef("note %d", 1)
	env.Debugf("detail")
	if got := errs.String(); got != "tool: note 1\ntool: detail\n" {
		t.Errorf("said %q", got)
	}
}
