package csvfile

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/gfaas/gfaas/pkg/number"
)

// Largest is the largest number in a file: far above any rate, latency or size, and small enough that products of
// three are finite.
const Largest = 1e12

// Smallest is the smallest number that counts as positive.
const Smallest = 1e-9

// Number parses a non-negative decimal number.
func Number(cell string) (float64, error) {
	v, err := parse(cell)
	if err == nil && v < 0 {
		err = fmt.Errorf("%s is negative, expected 0 or more", Quote(cell))
	}
	return v, err
}

// Positive parses a decimal number above 0.
func Positive(cell string) (float64, error) {
	v, err := parse(cell)
	if err == nil && v < Smallest {
		err = fmt.Errorf("%s is out of range, expected more than 0 (at least %s)", Quote(cell), Format(Smallest))
	}
	return v, err
}

// Percent parses a percentage from 0.0001 to 100, so that shares are exact in billionths.
func Percent(cell string) (float64, error) { return within(cell, 1e-4, 100) }

// Fraction parses a fraction from 0.000001 to 1.
func Fraction(cell string) (float64, error) { return within(cell, 1e-6, 1) }

func within(cell string, least, most float64) (float64, error) {
	v, err := parse(cell)
	if err == nil && (v < least || v > most) {
		err = fmt.Errorf("%s is out of range, expected more than 0 (at least %s) and at most %s",
			Quote(cell), Format(least), Format(most))
	}
	return v, err
}

// Count parses an integer of at least least.
func Count(cell string, least int64) (int64, error) {
	v, err := strconv.ParseInt(cell, 10, 64)
	if errors.Is(err, strconv.ErrRange) || err == nil && (v < least || v > Largest) {
		return 0, fmt.Errorf("%s is out of range, expected a whole number from %d", Quote(cell), least)
	}
	if err != nil {
		return 0, fmt.Errorf("%s is not a whole number, expected one from %d", Quote(cell), least)
	}
	return v, nil
}

// Whole returns a parser of integers from least to most.
func Whole(least, most int) func(cell string) (int, error) {
	return func(cell string) (int, error) {
		v, err := Count(cell, int64(least))
		if err == nil && v > int64(most) {
			err = fmt.Errorf("%s is out of range, expected a whole number from %d to %d", Quote(cell), least, most)
		}
		return int(v), err
	}
}

// AtLeast returns a parser of integers of at least least.
func AtLeast[N int | int64](least N) func(cell string) (N, error) {
	return func(cell string) (N, error) {
		v, err := Count(cell, int64(least))
		return N(v), err
	}
}

// Name parses a name of at most 253 printable bytes.
func Name(cell string) (string, error) {
	if len(cell) > 253 {
		return "", fmt.Errorf("%s has %d bytes, expected a name of at most 253", Quote(cell), len(cell))
	}
	if strings.ContainsFunc(cell, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", fmt.Errorf("%s has characters that do not print, expected a name", Quote(cell))
	}
	return cell, nil
}

// parse parses plain decimals only; strconv would also accept infinities, hexadecimal numbers and underscores.
func parse(cell string) (float64, error) {
	v, err := strconv.ParseFloat(cell, 64)
	plain := strings.Trim(cell, "0123456789+-.eE") == ""
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && plain && math.Abs(v) > Largest:
		return 0, fmt.Errorf("%s is out of range, expected a number up to %s", Quote(cell), Format(Largest))
	case err == nil && plain && number.Vanished(cell, v):
		return 0, fmt.Errorf("%s is out of range, expected 0 or at least %s", Quote(cell), Format(Smallest))
	case (err != nil || !plain) && decimalComma(cell):
		return 0, fmt.Errorf("%s is not a number, expected one like 12.5: a point before the decimals, not a comma", Quote(cell))
	case err != nil, !plain:
		return 0, fmt.Errorf("%s is not a number, expected one like 12.5", Quote(cell))
	}
	return v, nil
}

// decimalComma reports whether a cell would be a number with a point in place of its comma.
func decimalComma(cell string) bool {
	_, err := strconv.ParseFloat(strings.Replace(cell, ",", ".", 1), 64)
	return err == nil && strings.Contains(cell, ",")
}

// Format returns a number in a form that reads back as the same number.
func Format(v float64) string {
	if v != 0 && (math.Abs(v) < 1e-6 || math.Abs(v) >= 1e15) {
		return number.Significant(v, -1)
	}
	return number.Plain(v)
}

// Quote quotes a text from a file, shortened if it is long.
func Quote(s string) string {
	const most = 60
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "…"
	}
	return strconv.Quote(s)
}
