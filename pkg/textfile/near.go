package textfile

import "github.com/agnivade/levenshtein"

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
