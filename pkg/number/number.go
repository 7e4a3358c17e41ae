// Package number formats numbers for files and for users: Plain, Short, Fixed and Percent are the common forms. Vanished
// detects numbers that became 0 when they were parsed, because they are too small. Quantile is the quantile by nearest rank.
package number

import (
	"math"
	"strconv"
	"strings"
)

// Plain returns all digits of a number without an exponent, so that it reads back as the same number: 0.4, 1200.
func Plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Vanished reports whether v is 0, but text, from which v was parsed, is a number other than 0. Such a number is too small
// for its type: 1e-400 for a float64, or 0.1ns for a time.Duration. Callers reject it, because 0 means "no limit" in many
// settings.
func Vanished(text string, v float64) bool {
	mantissa := text
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		mantissa = text[:at]
	}
	return v == 0 && strings.ContainsAny(mantissa, "123456789")
}

// Fixed returns a number with the given number of decimals: Fixed(2, 1) is 2.0.
func Fixed(v float64, decimals int) string { return strconv.FormatFloat(v, 'f', decimals, 64) }

// Trimmed returns a number with at most the given number of decimals, without trailing zeros: Trimmed(2.04, 1) is 2.
func Trimmed(v float64, decimals int) string {
	text := Fixed(v, decimals)
	if !strings.Contains(text, ".") {
		return text
	}
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}

// Significant returns a number with at most the given number of significant digits: Significant(1234, 3) is 1.23e+03.
func Significant(v float64, digits int) string { return strconv.FormatFloat(v, 'g', digits, 64) }

// Short returns a number for users, rounded to at most three significant digits: Short(0.3333) is 0.333, Short(12.000000001)
// is 12. A number of 1000 or more is rounded to an integer: Short(1234.5) is 1234.
func Short(v float64) string {
	if math.Abs(v) >= 1000 || math.IsNaN(v) {
		return Fixed(v, 0)
	}
	rounded, err := strconv.ParseFloat(Significant(v, 3), 64)
	if err != nil {
		return Plain(v)
	}
	return Plain(rounded)
}

// Metric returns a number, rounded to at most three significant digits, with the suffix k for thousands or M for millions:
// 0.123, 12.3, 1.23k, 4M.
func Metric(v float64) string {
	switch {
	case v >= 999.5e3:
		return Significant(v/1e6, 3) + "M"
	case v >= 999.5:
		return Significant(v/1e3, 3) + "k"
	}
	return Significant(v, 3)
}

// Percent returns a fraction as a percentage with the given number of decimals: Percent(0.345, 1) is 34.5%.
func Percent(fraction float64, decimals int) string { return Fixed(100*fraction, decimals) + "%" }

// Count returns a number and a noun, in the plural unless n is 1: Count(1, "GPU") is 1 GPU, Count(2, "GPU") is 2 GPUs.
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// Range returns a request and its limit in the form of Short: "0.3:0.8", or "0.3" if the limit is not above the request.
func Range(request, limit float64) string {
	if limit > request {
		return Short(request) + ":" + Short(limit)
	}
	return Short(request)
}

// Quantile returns the least value such that at least the fraction q of the sorted values is at or below it (nearest rank),
// or 0 if there are no values: the quantile 0.5 of 1, 2, 3 and 4 is 2.
func Quantile[T ~int64 | ~float64](sorted []T, q float64) T {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(max(int(math.Ceil(q*float64(len(sorted)))), 1), len(sorted))-1]
}
