package joint

import "slices"

// raster is the places along one side of a GPU where an edge can lie when
// everything is pushed to one end: the sums of sides. Where there would be too
// many, places are evenly spaced and sides are rounded to them.
type raster struct {
	points []int64 // ascending, from 0 to One
	exact  bool
	down   bool // sides are rounded down, not up
}

// newRaster is the raster of these sides with at most limit points. Rounding
// sides up keeps what is packed packable; rounding them down keeps a bound.
func newRaster(sides []int64, limit int, down bool) raster {
	sides = slices.Clone(sides)
	slices.Sort(sides)
	sides = slices.Compact(sides)
	if points := sums(sides, limit); points != nil {
		return raster{points: points, exact: true, down: down}
	}
	even := make([]int64, limit)
	for i := range even {
		even[i] = int64(i) * One / int64(limit-1)
	}
	return raster{points: even, down: down}
}

// sums are all sums of sides up to One, and One; nil when there are more than
// limit.
func sums(sides []int64, limit int) []int64 {
	seen := map[int64]bool{0: true}
	queue := []int64{0}
	for len(queue) > 0 {
		at := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, s := range sides {
			if next := at + s; next <= One && !seen[next] {
				if len(seen) >= limit {
					return nil
				}
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	seen[One] = true
	points := make([]int64, 0, len(seen))
	for p := range seen {
		points = append(points, p)
	}
	slices.Sort(points)
	return points
}

// floor is the last point that is at most v.
func (r raster) floor(v int64) int {
	i, found := slices.BinarySearch(r.points, v)
	if found {
		return i
	}
	return i - 1
}

// side is the point that stands for a side.
func (r raster) side(v int64) int {
	i, found := slices.BinarySearch(r.points, v)
	if found || !r.down {
		return i
	}
	return i - 1
}
