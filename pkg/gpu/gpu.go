// Package gpu holds the value types every other package speaks in: sizes,
// shares of a GPU and the slice a function instance runs under.
package gpu

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is an amount of memory.
type Bytes int64

// Sizes that Bytes prints in.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

// ErrTooLarge is of a size that no Bytes can hold.
var ErrTooLarge = errors.New("too large")

// ParseBytes reads a size: plain bytes ("1048576") or a decimal number with a
// unit, in letters of any case ("1427MiB", "1.5GiB"). As docker reads them, units
// are powers of two however they are written: "16G", "16GB" and "16GiB" are the
// same. A part of a byte is dropped, as by FromMiB.
func ParseBytes(s string) (Bytes, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	unit, last := Bytes(1), strings.TrimRight(text, "kmgtib")
	switch strings.TrimSuffix(text[len(last):], "b") {
	case "":
	case "k", "ki":
		unit = KiB
	case "m", "mi":
		unit = MiB
	case "g", "gi":
		unit = GiB
	case "t", "ti":
		unit = GiB << 10
	default:
		last = text // no number
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(last), 64)
	if n > 0 && (errors.Is(err, strconv.ErrRange) || err == nil && !math.IsInf(n, 0) && n*float64(unit) >= math.MaxInt64) {
		return 0, fmt.Errorf("%q is %w: expected less than 8388608TiB", s, ErrTooLarge)
	}
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || n < 0 {
		return 0, fmt.Errorf("%q is not a size: expected bytes or a number with KiB, MiB or GiB, like 1427MiB", s)
	}
	b := whole(n * float64(unit))
	mantissa, _, _ := strings.Cut(last, "e")
	if b == 0 && strings.ContainsAny(mantissa, "123456789") {
		return 0, fmt.Errorf("%q is less than a byte: expected 0 or more than that", s)
	}
	return b, nil
}

// ParseMemory reads an amount of GPU memory as ParseBytes does. It fails for what is
// neither 0 nor at least 1 MiB: of a number without a unit, the unit was forgotten.
func ParseMemory(s string) (Bytes, error) {
	b, err := ParseBytes(s)
	if err == nil && b > 0 && b < MiB {
		return 0, fmt.Errorf("%q is below 1MiB: a number without a unit is bytes, expected one like 512MiB or 16GiB", s)
	}
	return b, err
}

// MiB is the size in mebibytes.
func (b Bytes) MiB() float64 { return float64(b) / float64(MiB) }

// FromMiB returns the size of so many mebibytes, which must not be negative: at least
// one byte for what is more than 0, and at most what Bytes can hold, so that no size
// becomes 0, which is no limit. A part of a byte is dropped, so that parts that sum to a
// whole do so in bytes, too: ten times 0.1 MiB fit in 1 MiB.
func FromMiB(mib float64) Bytes {
	b := mib * float64(MiB)
	switch {
	case b <= 0:
		return 0
	case b >= math.MaxInt64:
		return math.MaxInt64
	}
	return max(whole(b), 1)
}

// whole drops a part of a byte, but for what a float lacks of a whole one.
func whole(bytes float64) Bytes {
	const lacking = 1e-3
	return Bytes(math.Floor(bytes + lacking))
}

// String prints the size in the largest unit that keeps it whole.
func (b Bytes) String() string {
	switch {
	case b == 0:
		return "0"
	case b%GiB == 0:
		return fmt.Sprintf("%dGiB", b/GiB)
	case b%MiB == 0:
		return fmt.Sprintf("%dMiB", b/MiB)
	case b%KiB == 0:
		return fmt.Sprintf("%dKiB", b/KiB)
	}
	return strconv.FormatInt(int64(b), 10)
}

// UnmarshalText reads what ParseBytes reads.
func (b *Bytes) UnmarshalText(text []byte) (err error) {
	*b, err = ParseBytes(string(text))
	return err
}

// MarshalText prints what String prints.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// Slice is the part of one GPU that an instance may use: a rectangle of
// streaming multiprocessors × time, and memory (FaST-GShare, section 3.3).
type Slice struct {
	SMPct        float64 // share of the streaming multiprocessors, in percent: (0, 100]
	QuotaRequest float64 // guaranteed fraction of each window: (0, 1]
	QuotaLimit   float64 // most it may use of each window: [QuotaRequest, 1]
	Mem          Bytes   // limit on GPU memory; 0 is no limit
}

// Validate says what is wrong with the slice, if anything.
func (s Slice) Validate() error {
	switch {
	case !(s.SMPct > 0 && s.SMPct <= 100):
		return fmt.Errorf("SM share %v is out of range: expected more than 0 and at most 100 percent", s.SMPct)
	case !(s.QuotaRequest > 0 && s.QuotaRequest <= 1):
		return fmt.Errorf("quota %v is out of range: expected more than 0 and at most 1", s.QuotaRequest)
	case !(s.QuotaLimit > 0 && s.QuotaLimit <= 1):
		return fmt.Errorf("quota limit %v is out of range: expected more than 0 and at most 1", s.QuotaLimit)
	case s.QuotaLimit < s.QuotaRequest:
		return fmt.Errorf("quota limit %v is below the request %v", s.QuotaLimit, s.QuotaRequest)
	case s.Mem < 0:
		return fmt.Errorf("memory limit %d is negative", s.Mem)
	}
	return nil
}

// Turn is a part of each window that is an instance's own, as fractions of the
// window: from From, inclusive, to To.
type Turn struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

// ValidateTurns says what is wrong with an instance's turns, if anything: they
// lie in the window, in order, apart from each other.
func ValidateTurns(turns []Turn) error {
	last := 0.0
	for i, t := range turns {
		switch {
		case !(t.From >= 0 && t.To <= 1 && t.From < t.To):
			return fmt.Errorf("turn %v to %v: expected fractions of the window, the first below the second", t.From, t.To)
		case i > 0 && t.From < last:
			return fmt.Errorf("turn %v to %v begins before the one before it ends, at %v", t.From, t.To, last)
		}
		last = t.To
	}
	return nil
}

// ParseQuota reads REQUEST[:LIMIT], both fractions of a window, like 0.3 or 30%;
// LIMIT is REQUEST when it is not given.
func ParseQuota(s string) (request, limit float64, err error) {
	req, lim, both := strings.Cut(s, ":")
	if request, err = ParseFraction(req); err == nil {
		limit = request
		if both {
			limit, err = ParseFraction(lim)
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%q is not a quota: expected REQUEST or REQUEST:LIMIT, fractions like 0.3:0.8", s)
	}
	return request, limit, nil
}

// ParseFraction reads a fraction, like 0.3, or the same in percent, like 30%.
func ParseFraction(s string) (float64, error) {
	digits, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(digits, 64)
	if percent {
		v /= 100
	}
	return v, err
}

// Window is the length of a scheduling window when nothing else is asked for
// (FaST-GShare, section 3.3.2, uses windows of 40 ms to 10 s).
const Window = 100 * time.Millisecond

// Round is how long it takes at most until all that wait for a GPU have had a turn,
// when nothing else is asked for: a window has whole rounds.
const Round = 16 * time.Millisecond
