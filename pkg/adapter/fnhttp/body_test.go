package fnhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestBatched(t *testing.T) {
	for _, c := range []struct {
		contract, body string
		n              int
		want           string // the body, or the error's end
	}{
		{HTTP, "anything", 8, "anything"},
		{OpenFaaS, "", 8, ""},
		{KServeV2, "not JSON", 1, "not JSON"},
		{KServeV2, `{"id":"7","inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1.50,2]}]}`, 3,
			`{"id":"7","inputs":[{"data":[1.50,2,1.50,2,1.50,2],"datatype":"FP32","name":"x","shape":[3,2]}]}`},
		{KServeV2, `{"inputs":[{"shape":[1,2],"data":[[1,2]]},{"shape":[1],"data":["a"]}]}`, 2,
			`{"inputs":[{"data":[[1,2],[1,2]],"shape":[2,2]},{"data":["a","a"],"shape":[2]}]}`},
		{OpenAI, `{"messages":[{}],"n":1,"stream":true}`, 4, `{"messages":[{}],"n":4,"stream":true}`},

		{KServeV2, "", 2, "unexpected end of JSON input"},
		{KServeV2, "null", 2, "expected a JSON object"},
		{KServeV2, "{}", 2, "inputs: expected a list of tensors"},
		{KServeV2, `{"inputs":[{"name":"x","shape":[4],"data":[1,2,3,4]}]}`, 2,
			`inputs[0] "x": shape: the first dimension is 4, expected 1, which becomes the size of the batch`},
		{KServeV2, `{"inputs":[{"name":"x","shape":[],"data":[1]}]}`, 2, "shape: expected a list of dimensions, the batch first"},
		{KServeV2, `{"inputs":[{"name":"x","shape":[1],"parameters":{"binary_data_size":4}}]}`, 2,
			"data: expected a list, which the batch repeats"},
		{OpenAI, `{"prompt":"x"}`, 2, "messages: expected a list"},
		{OpenAI, `{"messages":[{}],"n":3}`, 2, "n: 3, expected no value, because n becomes the size of the batch"},
	} {
		header, body, err := Batched(c.contract, []byte(c.body), c.n)
		var bad *bodyError
		switch {
		case errors.As(err, &bad):
			started := fmt.Sprintf("cannot batch the body as %d requests under the contract %s: ", c.n, c.contract)
			if !strings.HasPrefix(err.Error(), started) || !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("%s %s: %v, want %s", c.contract, c.body, err, c.want)
			}
		case err != nil || string(body) != c.want || header.Get(BatchHeader) != fmt.Sprint(c.n):
			t.Errorf("%s %s: %s %v, %v, want %s", c.contract, c.body, body, header, err, c.want)
		}
	}
}

// For any notation of a tensor, its batch is n copies of it.
func TestBatchedTensorsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rest := rapid.SliceOfN(rapid.IntRange(1, 3), 0, 3).Draw(t, "dimensions")
		n := rapid.IntRange(2, 5).Draw(t, "n")
		flat := rapid.Bool().Draw(t, "flat")
		value := 0.0
		var row func(dims []int) any
		row = func(dims []int) any {
			if len(dims) == 0 {
				value++
				return value
			}
			var list []any
			for range dims[0] {
				list = append(list, row(dims[1:]))
			}
			return list
		}
		one := row(append([]int{1}, rest...))
		if flat {
			one = flatten(one)
		}
		text, err := json.Marshal(map[string]any{"inputs": []any{map[string]any{"shape": append([]int{1}, rest...), "data": one}}})
		if err != nil {
			t.Fatal(err)
		}
		_, body, err := Batched(KServeV2, text, n)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Inputs []struct {
				Shape []int
				Data  any
			}
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		var want []any
		for range n {
			want = append(want, flatten(one)...)
		}
		if !reflect.DeepEqual(got.Inputs[0].Shape, append([]int{n}, rest...)) || !reflect.DeepEqual(flatten(got.Inputs[0].Data), want) {
			t.Fatalf("batch of %d of %s: got %s, want %d copies", n, text, body, n)
		}
	})
}

func flatten(v any) []any {
	list, ok := v.([]any)
	if !ok {
		return []any{v}
	}
	var out []any
	for _, one := range list {
		out = append(out, flatten(one)...)
	}
	return out
}

func TestDefaultBody(t *testing.T) {
	answers := map[string]string{
		"/v2/models/f": `{"name":"f","inputs":[{"name":"a","datatype":"FP32","shape":[-1,2,-1]},{"name":"b","datatype":"BYTES","shape":[1]},{"name":"c","datatype":"BOOL","shape":[-1]}]}`,
		"/v2/models/g": `{"name":"g"}`,
		"/v2/models/h": `{"inputs":[{"name":"a","datatype":"FP32","shape":[-1,100000,100000]}]}`,
		"/v2/models/w": `{"inputs":[{"name":"a","datatype":"FP32","shape":[4,4611686018427387905]}]}`, // 4 modulo 2^64
		"/v2/models/z": `{"inputs":[{"name":"a","datatype":"FP32","shape":[4,0]}]}`,
		"/v1/models":   `{"data":[{"id":"llama"}]}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(text))
	}))
	defer s.Close()
	address, client := s.Listener.Addr().String(), NewClient()
	defer client.Close()
	for _, c := range []struct{ contract, function, want string }{
		{HTTP, "f", ""},
		{OpenFaaS, "f", ""},
		{KServeV2, "f", `{"inputs":[{"name":"a","shape":[1,2,1],"datatype":"FP32","data":[0,0]},{"name":"b","shape":[1],"datatype":"BYTES","data":[""]},{"name":"c","shape":[1],"datatype":"BOOL","data":[false]}]}`},
		{OpenAI, "f", `{"max_tokens":16,"messages":[{"content":"Count from one to ten.","role":"user"}],"model":"llama"}`},
	} {
		got, err := client.DefaultBody(t.Context(), *recordAt(address, c.contract, c.function))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.contract, got, err, c.want)
		}
		if _, _, err := Batched(c.contract, got, 4); err != nil {
			t.Errorf("%s: batch of the default body: got the error %v, want none", c.contract, err)
		}
	}
	for function, want := range map[string]string{
		"g": "GET /v2/models/g: the model has no inputs", "h": "cannot generate data for input a of shape [1 100000 100000]",
		"w": "cannot generate data for input a of shape [4 4611686018427387905]", "z": "of shape [4 0]",
		"i": "GET /v2/models/i: status 404 Not Found",
	} {
		if _, err := client.DefaultBody(t.Context(), *recordAt(address, KServeV2, function)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", function, err, want)
		}
	}
}

func FuzzBatched(f *testing.F) {
	f.Add(`{"inputs":[{"shape":[1,2],"data":[1,2]}]}`, 3)
	f.Add(`{"messages":[{}]}`, 2)
	f.Fuzz(func(t *testing.T, body string, n int) {
		if n < 1 || n > 16 {
			return
		}
		for _, c := range conventions {
			_, got, err := Batched(c.name, []byte(body), n)
			var bad *bodyError
			if err != nil && !errors.As(err, &bad) {
				t.Fatal(err)
			}
			if err == nil && string(got) != body && !json.Valid(got) {
				t.Fatalf("batch of %s: got %s, want valid JSON", body, got)
			}
		}
	})
}
