package fields

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// formPart returns a part of a form with the boundary b.
func formPart(head, text string) string {
	return "--b\r\nContent-Disposition: form-data; " + head + "\r\n\r\n" + text + "\r\n"
}

const formType = "multipart/form-data; boundary=b"

// TestFind checks that Find finds the last model that a body names, at any position
// and however the body is read.
func TestFind(t *testing.T) {
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

		"pairs":              {"application/x-www-form-urlencoded", "x=1&model=a%2fb+c&y=2", "a/b c", ""},
		"pairs, last":        {"application/x-www-form-urlencoded", "model=b&model=a", "a", ""},
		"pairs, without":     {"application/x-www-form-urlencoded", "x=model&models=a", "", `no field "model"`},
		"pairs, malformed":   {"application/x-www-form-urlencoded", "model=%zz", "", "not a name"},
		"pairs, too long":    {"application/x-www-form-urlencoded", "model=" + long, "", "not a name"},
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
		"form, no line end":  {formType, "--b\r\nContent-Disposition: form-data; name=model\r\n\r\n--b--", "", "not a name"},
		"form, no boundary":  {"multipart/form-data", formPart(`name="model"`, "a"), "", `no field "model"`},
	} {
		for _, slow := range []bool{false, true} {
			in := iotest.DataErrReader(strings.NewReader(c.body))
			if slow {
				in = iotest.OneByteReader(strings.NewReader(c.body))
			}
			f, err := Find(in, c.contentType)
			got := f.Model
			if c.wrong == "" && (err != nil || got != c.want) || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("%s: %q, %v, want %q or an error with %q", name, got, err, c.want, c.wrong)
			}
		}
	}
}

// FuzzObject compares Find with encoding/json for texts that
// encoding/json accepts.
func FuzzObject(f *testing.F) {
	for _, seed := range []string{`{"model":"a"}`, `{"x":[1,{"model":"b"}],"model":"a","model":"\u00e4"}`, `{"a":"\\\"","model":null}`, "{\"\xff\":1,\"model\":\"\xff\"}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &object) != nil || object == nil {
			_, _ = Find(strings.NewReader(text), "") // it must return
			return
		}
		var want *string
		if raw := object["model"]; raw != nil && json.Unmarshal(raw, &want) == nil && want != nil && len(*want) > maxModel {
			want = nil
		}
		if f, err := Find(strings.NewReader(text), ""); (err == nil) != (want != nil) || err == nil && f.Model != *want {
			t.Errorf("model in %q: got %q, %v; want a model as encoding/json finds it: %v", text, f.Model, err, want != nil)
		}
	})
}

// replace returns the body with a name in place of each model.
func (f *Found) replace(body, name string) string {
	var out strings.Builder
	at := int64(0)
	for _, m := range f.Models {
		out.WriteString(body[at:m.At])
		out.Write(f.Encode(name))
		at = m.At + m.Length
	}
	return out.String() + body[at:]
}

// TestReplace checks that replacing the models of a body changes no other byte, whatever the encoding.
func TestReplace(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	const urlType = "application/x-www-form-urlencoded"
	for name, c := range map[string]struct{ contentType, body, to, want string }{
		"object":           {"", ` {"x" : 1.0e2, "model" : "a/B" , "y":[ ]}` + "\n", "c", ` {"x" : 1.0e2, "model" : "c" , "y":[ ]}` + "\n"},
		"twice":            {"", `{"model":"a","x":{"model":"a"},"mod\u0065l":"\u0062"}`, `q"<é`, `{"model":"q\"<é","x":{"model":"a"},"mod\u0065l":"q\"<é"}`},
		"after a long one": {"", `{"x":"` + long + `","model":"a"}`, "", `{"x":"` + long + `","model":""}`},
		"cut behind it":    {"", `{"model":"a","x":`, "b", `{"model":"b","x":`},
		"form":             {formType, formPart(`name="file"; filename="model"`, long+"\r\nmodel") + formPart(`name=model`, "a") + "--b--\r\nmore", "b\nc", formPart(`name="file"; filename="model"`, long+"\r\nmodel") + formPart(`name=model`, "b\nc") + "--b--\r\nmore"},
		"form, twice":      {formType, formPart(`name="model"`, "") + formPart(`name="model"`, "b\r\n") + "--b--", "c", formPart(`name="model"`, "c") + formPart(`name="model"`, "c") + "--b--"},
		"form, lines":      {formType, "pre\n--b\nContent-Disposition: form-data; name=model\n\na\n--b--\n", "cc", "pre\n--b\nContent-Disposition: form-data; name=model\n\ncc\n--b--\n"},
		"form, likeness":   {formType, formPart(`name="x"`, "--bb\r\n-- b\n--b") + formPart(`name="model"`, "a") + "--b--", "c", formPart(`name="x"`, "--bb\r\n-- b\n--b") + formPart(`name="model"`, "c") + "--b--"},
		"pairs":            {urlType, "x=%zz&model=a%2FB&&y", "c&d", "x=%zz&model=c%26d&&y"},
		"pairs, twice":     {urlType, "mod%65l=a&model=b;c&models=x&x=model=y", "é z", "mod%65l=%C3%A9+z&model=%C3%A9+z&models=x&x=model=y"},
		"pairs, long":      {urlType + "; charset=utf-8", long + "=" + long + "&model=a", "b", long + "=" + long + "&model=b"},
		"object as pairs":  {urlType, " \n" + `{"model":"a"}`, "b", " \n" + `{"model":"b"}`},
	} {
		f, err := Find(iotest.HalfReader(strings.NewReader(c.body)), c.contentType)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := f.replace(c.body, c.to); got != c.want {
			t.Errorf("%s: got %.300q, want %.300q", name, got, c.want)
		}
	}
}

// TestStream checks which bodies ask for a stream, with or without a model.
func TestStream(t *testing.T) {
	for _, c := range []struct {
		contentType, body string
		want              bool
	}{
		{"", `{"model":"a","stream":true}`, true},
		{"", `{"stream":true,"model":"a"}`, true},
		{"", `{"stream":true}`, true},
		{"", `{"stream":true,"x":"cut`, true},
		{"", `{"stream":true,"stream":false}`, false},
		{"", `{"stream":"true"}`, false},
		{"", `{"x":{"stream":true}}`, false},
		{"", `[{"stream":true}]`, false},
		{formType, formPart(`name="model"`, "a") + formPart(`name="stream"`, "true") + "--b--\r\n", true},
		{formType, formPart(`name="stream"; filename="x"`, "true") + "--b--\r\n", false},
		{"application/x-www-form-urlencoded", "stream=true&model=a", true},
		{"application/x-www-form-urlencoded", "stream=false", false},
	} {
		if f, _ := Find(strings.NewReader(c.body), c.contentType); f.Stream != c.want {
			t.Errorf("%q: got stream %v, want %v", c.body, f.Stream, c.want)
		}
	}
}

// TestManyModels checks that a body cannot make Find keep any number of positions.
func TestManyModels(t *testing.T) {
	for contentType, body := range map[string]string{
		"":                                  "{" + strings.Repeat(`"model":"a",`, 65) + `"x":1}`,
		formType:                            strings.Repeat(formPart(`name="model"`, "a"), 65) + "--b--",
		"application/x-www-form-urlencoded": strings.Repeat("model=a&", 65),
	} {
		if _, err := Find(strings.NewReader(body), contentType); err == nil || !strings.Contains(err.Error(), "more than 64") {
			t.Errorf("%s with 65 models: got %v, want an error", contentType, err)
		}
	}
}

// decoded returns the fields of a body as the standard library decodes them, in order of their
// keys, with the given name in place of each model. It returns false if the library refuses the body.
func decoded(kind int, body, boundary, name string) (out string, ok bool) {
	switch kind {
	case 0:
		var object map[string]any
		dec := json.NewDecoder(strings.NewReader(body))
		dec.UseNumber()
		if err := dec.Decode(&object); err != nil || object == nil || strings.TrimLeft(body[dec.InputOffset():], " \t\r\n") != "" {
			return "", false
		}
		if _, there := object["model"]; there {
			object["model"] = name
		}
		text, err := json.Marshal(object)
		return string(text), err == nil
	case 1:
		var all strings.Builder
		r := multipart.NewReader(strings.NewReader(body), boundary)
		for {
			p, err := r.NextRawPart()
			if errors.Is(err, io.EOF) {
				return all.String(), true
			}
			if err != nil {
				return "", false
			}
			text, err := io.ReadAll(p)
			if err != nil {
				return "", false
			}
			_, parameters, _ := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
			if _, file := parameters["filename"]; !file && p.FormName() == "model" {
				text = []byte(name)
			}
			fmt.Fprintf(&all, "%v %q\n", p.Header, text)
		}
	}
	values, err := url.ParseQuery(body)
	for i := range values["model"] {
		values["model"][i] = name
	}
	return values.Encode(), err == nil
}

// FuzzReplace checks that Find finds the model of a body that the standard library accepts, and that
// replacing the models changes no other field.
func FuzzReplace(f *testing.F) {
	f.Add(0, `{"x":[1,{"model":"b"}],"model":"a","model":"\u00e4"}`, "b")
	f.Add(0, "{\"\\ud800\":1,\"model\":\"\xff\",\"x\":\"\\\\\"}", "b/c")
	f.Add(1, formPart(`name="file"; filename="a"`, "\r\n--bb\r\n--b")+formPart(`name="model"`, "a")+"--b--\r\n", "x")
	f.Add(1, "x\r\n--b \t\r\nContent-Disposition: form-data; name=model\r\nX: y\r\n z\r\n\r\n--b--", "x")
	f.Add(1, "--b\r\nContent-Disposition: form-data; name=model\r\n\r\n\r\n--b--", "x")
	f.Add(1, "--b\nContent-Disposition: form-data; name=model\n\na\r\n--b--\n\n--b--\n", "x")
	f.Add(2, "a=b&model=c%20d&&model=e+f&model", "x&y")
	f.Fuzz(func(t *testing.T, kind int, body, name string) {
		kind = max(kind, 0) % 3
		contentType := []string{"application/json", formType, "application/x-www-form-urlencoded"}[kind]
		if kind == 2 && strings.HasPrefix(strings.TrimLeft(body, " \t\r\n"), "{") || strings.Contains(name, "--b") || !utf8.ValidString(name) {
			return
		}
		found, err := Find(strings.NewReader(body), contentType)
		for i, m := range found.Models {
			if m.At < 0 || m.Length < 0 || m.At+m.Length > int64(len(body)) || i > 0 && m.At < found.Models[i-1].At+found.Models[i-1].Length {
				t.Fatalf("positions %v in a body of %d bytes", found.Models, len(body))
			}
		}
		want, ok := decoded(kind, body, "b", name)
		if !ok || err != nil {
			return
		}
		after := found.replace(body, name)
		if got, ok := decoded(kind, after, "b", name); !ok || got != want {
			t.Fatalf("%q became %q: got the fields %s, want %s", body, after, got, want)
		}
		again, err := Find(strings.NewReader(after), contentType)
		if len(name) > 0 && len(name) <= maxModel && (err != nil || again.Model != name || len(again.Models) != len(found.Models)) {
			t.Errorf("model of %q: got %q (%d times), %v; want %q (%d times)", after, again.Model, len(again.Models), err, name, len(found.Models))
		}
	})
}
