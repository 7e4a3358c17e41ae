// Package lists has the loops over lists that all packages need: Map, Filter and Distinct.
package lists

import (
	"cmp"
	"slices"
)

// Map returns the results of a function for each element, or nil for an empty list.
func Map[T, U any](list []T, of func(T) U) []U {
	var out []U
	for _, element := range list {
		out = append(out, of(element))
	}
	return out
}

// Filter returns the elements for which a function returns true, or nil if there are none.
func Filter[T any](list []T, keep func(T) bool) []T {
	var out []T
	for _, element := range list {
		if keep(element) {
			out = append(out, element)
		}
	}
	return out
}

// Distinct returns the results of a function for the elements, sorted and without duplicates.
func Distinct[T any, K cmp.Ordered](list []T, of func(T) K) []K {
	out := Map(list, of)
	slices.Sort(out)
	return slices.Compact(out)
}
