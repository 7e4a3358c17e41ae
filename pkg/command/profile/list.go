package profile

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/number"
)

// list is a flag that takes numbers separated by commas. Given again, it is
// set anew.
type list[T int | float64] struct {
	values *[]T
	parse  func(string) (T, error)
	show   func(T) string
}

func floats(values *[]float64, standard ...float64) *list[float64] {
	*values = standard
	return &list[float64]{values, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, number.Plain}
}

func ints(values *[]int, standard ...int) *list[int] {
	*values = standard
	return &list[int]{values, strconv.Atoi, strconv.Itoa}
}

// Set reads 6,12,24.
func (l *list[T]) Set(text string) error {
	*l.values = nil
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for field := range strings.SplitSeq(text, ",") {
		v, err := l.parse(strings.TrimSpace(field))
		if err != nil {
			return fmt.Errorf("%q is not such a number", field)
		}
		*l.values = append(*l.values, v)
	}
	return nil
}

// String prints the numbers as Set reads them.
func (l *list[T]) String() string {
	if l.values == nil {
		return ""
	}
	texts := make([]string, len(*l.values))
	for i, v := range *l.values {
		texts[i] = l.show(v)
	}
	return strings.Join(texts, ",")
}

// Type is how the help calls the value.
func (l *list[T]) Type() string { return "list" }
