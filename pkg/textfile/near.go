package textfile

import (
	"strings"

	"github.com/agnivade/levenshtein"
)

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
// between its parts, or one letter; empty when it is none of them. Digits are no
// slip: p90_ms is not meant to be p95_ms.
func Slip(name string, words []string) string {
	slip := plain(name)
	for _, word := range words {
		if slip == plain(word) {
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
