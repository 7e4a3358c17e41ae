package grant

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestKeyFiles(t *testing.T) {
	k := GenerateKey()
	file := k.File(time.Unix(0, 0))
	got, err := ReadPrivate(bytes.NewReader(file), "key")
	if err != nil || got.Public() != k.Public() {
		t.Errorf("ReadPrivate of a new key: got %v, %v; want %v", got.Public(), err, k.Public())
	}
	if !strings.Contains(string(file), "# public key: "+k.Public().String()+"\n") {
		t.Errorf("file of a private key: got %s, want a comment with the public key", file)
	}
	trust, err := ReadTrust(strings.NewReader("# the gateway\n"+k.Public().String()+"\n\n"+fixedKey(1).Public().String()+"\r\n"), "trust")
	if err != nil || trust.Len() != 2 {
		t.Fatalf("ReadTrust: got %d keys, %v; want 2", trust.Len(), err)
	}
	text, err := k.Sign(example())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.Verify(text); err != nil {
		t.Errorf("Verify with the keys of a file: got %v, want no error", err)
	}
}

func TestKeyFilesRefuse(t *testing.T) {
	k := fixedKey(1)
	public, private := k.Public().String(), strings.TrimSuffix(string(k.File(time.Unix(0, 0))[strings.Index(string(k.File(time.Unix(0, 0))), "\n"+privatePrefix)+1:]), "\n")
	for _, tt := range []struct{ name, text, private, trust string }{
		{"empty", "", "f:1: no key", "f:1: no key"},
		{"comments only", "# a\n\n", "f:1: no key", "f:1: no key"},
		{"the other kind", "\n" + public, "f:2: this is a public key", ""},
		{"a private key", "\n" + private, "", "f:2: this is a private key, which must not be here"},
		{"two keys", private + "\n" + private, "f:2: a second key", "f:1: this is a private key"},
		{"short", public[:len(public)-1], "f:1: this is a public", "f:1: the key is damaged"},
		{"long", public + "A", "f:1: this is a public", "f:1: the key is damaged"},
		{"indented", " " + public, "f:1: expected gfaas-private", "f:1: expected gfaas-public"},
		{"comment after the key", public + " # me", "f:1: this is a public", "f:1: the key is damaged"},
		{"damaged private key", private[:40], "f:1: the key is damaged", "f:1: this is a private"},
		{"another format", "ssh-ed25519 AAAA", "f:1: expected gfaas-private-key-v1:KEY", "f:1: expected gfaas-public-key-v1:KEY"},
		{"large", strings.Repeat("#\n", maxKeyFile), "more than", "more than"},
		{"many keys", strings.Repeat(public+"\n", maxKeys+1), "f:1: this is a public", "f:65: more than 64 keys"},
		{"binary", "\x00\x01", "f:1: ", "f:1: "},
	} {
		_, err := ReadPrivate(strings.NewReader(tt.text), "f")
		if (err == nil) != (tt.private == "") || err != nil && (!strings.Contains(err.Error(), tt.private) || strings.Contains(err.Error(), private[25:])) {
			t.Errorf("ReadPrivate, %s: got %v, want an error with %q and without the key", tt.name, err, tt.private)
		}
		_, err = ReadTrust(strings.NewReader(tt.text), "f")
		if (err == nil) != (tt.trust == "") || err != nil && (!strings.Contains(err.Error(), tt.trust) || strings.Contains(err.Error(), private[25:])) {
			t.Errorf("ReadTrust, %s: got %v, want an error with %q and without the key", tt.name, err, tt.trust)
		}
	}
}

// FuzzReadKeys checks that the readers of key files do not panic, that no file is both a private and a public key, and
// that the text of an error is one line.
func FuzzReadKeys(f *testing.F) {
	f.Add(fixedKey(1).File(time.Unix(0, 0)))
	f.Add([]byte(fixedKey(1).Public().String()))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, err1 := ReadPrivate(bytes.NewReader(text), "f")
		_, err2 := ReadTrust(bytes.NewReader(text), "f")
		for _, err := range []error{err1, err2} {
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Fatalf("error with a line break: %q", err)
			}
		}
		if err1 == nil && err2 == nil {
			t.Fatal("a file is both a private and a public key")
		}
	})
}
