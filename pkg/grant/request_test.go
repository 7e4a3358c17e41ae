package grant

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// signRequest signs any bytes as a request.
func signRequest(k PrivateKey, document string) string { return requests.sign(k, []byte(document)) }

func TestAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVerifier(TrustOf(fixedKey(1).Public()))
		text := fixedKey(1).SignRequest("gpu-1", "/v1/status")
		if err := v.Accept(text, "gpu-1", "/v1/status"); err != nil {
			t.Fatalf("a new request: %v", err)
		}
		document, signature, err := requests.split(text)
		if err != nil {
			t.Fatal(err)
		}
		with := func(key string, value any) string {
			var fields map[string]any
			if err := json.Unmarshal(document, &fields); err != nil {
				t.Fatal(err)
			}
			fields["nonce"] = "another"
			if fields[key] = value; value == nil {
				delete(fields, key)
			}
			altered, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			return signRequest(fixedKey(1), string(altered))
		}
		grantText, err := fixedKey(1).Sign(example())
		if err != nil {
			t.Fatal(err)
		}
		at := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339Nano) }
		for _, tt := range []struct{ name, text, want string }{
			{"replayed", text, "sent before"},
			{"empty", "", "malformed"},
			{"unsigned", requests.prefix + encoding.EncodeToString(document) + ".", "no trusted key"},
			{"other key", signRequest(fixedKey(2), string(document)), "no trusted key"},
			{"altered", requests.prefix + encoding.EncodeToString([]byte(strings.Replace(string(document), "status", "faults", 1))) + "." + encoding.EncodeToString(signature), "no trusted key"},
			{"a grant", grantText, "malformed"},
			{"a grant as a request", requests.prefix + strings.TrimPrefix(grantText, grants.prefix), "no trusted key"},
			{"too large", requests.prefix + strings.Repeat("A", MaxRequest), "more than 1024 bytes"},
			{"other node", with("node", "gpu-2"), `for node "gpu-2", and this is node gpu-1`},
			{"other path", with("path", "/v1/faults"), "another path"},
			{"late", with("time", at(-Skew-time.Second)), "difference of at most 1m0s"},
			{"early", with("time", at(Skew+time.Second)), "difference of at most 1m0s"},
			{"before the start", with("time", at(-time.Second)), "before the agent started"},
			{"no time", with("time", nil), "difference of at most"},
			{"no nonce", with("nonce", nil), "nonce of 0 bytes"},
			{"long nonce", with("nonce", strings.Repeat("n", maxNonce+1)), "nonce of 65 bytes"},
			{"unknown key", with("method", "POST"), "unknown object member name"},
			{"no JSON", signRequest(fixedKey(1), "{\n"), "invalid request"},
		} {
			err := v.Accept(tt.text, "gpu-1", "/v1/status")
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %v, want an error of one line with %q", tt.name, err, tt.want)
			}
		}
	})
}

// A request stays known until its time is too old, and is then forgotten.
func TestReplayIsRefusedUntilExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVerifier(TrustOf(fixedKey(1).Public()))
		time.Sleep(Skew)
		ahead := signRequest(fixedKey(1), `{"node":"n","path":"/","time":"`+time.Now().Add(Skew).UTC().Format(time.RFC3339Nano)+`","nonce":"a"}`)
		if err := v.Accept(ahead, "n", "/"); err != nil {
			t.Fatalf("a request from a clock that is ahead: %v", err)
		}
		for range 30 {
			time.Sleep(10 * time.Second)
			if err := v.Accept(ahead, "n", "/"); err == nil {
				t.Fatal("a replayed request was accepted")
			}
			if err := v.Accept(fixedKey(1).SignRequest("n", "/"), "n", "/"); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(v.seen); n > 15 {
			t.Errorf("known requests after 5 minutes with one in 10 s: %d, want those of 2 minutes", n)
		}
	})
}

func TestAcceptIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := NewVerifier(TrustOf(fixedKey(1).Public()))
		for i := range maxSeen {
			v.seen[strconv.Itoa(i)] = time.Now()
		}
		if err := v.Accept(fixedKey(1).SignRequest("n", "/"), "n", "/"); err == nil || !strings.Contains(err.Error(), "more than 65536 requests") {
			t.Errorf("one request more than the limit: %v", err)
		}
		time.Sleep(Skew + time.Second)
		if err := v.Accept(fixedKey(1).SignRequest("n", "/"), "n", "/"); err != nil {
			t.Errorf("after a minute: %v", err)
		}
	})
}

// FuzzAccept: no text is accepted unless the key signed exactly it, for this node and path. The fuzzer varies both the
// text and a document that is signed.
func FuzzAccept(f *testing.F) {
	f.Add(fixedKey(1).SignRequest("n", "/"), "n", "/")
	f.Add(requests.prefix+".", "", "")
	f.Add(`{"node":"n","path":"/","time":"2026-01-02T03:04:05Z","nonce":"a"}`, "n", "/")
	f.Fuzz(func(t *testing.T, text, node, path string) {
		v := NewVerifier(TrustOf(fixedKey(1).Public()))
		if err := v.Accept(text, node, path); err == nil {
			t.Errorf("%q was accepted", text) // signatures of f.Add are from before v
		}
		signed := signRequest(fixedKey(1), text)
		if err := v.Accept(signed, node, path); err == nil {
			var r request
			if err := requests.decode([]byte(text), &r); err != nil || r.Node != node || r.Path != path {
				t.Errorf("the document %q was accepted for %q %q", text, node, path)
			}
			if err := v.Accept(signed, node, path); err == nil {
				t.Errorf("the document %q was accepted twice", text)
			}
		}
		good := fixedKey(1).SignRequest(strings.ToValidUTF8(node, ""), strings.ToValidUTF8(path, ""))
		if len(good) > MaxRequest {
			return
		}
		if err := v.Accept(good, strings.ToValidUTF8(node, ""), strings.ToValidUTF8(path, "")); err != nil {
			t.Errorf("a new request for %q %q: %v", node, path, err)
		}
	})
}
