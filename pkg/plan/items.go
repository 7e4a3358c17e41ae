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

// Item is a rectangle to be packed: Quota across, SMPct up, in the units of
// the bin.
type Item struct {
	ID           string
	Quota, SMPct Decimal
	MemMiB       float64
	Count        int // how many of it
	Line         int
}

// maxItems is the most items that a file may stand for, copies counted.
const maxItems = 5_000_000

// ReadItems reads items (CSV: id, quota, sm_pct, optionally mem_mib, count);
// name is what messages call the file.
func ReadItems(r io.Reader, name string) ([]Item, error) {
	rows, err := csvfile.ReadWritten(r, name, itemColumns(), func() Item { return Item{Count: 1} })
	if err != nil {
		return nil, err
	}
	if err := csvfile.Unique(rows, name, "id", func(i Item) string { return i.ID }); err != nil {
		return nil, err
	}
	items := make([]Item, len(rows))
	total := 0
	for i, row := range rows {
		items[i] = row.Value
		items[i].Line = row.Line
		if total += row.Value.Count; total > maxItems {
			return nil, &textfile.Fault{File: name, Line: row.Line, Where: "count",
				What: fmt.Sprintf("up to here the file stands for %d items, expected at most %d", total, maxItems)}
		}
	}
	return items, copiesUnique(items, name)
}

func itemColumns() []csvfile.Column[Item] {
	side := func(of func(*Item) *Decimal) func(*Item, string) error {
		return func(i *Item, cell string) error {
			v, err := parseDecimal(cell)
			if err == nil && v.Unscaled == 0 {
				err = fmt.Errorf("%s is out of range, expected more than 0", csvfile.Quote(cell))
			}
			*of(i) = v
			return err
		}
	}
	return []csvfile.Column[Item]{
		{Name: "id", Required: true, Set: func(i *Item, cell string) (err error) {
			i.ID, err = csvfile.Name(cell)
			return err
		}},
		{Name: "quota", Required: true, Set: side(func(i *Item) *Decimal { return &i.Quota })},
		{Name: "sm_pct", Required: true, Set: side(func(i *Item) *Decimal { return &i.SMPct })},
		{Name: "mem_mib", Set: func(i *Item, cell string) (err error) {
			i.MemMiB, err = csvfile.Number(cell)
			return err
		}},
		{Name: "count", Set: func(i *Item, cell string) error {
			n, err := csvfile.Count(cell, 1)
			if err == nil && n > maxItems {
				err = fmt.Errorf("%s is out of range, expected a whole number from 1 to %d", csvfile.Quote(cell), maxItems)
			}
			i.Count = int(n)
			return err
		}},
	}
}

// CopyID is the id of the n-th copy of an item, from 1: that of an item alone
// is its own.
func (i Item) CopyID(n int) string {
	if i.Count == 1 {
		return i.ID
	}
	return i.ID + "#" + strconv.Itoa(n)
}

// copiesUnique reports an item whose id a copy of another takes.
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
				What: fmt.Sprintf("%s is a copy of %s on line %d, expected each only once", csvfile.Quote(i.ID), csvfile.Quote(c.ID), c.Line)}
		}
	}
	return nil
}

// ParseBin reads the size of a bin as given on a command line: QUOTAxSM.
func ParseBin(text string) (quota, sm Decimal, err error) {
	left, right, ok := strings.Cut(text, "x")
	if ok {
		quota, err = parseDecimal(strings.TrimSpace(left))
		if err == nil {
			sm, err = parseDecimal(strings.TrimSpace(right))
		}
	}
	if !ok || err == nil && (quota.Unscaled == 0 || sm.Unscaled == 0) {
		err = errors.New("expected QUOTAxSM, both more than 0, like 1x100")
	}
	return quota, sm, err
}

// Decimal is a decimal number that is not negative, exactly as written:
// Unscaled / 10^Digits, without zeros at its end.
type Decimal struct {
	Unscaled int64
	Digits   int // after the point, at most maxDigits
}

// maxDigits is how many digits a Decimal may have.
const maxDigits = 18

// parseDecimal reads a number that is to be above 0, like 12, 0.4 or 1e-3.
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
