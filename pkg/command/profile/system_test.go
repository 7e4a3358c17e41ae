package profile

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/measure/loadtest"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
)

// TestRequestsByContract checks that requests contain their batch as the contract requires, and that a default body fits
// the contract.
func TestRequestsByContract(t *testing.T) {
	var seen string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"inputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}],"data":[{"id":"m"}]}`)
			return
		}
		body, _ := io.ReadAll(r.Body)
		seen = r.URL.Path + " " + r.Header.Get(fnhttp.BatchHeader) + " " + string(body)
		if strings.Contains(string(body), "fail") {
			http.Error(w, "no", http.StatusTeapot)
		}
	}))
	defer s.Close()
	for _, c := range []struct{ contract, body, want, err string }{
		{fnhttp.HTTP, "", "/ 3 ", ""},
		{fnhttp.OpenFaaS, "in", "/ 3 in", ""},
		{fnhttp.OpenFaaS, "fail", "/ 3 fail", "status 418 I'm a teapot: no"},
		{fnhttp.KServeV2, "", `/v2/models/f/infer 3 {"inputs":[{"data":[0,0,0,0,0,0],"datatype":"FP32","name":"x","shape":[3,2]}]}`, ""},
		{fnhttp.OpenAI, `{"messages":["a"]}`, `/v1/chat/completions 3 {"messages":["a"],"n":3}`, ""},
	} {
		client := fnhttp.NewClient()
		r := instance.Record{Function: "f", Contract: c.contract, Handle: instance.Handle{Address: s.Listener.Addr().String()}}
		header, body, err := encoder(client)(t.Context(), r, testbed.Request{Batch: 3, Body: []byte(c.body)})
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Invoke(t.Context(), &r, ports.Call{Header: header, Body: bytes.NewReader(body)})
		if err != nil {
			t.Fatal(err)
		}
		err = loadtest.ReadAnswer(answer)
		if got := errorText(err); got != c.err || seen != c.want {
			t.Errorf("%s %q: %s, %q; want %s, %q", c.contract, c.body, seen, got, c.want, c.err)
		}
		var bad *testbed.BodyError
		if _, _, err := encoder(client)(t.Context(), r, testbed.Request{Batch: 3, Body: []byte("[")}); c.contract == fnhttp.OpenAI && !errors.As(err, &bad) {
			t.Errorf("%s took a body that is no JSON: %v", c.contract, err)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
