package grant

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/textfile"
)

// The text form of a key is a line with a prefix and 32 bytes in unpadded base64url. Those of a private key are the
// Ed25519 seed.
const (
	publicPrefix  = "gfaas-public-key-v1:"
	privatePrefix = "gfaas-private-key-v1:"

	maxKeys    = 64       // largest number of keys in a file of trusted keys
	maxKeyFile = 64 << 10 // largest size of a key file, in bytes
)

// PrivateKey signs grants.
type PrivateKey struct{ key ed25519.PrivateKey }

// PublicKey verifies grants.
type PublicKey [ed25519.PublicKeySize]byte

// GenerateKey returns a new private key.
func GenerateKey() PrivateKey {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // impossible: reading the system's random numbers does not fail
	}
	return PrivateKey{key}
}

// Public returns the public key.
func (k PrivateKey) Public() PublicKey { return PublicKey(k.key.Public().(ed25519.PublicKey)) }

// String returns the text form of the key: a line of a file that ReadTrust reads, without the line feed.
func (k PublicKey) String() string { return publicPrefix + encoding.EncodeToString(k[:]) }

// File returns the content of a private key file, which ReadPrivate reads. A comment in it names the public key.
func (k PrivateKey) File(created time.Time) []byte {
	return fmt.Appendf(nil, "# created: %s\n# public key: %s\n%s%s\n", created.UTC().Format(time.RFC3339), k.Public(), privatePrefix, encoding.EncodeToString(k.key.Seed()))
}

func (k PrivateKey) sign(message []byte) []byte { return ed25519.Sign(k.key, message) }

// Trust is a set of public keys.
type Trust struct{ keys []PublicKey }

// Len returns the number of keys.
func (t Trust) Len() int { return len(t.keys) }

// TrustOf returns the set of the given keys.
func TrustOf(keys ...PublicKey) Trust { return Trust{slices.Clone(keys)} }

func (t Trust) verifies(message, signature []byte) bool {
	return slices.ContainsFunc(t.keys, func(k PublicKey) bool { return ed25519.Verify(k[:], message, signature) })
}

// ReadPrivate reads a file with one private key. The file may also have empty lines and comments, which begin with #.
// name is the file's name for errors. Errors do not contain the text of the file.
func ReadPrivate(r io.Reader, name string) (PrivateKey, error) {
	var seeds [][]byte
	err := eachLine(r, name, func(line string) error {
		text, ok := strings.CutPrefix(line, privatePrefix)
		switch {
		case strings.HasPrefix(line, publicPrefix):
			return errors.New("this is a public key, expected a private key of gfaas grant keygen")
		case !ok:
			return errors.New("expected " + privatePrefix + "KEY, as gfaas grant keygen writes it")
		case len(seeds) > 0:
			return errors.New("a second key, expected one")
		}
		seed, err := decodeKey(text)
		seeds = append(seeds, seed)
		return err
	})
	if err == nil && len(seeds) == 0 {
		err = &textfile.Fault{File: name, Line: 1, What: "no key in the file, expected " + privatePrefix + "KEY"}
	}
	if err != nil {
		return PrivateKey{}, err
	}
	return PrivateKey{ed25519.NewKeyFromSeed(seeds[0])}, nil
}

// ReadTrust reads a file of 1 to 64 public keys, one per line. The file may also have empty lines and comments, which
// begin with #. name is the file's name for errors.
func ReadTrust(r io.Reader, name string) (t Trust, err error) {
	err = eachLine(r, name, func(line string) error {
		text, ok := strings.CutPrefix(line, publicPrefix)
		switch {
		case strings.HasPrefix(line, privatePrefix):
			return errors.New("this is a private key, which must not be here: expected a public key, as gfaas grant public prints it")
		case !ok:
			return errors.New("expected " + publicPrefix + "KEY, as gfaas grant public prints it")
		case len(t.keys) == maxKeys:
			return fmt.Errorf("more than %d keys", maxKeys)
		}
		key, err := decodeKey(text)
		if err == nil {
			t.keys = append(t.keys, PublicKey(key))
		}
		return err
	})
	if err == nil && len(t.keys) == 0 {
		err = &textfile.Fault{File: name, Line: 1, What: "no key in the file, expected " + publicPrefix + "KEY"}
	}
	if err != nil {
		return Trust{}, err
	}
	return t, nil
}

// decodeKey decodes the 32 bytes of a key.
func decodeKey(text string) ([]byte, error) {
	key, err := encoding.DecodeString(text)
	if err != nil || len(key) != ed25519.SeedSize || strings.ContainsAny(text, "\r\n") {
		return nil, fmt.Errorf("the key is damaged: expected %d bytes in base64url", ed25519.SeedSize)
	}
	return key, nil
}

// eachLine calls f for each line of a key file that is neither empty nor a comment. It returns the first error of f,
// with the file and the line.
func eachLine(r io.Reader, name string, f func(line string) error) error {
	text, err := textfile.ReadAll(r, &textfile.Checker{Name: name, Is: "keys", Total: maxKeyFile})
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxKeyFile+1)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := f(line); err != nil {
			return &textfile.Fault{File: name, Line: n, What: err.Error()}
		}
	}
	return lines.Err()
}
