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

// Largest is the largest number a file may hold: far above any rate, latency
// or size, and small enough that products of three stay finite.
const Largest = 1e12

// Smallest is the least number that counts as more than 0.
const Smallest = 1e-9

// Number reads a decimal number that is not negative.
func Number(cell string) (float64, error) {
	v, err := parse(cell)
	if err == nil && v < 0 {
		err = fmt.Errorf("%s is negative, expected 0 or more", Quote(cell))
	}
	return v, err
}

// Positive reads a decimal number above 0.
func Positive(cell string) (float64, error) {
	v, err := parse(cell)
	if err == nil && v < Smallest {
		err = fmt.Errorf("%s is out of range, expected more than 0 (at least %s)", Quote(cell), Format(Smallest))
	}
	return v, err
}

// Percent reads a share above 0 and at most 100. The least is 0.0001, so that
// shares are exact in whole billionths.
func Percent(cell string) (float64, error) { return within(cell, 1e-4, 100) }

// Fraction reads a fraction above 0 and at most 1. The least is 0.000001.
func Fraction(cell string) (float64, error) { return within(cell, 1e-6, 1) }

func within(cell string, least, most float64) (float64, error) {
	v, err := parse(cell)
	if err == nil && (v < least || v > most) {
		err = fmt.Errorf("%s is out of range, expected more than 0 (at least %s) and at most %s",
			Quote(cell), Format(least), Format(most))
	}
	return v, err
}

// Count reads a whole number of at least least.
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

// Name reads a name: at most 253 bytes and nothing that does not print.
func Name(cell string) (string, error) {
	if len(cell) > 253 {
		return "", fmt.Errorf("%s has %d bytes, expected a name of at most 253", Quote(cell), len(cell))
	}
	if strings.ContainsFunc(cell, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", fmt.Errorf("%s has characters that do not print, expected a name", Quote(cell))
	}
	return cell, nil
}

// parse accepts plain decimals only: strconv would also take infinities, hex
// and underscores.
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

// decimalComma says that a cell would be a number if its comma were a point.
func decimalComma(cell string) bool {
	_, err := strconv.ParseFloat(strings.Replace(cell, ",", ".", 1), 64)
	return err == nil && strings.Contains(cell, ",")
}

// Format prints a number so that reading it gives the same number.
func Format(v float64) string {
	if v != 0 && (math.Abs(v) < 1e-6 || math.Abs(v) >= 1e15) {
		return number.Significant(v, -1)
	}
	return number.Plain(v)
}

// Quote quotes what a file said, shortened when it is long.
func Quote(s string) string {
	const most = 60
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "…"
	}
	return strconv.Quote(s)
}
