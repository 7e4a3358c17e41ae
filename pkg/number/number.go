// Package number prints numbers, in the files that programs read and in what
// people do, and finds those that are too small to be read.
package number

import (
	"math"
	"strconv"
	"strings"
)

// Plain prints all digits of a number and no exponent, so that reading it gives
// the same number: 0.4, 1200.
func Plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Vanished reports whether a text, a number other than 0, was read as v, which is 0,
// because the number is too small: 1e-400, or 0.1ns as a duration. In many places 0
// is no limit.
func Vanished(text string, v float64) bool {
	mantissa := text
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		mantissa = text[:at]
	}
	return v == 0 && strings.ContainsAny(mantissa, "123456789")
}

// Fixed prints that many decimals: Fixed(2, 1) is 2.0.
func Fixed(v float64, decimals int) string { return strconv.FormatFloat(v, 'f', decimals, 64) }

// Trimmed prints at most that many decimals, and none that end in zeros:
// Trimmed(2.04, 1) is 2.
func Trimmed(v float64, decimals int) string {
	text := Fixed(v, decimals)
	if !strings.Contains(text, ".") {
		return text
	}
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}

// Significant prints at most that many significant digits: Significant(1234, 3)
// is 1.23e+03.
func Significant(v float64, digits int) string { return strconv.FormatFloat(v, 'g', digits, 64) }

// Short prints three significant digits, or as many as the whole part has, for
// people to read: Short(12.000000001) is 12, Short(0.3333) 0.333, Short(1234.5) 1234.
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

// Metric prints three significant digits and the prefix of thousands or
// millions: 0.123, 12.3, 1.23k, 4M.
func Metric(v float64) string {
	switch {
	case v >= 999.5e3:
		return Significant(v/1e6, 3) + "M"
	case v >= 999.5:
		return Significant(v/1e3, 3) + "k"
	}
	return Significant(v, 3)
}

// Percent prints a fraction as a percentage with that many decimals:
// Percent(0.345, 1) is 34.5%.
func Percent(fraction float64, decimals int) string { return Fixed(100*fraction, decimals) + "%" }
