package grant

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode"

	strict "github.com/go-json-experiment/json"
)

// form is a kind of signed text: PREFIX DOCUMENT.SIGNATURE. The signature covers the prefix, so a text of one
// kind is never valid as one of another kind.
type form struct {
	what   string // its name in messages
	prefix string
	max    int // largest text, in bytes
}

// encoding refuses a text whose last character has unused bits, so that each document has one text.
var encoding = base64.RawURLEncoding.Strict()

// split returns the document and the signature of a text.
func (f form) split(text string) (document, signature []byte, err error) {
	if len(text) > f.max {
		return nil, nil, fmt.Errorf("the %s has more than %d bytes", f.what, f.max)
	}
	rest, ok := strings.CutPrefix(text, f.prefix)
	one, two, found := strings.Cut(rest, ".")
	document, err1 := encoding.DecodeString(one)
	signature, err2 := encoding.DecodeString(two)
	// The decoder would skip line breaks.
	if !ok || !found || strings.ContainsAny(rest, "\r\n") || err1 != nil || err2 != nil {
		return nil, nil, fmt.Errorf("the %s is malformed: expected %sDOCUMENT.SIGNATURE", f.what, f.prefix)
	}
	return document, signature, nil
}

// signed returns the bytes that are signed for a document.
func (f form) signed(document []byte) []byte { return append([]byte(f.prefix), document...) }

// sign returns the text of a document.
func (f form) sign(k PrivateKey, document []byte) string {
	return f.prefix + encoding.EncodeToString(document) + "." + encoding.EncodeToString(k.sign(f.signed(document)))
}

// verify returns the document of a text that one of the trusted keys has signed.
func (f form) verify(t Trust, text string) ([]byte, error) {
	document, signature, err := f.split(text)
	if err != nil {
		return nil, err
	}
	if !t.verifies(f.signed(document), signature) {
		return nil, errors.New("no trusted key has signed the " + f.what)
	}
	return document, nil
}

// decode parses a document, which must have only known keys, each at most once.
func (f form) decode(document []byte, out any) error {
	if err := strict.Unmarshal(document, out, strict.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("invalid %s: %s", f.what, oneLine(err))
	}
	return nil
}

// oneLine returns the text of an error without line breaks and unprintable characters.
func oneLine(err error) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, err.Error())
}
