package pack

import (
	"cmp"
	"slices"
	"sort"
)

// scale is what a dual feasible function makes of the sides of all kinds along
// one axis, and of the bin's. Whatever lies side by side in a bin has scaled
// sides that sum to at most the bin's; so every scale, and every product of a
// scale of widths and a scale of heights, gives a bound by area (Fekete and
// Schepers, New classes of fast lower bounds for bin packing problems; Carlier,
// Clautiaux and Moukrim, New reduction procedures and lower bounds for the
// two-dimensional bin packing problem with fixed orientation).
type scale struct {
	sides []int64
	whole int64
}

// dffWork is about how many multiplications dffBound takes.
const dffWork = 2_000_000

// dffBound is the best bound by area over pairs of scales.
func dffBound(kinds []Kind, bin Bin) int {
	kinds = slices.DeleteFunc(slices.Clone(kinds), func(k Kind) bool { return k.Count == 0 })
	if len(kinds) == 0 {
		return 0
	}
	most := 6
	for most < 200 && (most+1)*(most+1)*len(kinds) <= dffWork {
		most++
	}
	widths, heights := sides(kinds)
	across, up := scales(kinds, widths, bin.W, most), scales(kinds, heights, bin.H, most)
	best := 0
	for _, a := range across {
		for _, u := range up {
			var s sum
			for i := range kinds {
				s.add(a.sides[i]*u.sides[i], int64(kinds[i].Count))
			}
			best = max(best, s.over(a.whole*u.whole))
		}
	}
	return best
}

// scales are at most about most different scales of the sides along one axis.
func scales(kinds []Kind, sides []int64, whole int64, most int) []scale {
	out := []scale{{sides, whole}}
	add := func(f func(x int64) int64, whole int64) {
		s := scale{make([]int64, len(sides)), whole}
		for i, x := range sides {
			s.sides[i] = f(x)
		}
		if whole > 0 && !slices.ContainsFunc(out, func(o scale) bool { return o.whole == s.whole && slices.Equal(o.sides, s.sides) }) {
			out = append(out, s)
		}
	}
	ks := thresholds(sides, whole)
	for _, k := range sample(ks, most/3) {
		add(dropSmall(whole, k))
	}
	for _, k := range sample(ks, most/3) {
		add(rounded(whole, k))
	}
	for _, k := range sample(ks, most-1-2*(most/3)) {
		add(counted(kinds, sides, whole, k))
	}
	return out
}

// thresholds are the sides up to half of the whole, rounded up, at which the functions may
// change what they make of some side, smallest first; of thousands of sides
// only a thousand are looked at.
func thresholds(sides []int64, whole int64) []int64 {
	half := (whole + 1) / 2
	ks := []int64{half}
	for i := 0; i < len(sides); i += 1 + len(sides)/1000 {
		x := sides[i]
		for _, k := range []int64{x, whole - x, whole - x + 1, x / 2, x / 3} {
			if k >= 1 && k < half {
				ks = append(ks, k)
			}
		}
	}
	slices.Sort(ks)
	return slices.Compact(ks)
}

// sample is at most n of the values, evenly spread and with the last.
func sample(values []int64, n int) []int64 {
	if len(values) <= n {
		return values
	}
	var out []int64
	for i := range n {
		out = append(out, values[(i+1)*len(values)/n-1])
	}
	return out
}

// dropSmall forgets what is smaller than k, and lets nothing lie beside what
// leaves less than k (f0 of Carlier and others; U(ε) of Fekete and Schepers).
func dropSmall(whole, k int64) (func(int64) int64, int64) {
	return func(x int64) int64 {
		switch {
		case x > whole-k:
			return whole
		case x < k:
			return 0
		}
		return x
	}, whole
}

// rounded counts how often k fits, in favour of what is larger than half (f2 of
// Carlier and others).
func rounded(whole, k int64) (func(int64) int64, int64) {
	return func(x int64) int64 {
		switch {
		case 2*x > whole:
			return 2 * (whole/k - (whole-x)/k)
		case 2*x == whole:
			return whole / k
		}
		return 2 * (x / k)
	}, 2 * (whole / k)
}

// counted makes 1 of what is from k to half, and of what is larger as many as
// it keeps from lying in the bin (f1 of Carlier and others, which depends on
// the sides).
func counted(kinds []Kind, sides []int64, whole, k int64) (func(int64) int64, int64) {
	type run struct{ side, count int64 }
	var smalls []run
	for i, x := range sides {
		if x >= k && 2*x <= whole {
			smalls = append(smalls, run{x, int64(kinds[i].Count)})
		}
	}
	slices.SortFunc(smalls, func(a, b run) int { return cmp.Compare(a.side, b.side) })
	// Of the shortest first: ends[i] is where they reach up to the i-th, and
	// numbers[i] how many they are; what reaches beyond the bin is left out.
	var ends, numbers []int64
	end, number := int64(0), int64(0)
	for _, s := range smalls {
		if s.count > (whole-end)/s.side {
			break
		}
		end, number = end+s.count*s.side, number+s.count
		ends, numbers = append(ends, end), append(numbers, number)
	}
	// lie is how many of them lie side by side in a room.
	lie := func(room int64) (n int64) {
		i := sort.Search(len(ends), func(i int) bool { return ends[i] > room })
		if i > 0 {
			n, room = numbers[i-1], room-ends[i-1]
		}
		if i < len(smalls) {
			n += min(smalls[i].count, room/smalls[i].side)
		}
		return n
	}
	all := lie(whole)
	return func(x int64) int64 {
		switch {
		case 2*x > whole:
			return all - lie(whole-x)
		case x >= k:
			return 1
		}
		return 0
	}, all
}
