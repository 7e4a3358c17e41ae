// Package textfile is what the readers of the project's files share: how a
// fault in a file is told. Nothing here or in the formats opens one.
package textfile

import (
	"fmt"
	"io"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Stdin is the name that messages give to standard input.
const Stdin = "<stdin>"

// Fault is what is wrong at one place of a file.
type Fault struct {
	File  string
	Line  int
	Where string // the column, the key, or the path to it; empty when the fault is not one's
	What  string // what is wrong, and what was expected
}

func (f *Fault) Error() string {
	if f.Where == "" {
		return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.What)
	}
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Where, f.What)
}

// noting is a file whose reader may have something to say.
type noting struct {
	io.Reader
	note func(text string)
}

// Noting hands on what the reader of a file says about it that is no fault.
func Noting(r io.Reader, note func(text string)) io.Reader { return noting{r, note} }

// Notef says something about a file. Nobody hears it where the file is not Noting.
func Notef(file io.Reader, format string, args ...any) {
	if n, listens := file.(noting); listens {
		n.note(fmt.Sprintf(format, args...))
	}
}

// Instead reads on in another reader what the file says, such as a copy.
func Instead(file, r io.Reader) io.Reader {
	if n, listens := file.(noting); listens {
		return noting{r, n.note}
	}
	return r
}

// farthest is how many letters a slip may have got wrong, at most one in three.
const farthest = 3

// Near is the word that was probably meant where what is no word of the list
// stands: the nearest, empty when none is near.
func Near(what string, words []string) string {
	best, least := "", min(farthest, (len(what)+2)/3)+1
	if len(what) > 64 {
		return ""
	}
	for _, word := range words {
		if d := levenshtein.ComputeDistance(what, word); d < least {
			best, least = word, d
		}
	}
	return best
}

// Slip is the word of the list that a name is but for its case, the signs
// between its parts, its last part (a unit: slo and slo_s are meant to be slo_ms),
// or one letter; empty when it is none of them. Digits are no slip: p90_ms is not
// meant to be p95_ms.
func Slip(name string, words []string) string {
	slip := plain(name)
	for _, word := range words {
		if slip == plain(word) {
			return word
		}
	}
	for _, word := range words {
		if of := stem(plain(word)); of != plain(word) && (slip == of || stem(slip) == of) {
			return word
		}
	}
	for _, word := range words {
		if len(word) > 3 && digits(slip) == digits(word) && levenshtein.ComputeDistance(slip, plain(word)) == 1 {
			return word
		}
	}
	return ""
}

// Begins is the word of the list that a name begins like: the word and more
// (batch_size and batches begin like batch), the word with another last part or none
// (throughput, p95_s), or its parts written out (gpu_memory_mib begins like
// gpu_mem_mib); empty when there is none.
func Begins(name string, words []string) string {
	slip := plain(name)
	for _, word := range words {
		of := plain(word)
		switch {
		case strings.HasPrefix(slip, of+"_"), len(of) >= leastWord && strings.HasPrefix(slip, of):
			return word
		case stem(of) != of && (slip == stem(of) || stem(slip) == stem(of)), writtenOut(slip, of):
			return word
		}
	}
	return ""
}

// leastWord is how many letters tell that one word begins like another.
const leastWord = 3

// writtenOut says whether each part of one name begins like that of the other.
func writtenOut(a, b string) bool {
	as, bs := strings.Split(a, "_"), strings.Split(b, "_")
	if len(as) != len(bs) || len(as) < 2 {
		return false
	}
	for i := range as {
		short, long := as[i], bs[i]
		if len(short) > len(long) {
			short, long = long, short
		}
		if short != long && (len(short) < leastWord || !strings.HasPrefix(long, short)) {
			return false
		}
	}
	return true
}

// stem is a plain name without its last part; whole when it has but one.
func stem(name string) string {
	if i := strings.LastIndexByte(name, '_'); i >= 0 {
		return name[:i]
	}
	return name
}

// plain is a name in small letters, its parts joined by underscores.
func plain(name string) string {
	return strings.NewReplacer("-", "_", " ", "_", ".", "_").Replace(strings.ToLower(name))
}

func digits(name string) string {
	return strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, name)
}
