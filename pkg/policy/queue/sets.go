package queue

// sets stores sets of small numbers as rows of bits in one arena.
type sets struct {
	words int // in a row
	bits  []uint64
}

// grow makes room for that many sets of numbers below members.
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

// set adds a member to a row, or removes it.
func (s *sets) set(row, member int32, in bool) {
	w := s.word(row, member)
	*w &^= 1 << (member % 64)
	if in {
		*w |= 1 << (member % 64)
	}
}
