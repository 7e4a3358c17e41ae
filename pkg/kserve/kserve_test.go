package kserve_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/kserve"
)

func joined(pieces [][]byte) string { return string(bytes.Join(pieces, nil)) }

// parse returns the requests of bodies, which must all have one key.
func parse(t *testing.T, bodies ...string) (requests []*kserve.Request) {
	t.Helper()
	for _, body := range bodies {
		r := kserve.Parse([]byte(body))
		if r == nil {
			t.Fatalf("%s: got nil, want a request", body)
		}
		if requests = append(requests, r); r.Key() != requests[0].Key() {
			t.Fatalf("%s has the key %q, want %q", body, r.Key(), requests[0].Key())
		}
	}
	return requests
}

func TestMergeAndSplit(t *testing.T) {
	for name, c := range map[string]struct {
		bodies         []string
		merged, answer string
		want           []string
	}{
		"v1": {
			[]string{`{"instances": [[1, 2.50], [3, 4]]}`, ` {"instances":[ [1e2 ,6 ] ]} `},
			`{"instances":[[1, 2.50], [3, 4],[1e2 ,6 ]]}`,
			`{"predictions": [0.10, {"a": [1]}, "x"], "deployedModelId": "7"}`,
			[]string{`{"predictions":[0.10, {"a": [1]}],"deployedModelId":"7"}`, `{"predictions":["x"],"deployedModelId":"7"}`},
		},
		"v1 with parameters": {
			[]string{`{"signature_name":"s","instances":["a, ]","\""]}`, `{"signature_name":"s","instances":["b"]}`},
			`{"signature_name":"s","instances":["a, ]","\"","b"]}`,
			`{"scores":[1,2,3],"predictions":[4,5,6]}`,
			[]string{`{"scores":[1,2],"predictions":[4,5]}`, `{"scores":[3],"predictions":[6]}`},
		},
		"v2 flat": {
			[]string{`{"id":"one","inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`, `{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[3,4,5,6]}]}`},
			`{"inputs":[{"name":"x","datatype":"FP32","shape":[3,2],"data":[1,2,3,4,5,6]}]}`,
			`{"model_name":"m","id":"of the batch","outputs":[{"name":"y","shape":[3,1],"datatype":"FP32","data":[7,8,9]},{"name":"z","shape":[3,2],"datatype":"INT8","data":[[1,2],[3,4],[5,6]]}]}`,
			[]string{
				`{"model_name":"m","outputs":[{"name":"y","shape":[1,1],"datatype":"FP32","data":[7]},{"name":"z","shape":[1,2],"datatype":"INT8","data":[[1,2]]}],"id":"one"}`,
				`{"model_name":"m","outputs":[{"name":"y","shape":[2,1],"datatype":"FP32","data":[8,9]},{"name":"z","shape":[2,2],"datatype":"INT8","data":[[3,4],[5,6]]}]}`,
			},
		},
		"v2 nested, several inputs": {
			[]string{
				`{"inputs":[{"name":"a","shape":[1,2],"datatype":"BYTES","data":[["p","q"]]},{"name":"b","shape":[1],"datatype":"BOOL","data":[true]}],"outputs":[{"name":"y"}]}`,
				`{"inputs":[{"name":"a","shape":[1,2],"datatype":"BYTES","data":[["r","s"]]},{"name":"b","shape":[1],"datatype":"BOOL","data":[false]}],"outputs":[{"name":"y"}]}`,
			},
			`{"outputs":[{"name":"y"}],"inputs":[{"name":"a","datatype":"BYTES","shape":[2,2],"data":[["p","q"],["r","s"]]},{"name":"b","datatype":"BOOL","shape":[2],"data":[true,false]}]}`,
			`{"outputs":[{"name":"y","shape":[2,0,4],"datatype":"FP32","data":[]}],"parameters":{"took":3}}`,
			[]string{
				`{"outputs":[{"name":"y","shape":[1,0,4],"datatype":"FP32","data":[]}],"parameters":{"took":3}}`,
				`{"outputs":[{"name":"y","shape":[1,0,4],"datatype":"FP32","data":[]}],"parameters":{"took":3}}`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			requests := parse(t, c.bodies...)
			if got := joined(kserve.Merge(requests)); got != c.merged {
				t.Errorf("merged:\n  %s\nwant\n  %s", got, c.merged)
			}
			answers, err := kserve.Split([]byte(c.answer), requests)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range c.want {
				if got := joined(answers[i]); got != want {
					t.Errorf("answer %d:\n  %s\nwant\n  %s", i, got, want)
				}
			}
		})
	}
}

// TestAlone lists bodies that cannot be merged with others.
func TestAlone(t *testing.T) {
	for name, body := range map[string]string{
		"empty": "", "text": "hello", "array": "[1]", "no form": `{"text":"a"}`, "malformed": `{"instances":[1,]}`, "more text": `{"instances":[1]}}`,
		"name twice": `{"instances":[1],"instances":[2]}`, "escaped name": `{"instanc\u0065s":[1]}`, "both forms": `{"instances":[1],"inputs":[]}`,
		"no instances": `{"instances":[]}`, "no list": `{"instances":{}}`, "ragged": `{"instances":[[1],[1,2]]}`, "mixed types": `{"instances":[1,"a"]}`,
		"text inputs": `{"inputs":"a"}`, "no inputs": `{"inputs":[]}`, "no shape": `{"inputs":[{"name":"x","datatype":"FP32","data":[1]}]}`,
		"no dimension":         `{"inputs":[{"name":"x","shape":[],"datatype":"FP32","data":[1]}]}`,
		"too little data":      `{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1]}]}`,
		"too much data":        `{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2,3]}]}`,
		"text in numbers":      `{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,"2"]}]}`,
		"null":                 `{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,null]}]}`,
		"nested otherwise":     `{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2,3],[4]]}]}`,
		"negative dimension":   `{"inputs":[{"name":"x","shape":[-1,2],"datatype":"FP32","data":[1,2]}]}`,
		"huge dimensions":      `{"inputs":[{"name":"x","shape":[4294967296,4294967296,4294967296],"datatype":"FP32","data":[]}]}`,
		"different rows":       `{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]},{"name":"y","shape":[2],"datatype":"INT8","data":[1,2]}]}`,
		"sequence":             `{"parameters":{"sequence_id":4},"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}]}`,
		"binary output":        `{"outputs":[{"name":"y","parameters":{"binary_data":true}}],"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}]}`,
		"shared memory":        `{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1],"parameters":{"shared_memory_region":"r"}}]}`,
		"too many structures":  `{"instances":[[` + strings.Repeat(`[1],1,`, 1000) + `1]]}`,
		"datatype is a number": `{"inputs":[{"name":"x","shape":[1],"datatype":7,"data":["a"]}]}`,
	} {
		if r := kserve.Parse([]byte(body)); r != nil {
			t.Errorf("%s: %.80s can be merged, as %d inferences with the key %q", name, body, r.Size(), r.Key())
		}
	}
}

// TestKeys compares a request with others of the same form, which must not be merged with it.
func TestKeys(t *testing.T) {
	v2 := func(name, shape, datatype, data, more string) string {
		return `{` + more + `"inputs":[{"name":"` + name + `","shape":` + shape + `,"datatype":"` + datatype + `","data":` + data + `}]}`
	}
	for first, others := range map[string][]string{
		`{"instances":[[1,2]]}`: {`{"instances":[[1,2,3]]}`, `{"instances":[["a","b"]]}`, `{"instances":[1]}`, `{"instances":[[1,2]],"parameters":{}}`, `{"instances":[{"a":1}]}`},
		v2("x", "[1,2]", "FP32", "[1,2]", ""): {
			v2("y", "[1,2]", "FP32", "[1,2]", ""), v2("x", "[1,3]", "FP32", "[1,2,3]", ""), v2("x", "[1,2]", "INT8", "[1,2]", ""),
			v2("x", "[1,2]", "FP32", "[[1,2]]", ""), v2("x", "[1,2,1]", "FP32", "[1,2]", ""), v2("x", "[1,2]", "FP32", "[1,2]", `"parameters":{"a":1},`),
		},
	} {
		key := parse(t, first)[0].Key()
		for _, other := range others {
			if parse(t, other)[0].Key() == key {
				t.Errorf("%s and %s have the same key", first, other)
			}
		}
	}
}

// TestUncertainAnswers lists answers of which it is not certain which part belongs to which request.
func TestUncertainAnswers(t *testing.T) {
	v1 := parse(t, `{"instances":[1]}`, `{"instances":[2,3]}`)
	input := func(id string) string {
		return `{"id":"` + id + `","inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}]}`
	}
	v2 := parse(t, input("a"), input("b"))
	for _, c := range []struct {
		requests     []*kserve.Request
		answer, want string
	}{
		{v1, `{"predictions":[1,2,3]`, "not valid JSON"},
		{v1, `[1,2,3]`, "not a JSON object"},
		{v1, `{"predictions":[1,2]}`, `"predictions" has 2 values`},
		{v1, `{"predictions":[1,2,3,4]}`, `"predictions" has 4 values`},
		{v1, `{"outputs":{"y":[1,2,3]}}`, `"outputs" contains an array`},
		{v1, `{"predictions":[1,2,3],"scores":[1]}`, `"scores" has 1 values`},
		{v1, `{"error":"no"}`, `no array "predictions"`},
		{v2, `{"model_name":"m"}`, "no outputs"},
		{v2, `{"outputs":{}}`, "not an array"},
		{v2, `{"outputs":[{"name":"y","shape":[3],"data":[1,2,3]}]}`, "outputs[0]: the first dimension is 3"},
		{v2, `{"outputs":[{"name":"y","shape":[2,2],"data":[1,2,3]}]}`, "outputs[0]: the number of values in the data does not match the shape [2,2]"},
		{v2, `{"outputs":[{"name":"y","shape":[2,2],"parameters":{"binary_data_size":8}}]}`, "outputs[0]: the number of values in the data"},
		{v2, `{"outputs":[{"name":"y","data":[1,2]}]}`, "outputs[0]: the shape"},
		{v2, `{"outputs":[4]}`, "outputs[0]: it is not an object"},
		{v2, `{"outputs":[{"name":"y","shape":[2],"data":[1,2],"parameters":{"per":[1,2]}}]}`, `outputs[0]: "parameters" contains an array`},
	} {
		if _, err := kserve.Split([]byte(c.answer), c.requests); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.answer, err, c.want)
		}
	}
}

// FuzzParse merges a body with itself, and splits the merged body as if it were the answer: each part must be the body
// again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"instances": [[1, 2.50], [3, 4]], "signature_name": "s"}`))
	f.Add([]byte(`{"id":"one","inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]},{"name":"y","shape":[1],"datatype":"BYTES","data":["a"]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := kserve.Parse(body)
		if r == nil {
			return
		}
		merged := joined(kserve.Merge([]*kserve.Request{r, r}))
		both := kserve.Parse([]byte(merged))
		if both == nil || both.Size() != 2*r.Size() || both.Key() != r.Key() {
			t.Fatalf("%s, merged with itself: %s, which is not the same request twice", body, merged)
		}
		if bytes.Contains(body, []byte("predictions")) || bytes.Contains(body, []byte("outputs")) {
			return
		}
		echo := strings.NewReplacer(`"instances":[`, `"predictions":[`, `"inputs":[`, `"outputs":[`).Replace(merged)
		answers, err := kserve.Split([]byte(echo), []*kserve.Request{r, r})
		if err != nil {
			return // another member contains an array
		}
		for _, answer := range answers {
			part := strings.NewReplacer(`"predictions":[`, `"instances":[`, `"outputs":[`, `"inputs":[`).Replace(joined(answer))
			again := kserve.Parse([]byte(part))
			if again == nil || again.Key() != r.Key() || joined(kserve.Merge([]*kserve.Request{again})) != joined(kserve.Merge([]*kserve.Request{r})) {
				t.Errorf("%s is split into %s, which is not %s again", echo, joined(answer), body)
			}
		}
	})
}
