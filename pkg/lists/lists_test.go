package lists

import (
	"slices"
	"strconv"
	"testing"
)

func TestMap(t *testing.T) {
	if got := Map([]int{3, 1, 3}, strconv.Itoa); !slices.Equal(got, []string{"3", "1", "3"}) {
		t.Errorf("Map: got %q, want the result for each element in order", got)
	}
	if got := Map([]int{}, strconv.Itoa); got != nil {
		t.Errorf("Map of an empty list: got %q, want nil", got)
	}
}

func TestDistinct(t *testing.T) {
	if got := Distinct([]int{30, 9, 30, 100}, strconv.Itoa); !slices.Equal(got, []string{"100", "30", "9"}) {
		t.Errorf("Distinct: got %q, want the results sorted and without duplicates", got)
	}
}
