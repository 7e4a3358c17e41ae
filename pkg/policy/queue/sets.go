package queue

import (
	"iter"
	"math/bits"
)

// sets are sets of small numbers: a row of bits each, all in one arena.
type sets struct {
	words int // of a row
	bits  []uint64
}

// grow makes that many sets of numbers below members.
func (s *sets) grow(rows, members int) {
	if words := (members + 63) / 64; words > s.words {
		wider := make([]uint64, rows*words)
		for from, to := 0, 0; from < len(s.bits); from, to = from+s.words, to+words {
			copy(wider[to:], s.bits[from:from+s.words])
		}
		s.words, s.bits = words, wider
	}
	s.bits = grown(s.bits, rows*s.words)
}

func (s *sets) word(row, member int32) *uint64 { return &s.bits[int(row)*s.words+int(member)/64] }

func (s *sets) has(row, member int32) bool {
	return *s.word(row, member)>>(member%64)&1 != 0
}

// set puts a member in, or takes it out.
func (s *sets) set(row, member int32, in bool) {
	w := s.word(row, member)
	*w &^= 1 << (member % 64)
	if in {
		*w |= 1 << (member % 64)
	}
}

// some says whether a set has any members.
func (s *sets) some(row int32) bool {
	for range s.of(row) {
		return true
	}
	return false
}

// of is the members of a set, in order.
func (s *sets) of(row int32) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for i, w := range s.bits[int(row)*s.words : int(row+1)*s.words] {
			for ; w != 0; w &= w - 1 {
				if !yield(int32(64*i + bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}
