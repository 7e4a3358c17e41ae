package plan

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Item is a rectangle to be packed: Quota wide and SMPct high, in the units of the bin.
type Item struct {
	ID           string
	Quota, SMPct Decimal
	MemMiB       float64
	Count        int // how many of it
	Line         int
}

// maxItems is the largest number of items in a file, including copies.
const maxItems = 5_000_000

// ReadItems reads items (CSV: id, quota, sm_pct, optionally mem_mib, count). name is the file's name in error
// messages.
func ReadItems(r io.Reader, name string) ([]Item, error) {
	items, err := csvfile.ReadWritten(r, name, []csvfile.Column[Item]{
		csvfile.Required("id", csvfile.Name, func(i *Item) *string { return &i.ID }),
		csvfile.Required("quota", parseSide, func(i *Item) *Decimal { return &i.Quota }),
		csvfile.Required("sm_pct", parseSide, func(i *Item) *Decimal { return &i.SMPct }),
		csvfile.Field("mem_mib", csvfile.Number, func(i *Item) *float64 { return &i.MemMiB }),
		csvfile.Field("count", csvfile.Whole(1, maxItems), func(i *Item) *int { return &i.Count }),
	}, func(line int) Item { return Item{Count: 1, Line: line} })
	if err != nil {
		return nil, err
	}
	if err := csvfile.Unique(items, name, "id", func(i Item) (string, int) { return i.ID, i.Line }); err != nil {
		return nil, err
	}
	total := 0
	for _, i := range items {
		if total += i.Count; total > maxItems {
			return nil, &textfile.Fault{File: name, Line: i.Line, Where: "count",
				What: fmt.Sprintf("%d items up to this line, expected at most %d", total, maxItems)}
		}
	}
	return items, copiesUnique(items, name)
}

func parseSide(cell string) (Decimal, error) {
	v, err := parseDecimal(cell)
	if err == nil && v.Unscaled == 0 {
		err = fmt.Errorf("%s is out of range, expected more than 0", csvfile.Quote(cell))
	}
	return v, err
}

// CopyID returns the ID of the nth copy of an item, from 1. An item with a count of 1 keeps its own ID.
func (i Item) CopyID(n int) string {
	if i.Count == 1 {
		return i.ID
	}
	return i.ID + "#" + strconv.Itoa(n)
}

// copiesUnique returns an error if the ID of an item equals that of a copy of another item.
func copiesUnique(items []Item, name string) error {
	var counted map[string]Item
	for _, i := range items {
		at := strings.LastIndexByte(i.ID, '#')
		if at < 0 {
			continue
		}
		if counted == nil {
			counted = map[string]Item{}
			for _, c := range items {
				if c.Count > 1 {
					counted[c.ID] = c
				}
			}
		}
		n, err := strconv.Atoi(i.ID[at+1:])
		c, ok := counted[i.ID[:at]]
		if err == nil && ok && n >= 1 && n <= c.Count && c.CopyID(n) == i.ID {
			return &textfile.Fault{File: name, Line: i.Line, Where: "id",
				What: fmt.Sprintf("%s is also the ID of a copy of %s on line %d, expected distinct IDs", csvfile.Quote(i.ID), csvfile.Quote(c.ID), c.Line)}
		}
	}
	return nil
}

// ParseBin parses the size of a bin from a command line: QUOTAxSM.
func ParseBin(text string) (quota, sm Decimal, err error) {
	w, h, ok := strings.Cut(text, "x")
	if ok {
		quota, err = parseDecimal(strings.TrimSpace(w))
		if err == nil {
			sm, err = parseDecimal(strings.TrimSpace(h))
		}
	}
	if !ok || err == nil && (quota.Unscaled == 0 || sm.Unscaled == 0) {
		err = errors.New("expected QUOTAxSM with two numbers above 0, like 1x100")
	}
	return quota, sm, err
}

// Decimal is a non-negative decimal number, exactly as written: Unscaled / 10^Digits, without trailing
// zeros.
type Decimal struct {
	Unscaled int64
	Digits   int // after the point, at most maxDigits
}

// maxDigits is the largest number of digits of a Decimal.
const maxDigits = 18

// parseDecimal parses a number above 0, such as 12, 0.4 or 1e-3.
func parseDecimal(text string) (Decimal, error) {
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
			if _, err := parseDecimal(text[1:]); err == nil {
				return Decimal{}, fmt.Errorf("%s is negative, expected more than 0", csvfile.Quote(text))
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
	if len(digits) > maxDigits || after > maxDigits {
		return Decimal{}, fmt.Errorf("%s has too many digits, expected a number of at most %d", csvfile.Quote(text), maxDigits)
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	return Decimal{Unscaled: v, Digits: after}, err
}

func notDecimal(text string) error {
	return fmt.Errorf("%s is not a number, expected one like 12.5", csvfile.Quote(text))
}

// Scaled returns the number times 10^digits; digits must be at least d.Digits. If the result does not fit,
// it returns the largest int64.
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

// AppendDecimal appends v / 10^digits without trailing zeros.
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

// Float returns the value.
func (d Decimal) Float() float64 { return float64(d.Unscaled) / math.Pow10(d.Digits) }

func (d Decimal) String() string { return string(AppendDecimal(nil, d.Unscaled, d.Digits)) }
