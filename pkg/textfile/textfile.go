// Package textfile has the common part of the readers of the project's files: faults and notes about a file, with its line.
// Neither it nor the formats open files.
package textfile

import (
	"fmt"
	"io"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Stdin is the name that messages give to standard input.
const Stdin = "<stdin>"

// Fault is an error at a position in a file.
type Fault struct {
	File  string
	Line  int
	Where string // the column, the key or the path to it; empty if the fault concerns the whole line
	What  string // what is wrong, and what was expected
}

func (f *Fault) Error() string {
	if f.Where == "" {
		return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.What)
	}
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Where, f.What)
}

// noting is a file with functions for notes.
type noting struct {
	io.Reader
	note, always func(text string)
}

// Noting returns a reader of the file. Notef passes notes about the file to note, and AlwaysNotef to always.
func Noting(r io.Reader, note, always func(text string)) io.Reader { return noting{r, note, always} }

// Notef adds a note about a file. It does nothing unless the file comes from Noting.
func Notef(file io.Reader, format string, args ...any) {
	if n, listens := file.(noting); listens {
		n.note(fmt.Sprintf(format, args...))
	}
}

// AlwaysNotef adds a note about a probable mistake in a file, which even --quiet does not hide. It does nothing unless the
// file comes from Noting.
func AlwaysNotef(file io.Reader, format string, args ...any) {
	if n, listens := file.(noting); listens {
		n.always(fmt.Sprintf(format, args...))
	}
}

// Instead returns r with the functions for notes of file, for a reader that reads a copy.
func Instead(file, r io.Reader) io.Reader {
	if n, listens := file.(noting); listens {
		return noting{r, n.note, n.always}
	}
	return r
}

// farthest is the largest number of wrong letters in a suggestion, at most one in three.
const farthest = 3

// Near returns the word of the list that is most similar to what, or "" if none is similar.
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

// Slip returns the word of the list that a name equals except for its case, the separators of its parts, its last part (a
// unit: slo and slo_s are meant to be slo_ms), or one letter; "" if there is none. A different digit does not count: p90_ms
// is not meant to be p95_ms.
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

// Begins returns the first word of the list that a name resembles in one of these ways, or "" if there is none:
//
//   - The name begins with the word: batch_size and batches resemble batch.
//   - The two differ only in their last parts, or one lacks it: throughput and throughput_s resemble throughput_rps.
//   - Each part of one begins with the part of the other: gpu_memory_mib resembles gpu_mem_mib.
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

// leastWord is the least length of a word for which its presence at the beginning of another counts.
const leastWord = 3

// writtenOut reports whether, for each pair of parts of two names, one begins with the other.
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

// stem returns a plain name without its last part, or the whole name if it has only one part.
func stem(name string) string {
	if i := strings.LastIndexByte(name, '_'); i >= 0 {
		return name[:i]
	}
	return name
}

// plain returns a name in lower-case letters, with underscores between its parts.
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
