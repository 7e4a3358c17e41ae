// Package gpu has the value types that all other packages use: sizes, shares of a GPU, and the slice
// under which an instance runs.
package gpu

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is an amount of memory, in bytes.
type Bytes int64

// The units of Bytes.String.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

// ErrTooLarge is the error for a size that does not fit in Bytes.
var ErrTooLarge = errors.New("too large")

// ParseBytes parses a size: plain bytes ("1048576"), or a decimal number with a unit in upper or lower
// case ("1427MiB", "1.5GiB"). As in docker, units are always powers of two: "16G", "16GB" and "16GiB"
// are the same. It drops fractions of a byte, like FromMiB.
func ParseBytes(s string) (Bytes, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	unit, digits := Bytes(1), strings.TrimRight(text, "kmgtib")
	switch strings.TrimSuffix(text[len(digits):], "b") {
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
		digits = text // an unknown unit: ParseFloat fails below
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if n > 0 && (errors.Is(err, strconv.ErrRange) || err == nil && !math.IsInf(n, 0) && n*float64(unit) >= math.MaxInt64) {
		return 0, fmt.Errorf("%q is %w: expected less than 8388608TiB", s, ErrTooLarge)
	}
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || n < 0 {
		return 0, fmt.Errorf("%q is not a size: expected bytes or a number with KiB, MiB or GiB, like 1427MiB", s)
	}
	b := wholeBytes(n * float64(unit))
	mantissa, _, _ := strings.Cut(digits, "e")
	if b == 0 && strings.ContainsAny(mantissa, "123456789") {
		return 0, fmt.Errorf("%q is less than a byte: expected 0, or 1 byte or more", s)
	}
	return b, nil
}

// ParseMemory parses an amount of GPU memory like ParseBytes. It fails for an amount between 0 and
// 1 MiB, because in that case the user has probably forgotten the unit.
func ParseMemory(s string) (Bytes, error) {
	b, err := ParseBytes(s)
	if err == nil && b > 0 && b < MiB {
		return 0, fmt.Errorf("%q is below 1MiB: a number without a unit is bytes, expected a size with a unit, like 512MiB or 16GiB", s)
	}
	return b, err
}

// MiB returns the size in mebibytes.
func (b Bytes) MiB() float64 { return float64(b) / float64(MiB) }

// FromMiB returns the size of mib mebibytes. A positive amount becomes at least one byte, because 0 means
// no limit; the largest result is math.MaxInt64. FromMiB drops fractions of a byte, so that the bytes of
// several amounts fit wherever the amounts fit: ten times 0.1 MiB fit in 1 MiB.
func FromMiB(mib float64) Bytes {
	b := mib * float64(MiB)
	switch {
	case b <= 0:
		return 0
	case b >= math.MaxInt64:
		return math.MaxInt64
	}
	return max(wholeBytes(b), 1)
}

// wholeBytes drops a fraction of a byte. A number that is below a whole number by no more than the
// rounding errors of floats counts as that whole number.
func wholeBytes(bytes float64) Bytes {
	const roundingError = 1e-3
	return Bytes(math.Floor(bytes + roundingError))
}

// String returns the size in the largest unit in which it is a whole number.
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

// UnmarshalText parses a size like ParseBytes.
func (b *Bytes) UnmarshalText(text []byte) (err error) {
	*b, err = ParseBytes(string(text))
	return err
}

// MarshalText returns the size like String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// Slice is the part of one GPU that an instance may use: a rectangle of streaming multiprocessors ×
// time, and memory (FaST-GShare, section 3.3). Both sides of the rectangle have a request and a limit
// (Dilu, section 3.2).
type Slice struct {
	SMPct        float64 // share of the streaming multiprocessors, in percent: (0, 100]
	SMLimitPct   float64 `json:",omitempty"` // largest share, in percent: [SMPct, 100]; 0: SMPct
	QuotaRequest float64 // guaranteed fraction of each window: (0, 1]
	QuotaLimit   float64 // largest fraction of each window that the instance may use: [QuotaRequest, 1]
	Mem          Bytes   // limit on GPU memory; 0: no limit
}

// Validate returns an error if a value is out of range.
func (s Slice) Validate() error {
	switch {
	case !(s.SMPct > 0 && s.SMPct <= 100):
		return fmt.Errorf("SM share %v is out of range: expected more than 0 and at most 100 percent", s.SMPct)
	case !(s.SMLimitPct >= 0 && s.SMLimitPct <= 100):
		return fmt.Errorf("SM limit %v is out of range: expected more than 0 and at most 100 percent", s.SMLimitPct)
	case s.SMLimitPct != 0 && s.SMLimitPct < s.SMPct:
		return fmt.Errorf("SM limit %v is below the request %v", s.SMLimitPct, s.SMPct)
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

// LargestSMPct returns the SM share with which the processes of the instance start. MPS cannot change
// the share of a running process, so it is the limit.
func (s Slice) LargestSMPct() float64 { return max(s.SMPct, s.SMLimitPct) }

// Turn is the part of each window that belongs to one instance, as fractions of the window: from From
// (inclusive) to To.
type Turn struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

// ValidateTurns returns an error unless all turns of an instance lie in the window, are in order and do not
// overlap.
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

// ParseQuota parses REQUEST[:LIMIT], both fractions of a window, such as 0.3 or 30%. LIMIT defaults to
// REQUEST.
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

// ParseFraction parses a fraction, such as 0.3, or a percentage, such as 30%. It does not check the range.
func ParseFraction(s string) (float64, error) {
	digits, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(digits, 64)
	if percent {
		v /= 100
	}
	return v, err
}

// Window is the default length of a scheduling window. FaST-GShare prints no length, except for the 1 s of
// an example (the FaSTPod).
const Window = 100 * time.Millisecond

// Round is the default limit on the length of a round. A window is divided into rounds of equal length, and
// each client that waits for the GPU gets a turn in every round.
const Round = 16 * time.Millisecond

// Oversubscription is the rule by which the preload library moves the GPU memory of a program to the
// host: the value of GFAAS_OVERSUBSCRIBE.
type Oversubscription string

const (
	SwapNever   Oversubscription = ""        // memory stays on the GPU
	SwapIdle    Oversubscription = "1"       // when the program has been idle for about half a second
	SwapOrdered Oversubscription = "ordered" // when the token daemon orders it
)
