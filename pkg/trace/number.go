package trace

import (
	"math"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// nanoDigits is how many decimals of a millisecond a Duration holds; further
// ones are rounded.
const nanoDigits = 6

// millis reads milliseconds, a decimal that is not negative.
func millis(cell string) (time.Duration, error) {
	if d, ok := plainMillis([]byte(cell)); ok {
		return d, nil
	}
	v, err := csvfile.Number(cell)
	return time.Duration(math.Round(v * 1e6)), err
}

// plainMillis reads the usual form, digits with or without a point; ok is
// false for any other, which csvfile.Number knows or refuses.
func plainMillis(cell []byte) (d time.Duration, ok bool) {
	i, whole := 0, int64(0)
	for ; i < len(cell) && cell[i]-'0' <= 9; i++ {
		whole = whole*10 + int64(cell[i]-'0')
	}
	if i == 0 || i > 12 {
		return 0, false
	}
	if i == len(cell) {
		return time.Duration(whole * 1e6), true
	}
	if cell[i] != '.' {
		return 0, false
	}
	frac, digits, up := int64(0), 0, int64(0)
	for i++; i < len(cell) && cell[i]-'0' <= 9; i++ {
		switch digit := int64(cell[i] - '0'); {
		case digits < nanoDigits:
			frac = frac*10 + digit
		case digits == nanoDigits && digit >= 5:
			up = 1
		}
		digits++
	}
	if i != len(cell) || digits == 0 {
		return 0, false
	}
	for ; digits < nanoDigits; digits++ {
		frac *= 10
	}
	return time.Duration(whole*1e6 + frac + up), true
}

// Millis prints a time in milliseconds so that reading it gives the same.
func Millis(d time.Duration) string { return string(appendMillis(nil, d)) }

func appendMillis(to []byte, d time.Duration) []byte {
	if d < 0 {
		to, d = append(to, '-'), -d
	}
	to = strconv.AppendInt(to, int64(d)/1e6, 10)
	frac := int64(d) % 1e6
	if frac == 0 {
		return to
	}
	to = append(to, '.')
	for unit := int64(1e5); frac > 0; unit /= 10 {
		to = append(to, byte('0'+frac/unit))
		frac %= unit
	}
	return to
}
