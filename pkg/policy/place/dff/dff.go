// Package dff implements dual feasible functions. Such a function changes the sides of rectangles so that
// rectangles that lie side by side in a bin have changed sides that sum to at most the changed side of the
// bin. Each pair of a function for the widths and one for the heights gives a bound by area (Fekete and
// Schepers 1998, New classes of fast lower bounds for bin packing problems; Carlier, Clautiaux and Moukrim
// 2007, New reduction procedures and lower bounds for the two-dimensional bin packing problem with fixed
// orientation). Packages joint and pack use it.
package dff

// DropSmall returns a function and the changed side of the bin, which remains whole. The function drops
// sides smaller than k, and raises sides that leave less than k to the whole side (f0 of Carlier and
// others; U(ε) of Fekete and Schepers).
func DropSmall(whole, k int64) (f func(int64) int64, changed int64) {
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

// Rounded returns a function and the changed side of the bin, whose side is whole. The function counts how
// often k fits, rounded in favour of sides larger than half of the bin's (f2 of Carlier and others).
func Rounded(whole, k int64) (f func(int64) int64, changed int64) {
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

// Thresholds returns values of k at which the changed length of a side may change.
func Thresholds(side, whole int64) []int64 {
	return []int64{side, whole - side, whole - side + 1, side / 2, side / 3}
}
