package process

import (
	"os"
	"testing"
)

func TestParseStat(t *testing.T) {
	const tail = " S 1 7 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 2453504 178\n"
	for _, c := range []struct {
		text string
		want stat
		ok   bool
	}{
		{"42 (sh)" + tail, stat{42, 'S', 42, 987654}, true},
		{"42 (a) Z (b)" + tail, stat{42, 'S', 42, 987654}, true},
		{"42 (a\nb)" + tail, stat{42, 'S', 42, 987654}, true},
		{"42 (sh) S 1 7 42", stat{}, false},
		{"42 sh S", stat{}, false},
		{"x (sh)" + tail, stat{}, false},
		{"", stat{}, false},
		{")(", stat{}, false},
	} {
		got, err := parseStat([]byte(c.text))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("parseStat(%q) = %+v, %v, want %+v", c.text, got, err, c.want)
		}
	}
	own, err := readStat(os.Getpid())
	if err != nil || own.pid != os.Getpid() || own.dead() || own.start == 0 {
		t.Errorf("readStat of this process = %+v, %v", own, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := parseStat(text); err != nil && s != (stat{}) {
			t.Errorf("parseStat(%q) = %+v with error %v", text, s, err)
		}
	})
}

func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"a\nb\nc", 2, "b\nc"},
		{"a\n", 5, "a\n"},
		{"\n\n\n", 1, "\n"},
		{"", 3, ""},
		{"a\nb\n", 0, ""},
	} {
		if got := string(lastLines([]byte(c.text), c.n)); got != c.want {
			t.Errorf("lastLines(%q, %d) = %q, want %q", c.text, c.n, got, c.want)
		}
	}
}
