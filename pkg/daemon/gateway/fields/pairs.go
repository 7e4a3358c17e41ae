package fields

import (
	"errors"
	"io"
	"net/url"
	"strings"
)

const (
	maxKey   = len("%6d%6f%64%65%6c") + 1 // bytes of an encoded key of a form; a longer one is no key that counts
	maxValue = 3 * maxModel               // bytes of an encoded model
)

// pairs returns the fields of a form in the encoding of URLs: pairs of a key and a value.
func pairs(in reader) (f Found, err error) {
	f.encode = encodePair
	for end := byte('&'); end == '&' && err == nil; {
		var key, value, raw string
		if key, _, end, err = in.word(maxKey, "=&"); end != '=' || err != nil {
			continue
		}
		at := in.at()
		value, raw, end, err = in.word(maxValue, "&")
		switch {
		case err != nil:
		case key == "stream":
			f.Stream = streams(value)
		case key == "model" && (value == "" || len(value) > maxModel):
			return f, errNoName
		case key == "model":
			if err := f.add(value, Span{at, int64(len(raw))}); err != nil {
				return f, err
			}
		}
	}
	switch {
	case len(f.Models) > 0:
		return f, nil
	case err != nil:
		return f, err
	}
	return f, errNoForm
}

// word reads to one of the bytes in ends, which it returns, or to the end of the body, where end is
// 0. text is the decoded text before it, or "" if that is malformed or has more than limit bytes.
func (r reader) word(limit int, ends string) (text, raw string, end byte, err error) {
	var read []byte
	for {
		c, err := r.ReadByte()
		switch {
		case err == nil && strings.IndexByte(ends, c) < 0:
			if len(read) <= limit {
				read = append(read, c)
			}
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return "", "", 0, err
		case err == nil:
			end = c
		}
		if len(read) > limit {
			return "", "", end, nil
		}
		text, err = url.QueryUnescape(string(read))
		if err != nil {
			text = "" // no name
		}
		return text, string(read), end, nil
	}
}

// ReplaceInQuery returns the query of a URL with a name in place of each model.
func ReplaceInQuery(query, name string) string {
	f, _ := pairs(newReader(strings.NewReader(query))) // a malformed pair is left as it is
	text := string(f.Encode(name))
	for i := len(f.Models) - 1; i >= 0; i-- {
		m := f.Models[i]
		query = query[:m.At] + text + query[m.At+m.Length:]
	}
	return query
}
