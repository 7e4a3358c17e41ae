package grant

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// fixedKey returns the private key number b. It is the same in all runs.
func fixedKey(b byte) PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	seed[0] = b
	return PrivateKey{ed25519.NewKeyFromSeed(seed)}
}

func example() Grant {
	return Grant{
		Node: "gpu-1", Instance: "resnet-0", Function: "resnet", Secret: HashOf("secret"), Serial: 7,
		NotAfter: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		GPUs: []wire.Allocation{{GPU: "0", SMPct: 24, QuotaRequest: 0.4, QuotaLimit: 0.8, MemLimit: 1427 * gpu.MiB,
			Turns: []gpu.Turn{{From: 0, To: 0.4}}}},
		SLOMS: 69,
	}
}

// signDocument returns the text of a grant with an arbitrary document, which may be invalid, and a valid signature.
func signDocument(k PrivateKey, document string) string {
	return grants.prefix + encoding.EncodeToString([]byte(document)) + "." + encoding.EncodeToString(k.sign(grants.signed([]byte(document))))
}

// TestFormat compares the text of a grant with a fixed one, because signers and daemons of different versions must
// agree on the format.
func TestFormat(t *testing.T) {
	const want = `{"node":"gpu-1","instance":"resnet-0","function":"resnet",` +
		`"secret_sha256":"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b","serial":7,"not_after":"2026-01-02T03:04:05Z",` +
		`"gpus":[{"gpu":"0","sm_pct":24,"quota_request":0.4,"quota_limit":0.8,"mem_limit":"1427MiB","turns":[{"from":0,"to":0.4}]}],"slo_ms":69}`
	text, err := fixedKey(1).Sign(example())
	if err != nil {
		t.Fatal(err)
	}
	if text != signDocument(fixedKey(1), want) {
		document, _, _ := grants.split(text)
		t.Errorf("document of the grant: got %s, want %s", document, want)
	}
	if got, err := TrustOf(fixedKey(2).Public(), fixedKey(1).Public()).Verify(text); err != nil || !reflect.DeepEqual(got, example()) {
		t.Errorf("Verify: got %+v, %v; want %+v", got, err, example())
	}
}

func TestVerifyRefuses(t *testing.T) {
	good, err := fixedKey(1).Sign(example())
	if err != nil {
		t.Fatal(err)
	}
	document, signature, err := grants.split(good)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(fields map[string]any)) string {
		var fields map[string]any
		if err := json.Unmarshal(document, &fields); err != nil {
			t.Fatal(err)
		}
		change(fields)
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return signDocument(fixedKey(1), string(text))
	}
	set := func(key string, value any) string { return with(func(f map[string]any) { f[key] = value }) }
	gpus := func(value string) string {
		return signDocument(fixedKey(1), strings.Replace(string(document), `"gpu":"0"`, value, 1))
	}
	other := strings.Replace(string(document), "resnet-0", "resnet-1", 1)
	altered, _, _ := strings.Cut(strings.TrimPrefix(signDocument(fixedKey(1), other), grants.prefix), ".")
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "malformed"},
		{"other prefix", strings.Replace(good, "v1", "v2", 1), "malformed"},
		{"no signature", good[:strings.LastIndexByte(good, '.')], "malformed"},
		{"empty signature", good[:strings.LastIndexByte(good, '.')+1], "no trusted key"},
		{"third part", good + ".AA", "malformed"},
		{"line break", good[:30] + "\n" + good[30:], "malformed"},
		{"padding", good + "=", "malformed"},
		{"unused bits", grants.prefix + "e31.AA", "malformed"},
		{"standard base64", grants.prefix + "+/+/.AA", "malformed"},
		{"too large", grants.prefix + strings.Repeat("A", MaxSize), "more than 4096 bytes"},
		{"other key", signDocument(fixedKey(3), string(document)), "no trusted key"},
		{"altered document", grants.prefix + altered + "." + encoding.EncodeToString(signature), "no trusted key"},
		{"signature without the prefix", grants.prefix + encoding.EncodeToString(document) + "." + encoding.EncodeToString(fixedKey(1).sign(document)), "no trusted key"},
		{"no JSON", signDocument(fixedKey(1), "hello\nworld"), "invalid grant"},
		{"list", signDocument(fixedKey(1), "[]"), "invalid grant"},
		{"null", signDocument(fixedKey(1), "null"), "invalid node"},
		{"two values", signDocument(fixedKey(1), string(document)+"{}"), "invalid grant"},
		{"unknown key", set("only_on_sunday", true), "unknown object member name"},
		{"unknown key of a GPU", gpus(`"gpu":"0","mig":"x"`), "unknown object member name"},
		{"key in other case", gpus(`"GPU":"0"`), "unknown object member name"},
		{"key twice", gpus(`"gpu":"0","gpu":"1"`), "duplicate object member name"},
		{"no node", set("node", ""), "invalid node"},
		{"long node", set("node", strings.Repeat("n", 254)), "invalid node"},
		{"line break in the node", set("node", "a\nb"), "invalid node"},
		{"line break in the function", set("function", "a\nb"), "invalid function"},
		{"invalid instance", set("instance", "../x"), "invalid instance"},
		{"serial 0", set("serial", 0), "invalid serial 0"},
		{"negative serial", set("serial", -1), "invalid grant"},
		{"large serial", set("serial", uint64(1<<53)), "invalid serial"},
		{"fraction as serial", set("serial", 1.5), "invalid grant"},
		{"no time", with(func(f map[string]any) { delete(f, "not_after") }), "not_after is missing"},
		{"other form of time", set("not_after", "tomorrow"), "invalid grant"},
		{"no hash", with(func(f map[string]any) { delete(f, "secret_sha256") }), "secret_sha256 is missing"},
		{"short hash", set("secret_sha256", "00ff"), "invalid grant"},
		{"hash in upper case", set("secret_sha256", strings.Repeat("AB", 32)), "invalid grant"},
		{"no GPU", set("gpus", []any{}), "gpus is empty"},
		{"unknown GPU", gpus(`"gpu":"x"`), "gpu"},
		{"training with an objective", set("training", true), "slo_ms"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, err := TrustOf(fixedKey(1).Public()).Verify(tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("Verify: got %+v, %v; want an error of one line with %q", g, err, tt.want)
			}
		})
	}
	if _, err := (Trust{}).Verify(good); err == nil {
		t.Error("Verify without keys: got no error, want one")
	}
}

func TestCheck(t *testing.T) {
	g := example()
	for _, tt := range []struct {
		after time.Duration
		ok    bool
	}{{-time.Hour, true}, {0, true}, {Skew, true}, {Skew + time.Nanosecond, false}} {
		if err := g.CheckTime(g.NotAfter.Add(tt.after)); (err == nil) != tt.ok {
			t.Errorf("CheckTime %v after not_after: got %v, want success %v", tt.after, err, tt.ok)
		}
	}
	if err := g.CheckNode("gpu-1"); err != nil {
		t.Errorf("CheckNode of the node: got %v, want none", err)
	}
	if err := g.CheckNode("gpu-2"); err == nil || err.Error() != "the grant is for node gpu-1, and this is node gpu-2" {
		t.Errorf("CheckNode of another node: got %v, want both nodes", err)
	}
}

func TestSignRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Grant)
		want   string
	}{
		{"too large", func(g *Grant) {
			for i := range 100 {
				g.GPUs[0].Turns = append(g.GPUs[0].Turns, gpu.Turn{From: 0.4 + float64(2*i)/1000, To: 0.4 + float64(2*i+1)/1000})
			}
		}, "at most 4096 are allowed"},
		{"no serial", func(g *Grant) { g.Serial = 0 }, "invalid serial"},
		{"invalid slice", func(g *Grant) { g.GPUs[0].SMPct = 101 }, "101"},
	} {
		g := example()
		tt.change(&g)
		if _, err := fixedKey(1).Sign(g); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Sign, %s: got %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

func randomGrant(t *rapid.T) Grant {
	g := Grant{
		Node: rapid.StringMatching(`[a-z0-9äß.-]{1,40}`).Draw(t, "node"), Instance: rapid.StringMatching(`[a-z0-9_-][a-z0-9._-]{0,62}`).Draw(t, "instance"),
		Function: rapid.StringMatching(`[a-zA-Z0-9<&>-]{0,63}`).Draw(t, "function"), Secret: HashOf(rapid.String().Draw(t, "secret")),
		Serial: rapid.Uint64Range(1, maxSerial).Draw(t, "serial"), NotAfter: time.Unix(rapid.Int64Range(1, 4e9).Draw(t, "not_after"), 0).UTC(),
		LLM: rapid.Bool().Draw(t, "llm"), Training: rapid.Bool().Draw(t, "training"), Unmanaged: rapid.Bool().Draw(t, "unmanaged"),
	}
	if !g.Training {
		g.SLOMS = rapid.Float64Range(0, 1e6).Draw(t, "slo")
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "gpus") {
		request := rapid.Float64Range(0.01, 1).Draw(t, "request")
		g.GPUs = append(g.GPUs, wire.Allocation{
			GPU: gpu.Device{Index: i, Simulated: rapid.Bool().Draw(t, "simulated")}.String(), SMPct: rapid.Float64Range(0.1, 100).Draw(t, "sm"),
			QuotaRequest: request, QuotaLimit: rapid.Float64Range(request, 1).Draw(t, "limit"),
			MemLimit: gpu.Bytes(rapid.Int64Range(0, 1<<45).Draw(t, "mem")),
		})
	}
	return g
}

// TestRoundTrip checks that Verify returns the grant that was signed, and rejects it with another key or after a change
// of one bit.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := randomGrant(t)
		text, err := fixedKey(1).Sign(g)
		if err != nil {
			t.Fatal(err)
		}
		got, err := TrustOf(fixedKey(1).Public()).Verify(text)
		if err != nil || !reflect.DeepEqual(got, g) {
			t.Fatalf("Verify: got %+v, %v; want %+v", got, err, g)
		}
		if _, err := TrustOf(fixedKey(2).Public()).Verify(text); err == nil {
			t.Fatal("Verify with another key: got no error, want one")
		}
		changed := []byte(text)
		changed[rapid.IntRange(0, len(text)-1).Draw(t, "position")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, err := TrustOf(fixedKey(1).Public()).Verify(string(changed)); err == nil {
			t.Fatalf("Verify of a changed grant: got no error, want one: %s", changed)
		}
	})
}

// TestRegistration checks that a grant contains all fields of a registration that a plan can set.
func TestRegistration(t *testing.T) {
	r := wire.Registration{
		Instance: "a", Function: "f", Secret: "s", Kind: function.Training, LLM: true, StopUnmanaged: true,
		Allocation: wire.Allocation{GPU: "0", SMPct: 10, QuotaRequest: 0.1, QuotaLimit: 1},
		More:       []wire.Allocation{{GPU: "1", SMPct: 10, QuotaRequest: 0.1, QuotaLimit: 1}},
	}
	g := Of(r)
	if g.Secret != HashOf("s") {
		t.Errorf("hash of the secret: got %x, want that of s", g.Secret)
	}
	r.Secret = ""
	if got := g.Registration(); !reflect.DeepEqual(got, r) {
		t.Errorf("Registration: got %+v, want %+v", got, r)
	}
}

// FuzzDecode checks that an accepted document remains the same when it is encoded and decoded again, and that the text
// of an error is one line.
func FuzzDecode(f *testing.F) {
	text, err := fixedKey(1).Sign(example())
	if err != nil {
		f.Fatal(err)
	}
	document, _, err := grants.split(text)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(document)
	f.Add([]byte(`{"node":"n","gpus":null}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		g, err := decode(document)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error with a line break: %q", err)
			}
			return
		}
		again, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		same, err := decode(again)
		if err != nil {
			t.Fatalf("decode of %s: got %v, want no error", again, err)
		}
		if text, err := json.Marshal(same); err != nil || !bytes.Equal(text, again) {
			t.Fatalf("decode of %s: got %s, %v; want the same", again, text, err)
		}
	})
}

// FuzzVerify checks that Verify accepts only the text that the key has signed.
func FuzzVerify(f *testing.F) {
	text, err := fixedKey(1).Sign(example())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(grants.prefix + ".")
	f.Fuzz(func(t *testing.T, other string) {
		if _, err := TrustOf(fixedKey(1).Public()).Verify(other); err == nil && other != text {
			t.Fatalf("Verify accepts %s", other)
		}
	})
}

// BenchmarkVerify measures Verify if the last of the trusted keys has signed the grant.
func BenchmarkVerify(b *testing.B) {
	text, err := fixedKey(1).Sign(example())
	if err != nil {
		b.Fatal(err)
	}
	for name, trust := range map[string]Trust{
		"keys=1": TrustOf(fixedKey(1).Public()),
		"keys=4": TrustOf(fixedKey(2).Public(), fixedKey(3).Public(), fixedKey(4).Public(), fixedKey(1).Public()),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := trust.Verify(text); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "grants/s")
		})
	}
}
