package api

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/iotest"
)

// formPart returns a part of a form with the boundary b.
func formPart(head, text string) string {
	return "--b\r\nContent-Disposition: form-data; " + head + "\r\n\r\n" + text + "\r\n"
}

const formType = "multipart/form-data; boundary=b"

// TestModelIn checks that modelIn finds the last model that a body names, at any position
// and however the body is read.
func TestModelIn(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for name, c := range map[string]struct{ contentType, body, want, wrong string }{
		"first":            {body: `{"model":"a","x":1}`, want: "a"},
		"last":             {body: `{"x":[1,{"model":"b"},"]"],"y":{"model":"b"},"z":-1.5e3,"model":"a"}`, want: "a"},
		"spaces":           {body: "\r\n { \"x\" : null , \"model\"\t:\n\"a\" } ", want: "a"},
		"twice":            {body: `{"model":"b","model":"a"}`, want: "a"},
		"escaped key":      {body: `{"mod\u0065l":"a"}`, want: "a"},
		"escaped name":     {body: `{"model":"\u00e4\n\"\\"}`, want: "ä\n\"\\"},
		"other case":       {body: `{"Model":"b","model":"a","MODEL":"c"}`, want: "a"},
		"quotes":           {body: `{"x":"\"model\":\"b\"\\","model":"a"}`, want: "a"},
		"after a long one": {body: `{"x":"` + long + `\\","model":"a"}`, want: "a"},
		"long key":         {body: `{"` + long + `":1,"model":"a"}`, want: "a"},
		"slashes":          {body: `{"x":"` + strings.Repeat(`\\`, 5000) + `","model":"a"}`, want: "a"},
		"slashes, odd":     {body: `{"xy":"` + strings.Repeat(`\\`, 5000) + `\"","model":"a"}`, want: "a"},
		"deep":             {body: `{"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `,"model":"a"}`, want: "a"},
		"cut behind it":    {body: `{"model":"a","x":`, want: "a"},
		"longest":          {body: `{"model":"` + long[:maxModel] + `"}`, want: long[:maxModel]},
		"too long":         {body: `{"model":"` + long[:maxModel+1] + `"}`, wrong: "not a name"},
		"number":           {body: `{"model":"a","model":1}`, wrong: "not a name"},
		"object":           {body: `{"model":{"model":"a"}}`, wrong: "not a name"},
		"nowhere":          {body: `{"x":{"model":"a"}}`, wrong: `no key "model"`},
		"a list":           {body: `[{"model":"a"}]`, wrong: "expected an object"},
		"nothing":          {body: ``, wrong: "expected an object"},
		"cut":              {body: `{"x":[1,`, wrong: "is incomplete"},
		"no key":           {body: `{1:2}`, wrong: "expected a key"},
		"no colon":         {body: `{"model" "a"}`, wrong: "expected :"},
		"no comma":         {body: `{"x":1 "model":"a"}`, wrong: "expected , or }"},

		"form":               {formType, formPart(`name="model"`, "a") + "--b--\r\n", "a", ""},
		"form, last":         {formType, formPart(`name="file"; filename="a.wav"`, long) + formPart(`name="model"`, "a") + "--b--\r\n", "a", ""},
		"form, twice":        {formType, formPart(`name="model"`, "b") + formPart(`name="x"`, "1") + formPart(`name="model"`, "a") + "--b--\r\n", "a", ""},
		"form, file":         {formType, formPart(`name="model"`, "a") + formPart(`name="model"; filename="model"`, "b") + "--b--\r\n", "a", ""},
		"form, empty file":   {formType, formPart(`name="model"`, "a") + formPart(`name="model"; filename=""`, "b") + "--b--\r\n", "a", ""},
		"form, encoded file": {formType, formPart(`name="model"`, "a") + formPart(`name="model"; filename*=UTF-8''x`, "b") + "--b--\r\n", "a", ""},
		"form, only a file":  {formType, formPart(`name="model"; filename="x"`, "b") + "--b--\r\n", "", `no field "model"`},
		"form, cut":          {formType, formPart(`name="model"`, "a") + formPart(`name="x"`, "1"), "a", ""},
		"form, without":      {formType, formPart(`name="x"`, "a") + "--b--\r\n", "", `no field "model"`},
		"form, too long":     {formType, formPart(`name="model"`, long) + "--b--\r\n", "", "not a name"},
		"form, long head":    {formType, formPart(`name="model"`, "a") + formPart(`name="x"; y="`+long+`"`, "1") + "--b--\r\n", "", "head of a part"},
		"form, no boundary":  {"multipart/form-data", formPart(`name="model"`, "a"), "", `no field "model"`},
	} {
		for _, slow := range []bool{false, true} {
			in := iotest.DataErrReader(strings.NewReader(c.body))
			if slow {
				in = iotest.OneByteReader(strings.NewReader(c.body))
			}
			got, err := modelIn(in, c.contentType)
			if c.wrong == "" && (err != nil || got != c.want) || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("%s: %q, %v, want %q or an error with %q", name, got, err, c.want, c.wrong)
			}
		}
	}
}

// FuzzModelInObject compares modelInObject with encoding/json for texts that
// encoding/json accepts.
func FuzzModelInObject(f *testing.F) {
	for _, seed := range []string{`{"model":"a"}`, `{"x":[1,{"model":"b"}],"model":"a","model":"\u00e4"}`, `{"a":"\\\"","model":null}`, "{\"\xff\":1,\"model\":\"\xff\"}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &object) != nil || object == nil {
			_, _ = modelInObject(strings.NewReader(text)) // it must return
			return
		}
		var want *string
		if raw := object["model"]; raw != nil && json.Unmarshal(raw, &want) == nil && want != nil && len(*want) > maxModel {
			want = nil
		}
		if got, err := modelInObject(strings.NewReader(text)); (err == nil) != (want != nil) || err == nil && got != *want {
			t.Errorf("model in %q: got %q, %v; want a model as encoding/json finds it: %v", text, got, err, want != nil)
		}
	})
}
