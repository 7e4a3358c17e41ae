package reason

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var forms = []struct {
	reason     Reason
	text, json string
}{
	{Reason{}, "", "null"},
	{New("queue-full"), "queue-full", `{"code":"queue-full"}`},
	{New("waiting-for-sms", Number("sm_pct", 60), Millis("in_ms", 12500*time.Microsecond)),
		"waiting-for-sms; sm_pct=60; in_ms=12.5", `{"code":"waiting-for-sms","sm_pct":60,"in_ms":12.5}`},
	{New("a", Number("n", -0.25), Number("third", 1.0/3), Number("large", 3e15+0.5), Number("small", 1e-12)),
		"a; n=-0.25; third=0.333333333; large=3000000000000000; small=0.000000000001",
		`{"code":"a","n":-0.25,"third":0.333333333,"large":3000000000000000,"small":0.000000000001}`},
	{New("a", Text("gpu", "node0/1"), Text("model", "NVIDIA H200"), Text("empty", ""), Text("digits", "7"), Text("exponent", "1e3"), Text("name", "é=\";\n")),
		`a; gpu=node0/1; model="NVIDIA H200"; empty=""; digits="7"; exponent="1e3"; name="\u00e9=\";\n"`,
		`{"code":"a","gpu":"node0/1","model":"NVIDIA H200","empty":"","digits":"7","exponent":"1e3","name":"é=\";\n"}`},
	{New("a", Number("n", math.Inf(1)), Number("m", math.NaN())), "a; n=+Inf; m=NaN", `{"code":"a","n":"+Inf","m":"NaN"}`},
}

func TestForms(t *testing.T) {
	for _, f := range forms {
		if text := f.reason.String(); text != f.text {
			t.Errorf("String: got %s, want %s", text, f.text)
		}
		data, err := json.Marshal(f.reason)
		if err != nil || string(data) != f.json {
			t.Errorf("MarshalJSON: got %s, %v; want %s", data, err, f.json)
		}
		parsed, err := Parse(f.text)
		if err != nil || parsed.String() != f.text {
			t.Errorf("Parse(%s): got %v, %v; want the same text", f.text, parsed, err)
		}
		var decoded Reason
		if err := json.Unmarshal(data, &decoded); err != nil || decoded.String() != f.text {
			t.Errorf("UnmarshalJSON(%s): got %v, %v; want %s", data, decoded, err, f.text)
		}
	}
}

func TestInvalid(t *testing.T) {
	for _, text := range []string{
		"Queue-full", "queue full", "queue_full", "-a", "a-", "a--b", "1a", "the queue is full",
		"a;", "a; ", "a; n", "a; n=", "a; N=1", "a; code=1", "a; n=1; n=2", "a; n=x y", `a; n="x`, `a; n="x"y`, "a; n='x'", "a; n=é", "a; n=1;m=2",
	} {
		if r, err := Parse(text); err == nil {
			t.Errorf("Parse(%q): got %v, want an error", text, r)
		}
	}
	for _, text := range []string{
		`"queue-full"`, `{}`, `{"code":"Queue"}`, `{"code":7}`, `{"code":"a","code":"b"}`, `{"n":1}`,
		`{"code":"a","n":true}`, `{"code":"a","n":null}`, `{"code":"a","n":[]}`, `{"code":"a","n":{}}`, `{"code":"a","n":1,"n":2}`, `{"code":"a","N":1}`, `{"code":"a","n":1e999}`,
	} {
		var r Reason
		if err := json.Unmarshal([]byte(text), &r); err == nil {
			t.Errorf("UnmarshalJSON(%s): got %v, want an error", text, r)
		}
	}
}

func TestWith(t *testing.T) {
	r := New("a", Number("n", 1), Number("m", 2))
	if got, want := r.With(Number("n", 3), Text("o", "x")).String(), "a; n=3; m=2; o=x"; got != want {
		t.Errorf("With: %s, want %s", got, want)
	}
	if got, want := r.String(), "a; n=1; m=2"; got != want {
		t.Errorf("after With: %s, want %s", got, want)
	}
}

func TestGet(t *testing.T) {
	r := New("a", Number("n", 1.5), Text("name", "x y"))
	for key, want := range map[string]string{"n": "1.5", "name": "x y", "other": ""} {
		if got := r.Get(key); got != want {
			t.Errorf("Get(%s): %q, want %q", key, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	all := Table{Doc("a", "the first", "n", "a number"), Doc("b", "the second")}
	if err := all.Valid(); err != nil {
		t.Error(err)
	}
	for _, r := range []Reason{New("a"), New("a", Number("n", 1)), New("b")} {
		if err := all.Check(r); err != nil {
			t.Error(err)
		}
	}
	for _, r := range []Reason{{}, New("c"), New("b", Number("n", 1)), New("a", Number("n", 1), Number("n", 1))} {
		if all.Check(r) == nil {
			t.Errorf("Check(%v): got no error, want one", r)
		}
	}
	for _, invalid := range []Table{{Doc("a", "")}, {Doc("A", "x")}, {all[1], all[1]}, {Doc("a", "x", "n", "")}, {Doc("a", "x", "N", "x")}} {
		if invalid.Valid() == nil {
			t.Errorf("Valid() of the table %v: got no error, want one", invalid)
		}
	}
}

// FuzzParse checks that a reason that Parse accepts is equal after printing and parsing again, in
// both forms.
func FuzzParse(f *testing.F) {
	for _, form := range forms {
		f.Add(form.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text)
		if err != nil || r.IsZero() {
			return
		}
		shown := r.String()
		if strings.ContainsFunc(shown, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("String: got %q, want only printable ASCII, which fits a header", shown)
		}
		again, err := Parse(shown)
		if err != nil || again.String() != shown {
			t.Fatalf("Parse(%q): got %q, %v; want the same text", shown, again, err)
		}
		data, err := json.Marshal(r)
		var decoded Reason
		if err == nil {
			err = json.Unmarshal(data, &decoded)
		}
		valid := true
		for _, p := range r.Params {
			valid = valid && utf8.ValidString(p.text)
		}
		if err != nil || valid && decoded.String() != shown {
			t.Fatalf("JSON of %q: %s, which is read as %q, %v; want the same reason", shown, data, decoded, err)
		}
	})
}
