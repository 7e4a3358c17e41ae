// Package number formats numbers for files and for users: Plain, Short, Fixed and Percent are the common forms. Vanished
// detects numbers that are too small for a float64.
package number

import (
	"math"
	"strconv"
	"strings"
)

// Plain returns all digits of a number without an exponent, so that it reads back as the same number: 0.4, 1200.
func Plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Vanished reports whether the text of a number other than 0 was read as v = 0 because the number is too small: 1e-400, or
// 0.1ns as a duration. In many settings, 0 means no limit.
func Vanished(text string, v float64) bool {
	mantissa := text
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		mantissa = text[:at]
	}
	return v == 0 && strings.ContainsAny(mantissa, "123456789")
}

// Fixed returns a number with that many decimals: Fixed(2, 1) is 2.0.
func Fixed(v float64, decimals int) string { return strconv.FormatFloat(v, 'f', decimals, 64) }

// Trimmed returns a number with at most that many decimals, without trailing zeros: Trimmed(2.04, 1) is 2.
func Trimmed(v float64, decimals int) string {
	text := Fixed(v, decimals)
	if !strings.Contains(text, ".") {
		return text
	}
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}

// Significant returns a number with at most that many significant digits: Significant(1234, 3) is 1.23e+03.
func Significant(v float64, digits int) string { return strconv.FormatFloat(v, 'g', digits, 64) }

// Short returns three significant digits, or all digits of the integer part if it has more, for users: Short(12.000000001)
// is 12, Short(0.3333) is 0.333, Short(1234.5) is 1234.
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

// Metric returns three significant digits with a prefix for thousands or millions: 0.123, 12.3, 1.23k, 4M.
func Metric(v float64) string {
	switch {
	case v >= 999.5e3:
		return Significant(v/1e6, 3) + "M"
	case v >= 999.5:
		return Significant(v/1e3, 3) + "k"
	}
	return Significant(v, 3)
}

// Percent returns a fraction as a percentage with that many decimals: Percent(0.345, 1) is 34.5%.
func Percent(fraction float64, decimals int) string { return Fixed(100*fraction, decimals) + "%" }

// Count prints a number of things: Count(1, "GPU") is 1 GPU, Count(2, "GPU") is 2 GPUs.
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// Range formats a request and its limit: "0.3:0.8", or "0.3" if the limit is not above the request.
func Range(request, limit float64) string {
	if limit > request {
		return Short(request) + ":" + Short(limit)
	}
	return Short(request)
}
