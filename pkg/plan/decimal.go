package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// Decimal is a decimal number that is not negative, exactly as written:
// Unscaled / 10^Digits, without zeros at its end.
type Decimal struct {
	Unscaled int64
	Digits   int // after the point, at most MaxDigits
}

// MaxDigits is how many digits a Decimal may have.
const MaxDigits = 18

// ParseDecimal reads a number like 12, 0.4 or 1e-3.
func ParseDecimal(text string) (Decimal, error) {
	mantissa, exponent, hasExponent := strings.Cut(strings.ReplaceAll(text, "E", "e"), "e")
	shift := 0
	if hasExponent {
		var err error
		if shift, err = strconv.Atoi(exponent); err != nil || shift < -40 || shift > 40 {
			return Decimal{}, notDecimal(text)
		}
	}
	whole, fraction, _ := strings.Cut(strings.TrimPrefix(mantissa, "+"), ".")
	digits := whole + fraction
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		if strings.HasPrefix(mantissa, "-") {
			if _, err := ParseDecimal(text[1:]); err == nil {
				return Decimal{}, fmt.Errorf("%s is negative, expected 0 or more", csvfile.Quote(text))
			}
		}
		return Decimal{}, notDecimal(text)
	}
	after := len(fraction) - shift
	for strings.HasSuffix(digits, "0") && after > 0 {
		digits, after = digits[:len(digits)-1], after-1
	}
	digits = strings.TrimLeft(digits, "0")
	if digits == "" {
		return Decimal{}, nil
	}
	if after < 0 {
		digits, after = digits+strings.Repeat("0", -after), 0
	}
	if len(digits) > MaxDigits || after > MaxDigits {
		return Decimal{}, fmt.Errorf("%s has too many digits, expected a number of at most %d", csvfile.Quote(text), MaxDigits)
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	return Decimal{Unscaled: v, Digits: after}, err
}

func notDecimal(text string) error {
	return fmt.Errorf("%s is not a number, expected one like 12.5", csvfile.Quote(text))
}

// Scaled is the number times 10^digits, which must be at least its own Digits;
// the largest 64 bits hold when it is larger.
func (d Decimal) Scaled(digits int) int64 {
	v := d.Unscaled
	for range digits - d.Digits {
		if v > math.MaxInt64/10 {
			return math.MaxInt64
		}
		v *= 10
	}
	return v
}

// AppendDecimal appends v / 10^digits, without zeros at its end.
func AppendDecimal(b []byte, v int64, digits int) []byte {
	for digits > 0 && v%10 == 0 {
		v, digits = v/10, digits-1
	}
	text := strconv.FormatInt(v, 10)
	if digits == 0 {
		return append(b, text...)
	}
	if short := digits + 1 - len(text); short > 0 {
		text = strings.Repeat("0", short) + text
	}
	point := len(text) - digits
	b = append(append(b, text[:point]...), '.')
	return append(b, text[point:]...)
}

func (d Decimal) String() string { return string(AppendDecimal(nil, d.Unscaled, d.Digits)) }
