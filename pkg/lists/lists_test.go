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

func TestFilter(t *testing.T) {
	list := []int{3, -1, 0, 2}
	if got := Filter(list, func(n int) bool { return n > 0 }); !slices.Equal(got, []int{3, 2}) || list[1] != -1 {
		t.Errorf("Filter: got %v, want the positive elements in order, and the list unchanged", got)
	}
	if got := Filter(list, func(int) bool { return false }); got != nil {
		t.Errorf("Filter without a match: got %v, want nil", got)
	}
}

func TestDistinct(t *testing.T) {
	if got := Distinct([]int{30, 9, 30, 100}, strconv.Itoa); !slices.Equal(got, []string{"100", "30", "9"}) {
		t.Errorf("Distinct: got %q, want the results sorted and without duplicates", got)
	}
}
