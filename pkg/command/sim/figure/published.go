package figure

import (
	"fmt"
	"math"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// Published is a published figure, as precise as its text: a number, a range or a limit. The zero
// value stands for a quantity that is not published.
type Published struct {
	Text      string
	Low, High float64 // infinite if a limit is open
}

// ParsePublished parses texts like 4.4, -93.3, about 3000, 8 to 20, more than 2, up to 96.
func ParsePublished(cell string) (Published, error) {
	p := Published{Text: cell}
	fail := fmt.Errorf("%s is not a published figure, expected one like 4.4, about 3000, 8 to 20, more than 2 or up to 96", csvfile.Quote(cell))
	rest := cell
	open := ""
	for _, word := range []string{"about", "more than", "less than", "up to"} {
		if after, found := strings.CutPrefix(cell, word+" "); found {
			open, rest = word, after
		}
	}
	low, high, isRange := strings.Cut(rest, " to ")
	if isRange && open != "" {
		return p, fail
	}
	var err error
	if p.Low, err = signed(low); err != nil {
		return p, fail
	}
	p.High = p.Low
	switch {
	case isRange:
		if p.High, err = signed(high); err != nil || p.High < p.Low {
			return p, fail
		}
	case open == "more than":
		p.High = math.Inf(1)
	case open == "less than", open == "up to":
		p.Low = math.Inf(-1)
	}
	return p, nil
}

// Difference returns the distance of a value from the published figure, as a fraction of the
// nearest end of its range. It is 0 within the range, and for quantities that are not published.
func (p Published) Difference(v float64) float64 {
	near := v
	switch {
	case p.Text == "" || p.Low <= v && v <= p.High:
		return 0
	case v < p.Low:
		near = p.Low
	default:
		near = p.High
	}
	if near == 0 {
		return math.Inf(1)
	}
	return math.Abs(v-near) / math.Abs(near)
}

// ends returns the finite ends of the range, for a picture.
func (p Published) ends() (values []float64) {
	if p.Text == "" {
		return nil
	}
	for _, v := range []float64{p.Low, p.High} {
		if !math.IsInf(v, 0) && (len(values) == 0 || values[0] != v) {
			values = append(values, v)
		}
	}
	return values
}
