package residency

import (
	"iter"
	"math/bits"
)

// set is a set of numbers. It has a bit for each number and, in blocks, a bit for each word that
// is not 0.
type set struct{ words, blocks []uint64 }

// add adds a number to the set.
func (s *set) add(n int32) {
	w := uint32(n) / 64
	for int(w) >= len(s.words) {
		s.words = append(s.words, 0)
		if len(s.words) > 64*len(s.blocks) {
			s.blocks = append(s.blocks, 0)
		}
	}
	s.words[w] |= 1 << (uint32(n) % 64)
	s.blocks[w/64] |= 1 << (w % 64)
}

// remove removes a number that is in the set.
func (s *set) remove(n int32) {
	w := uint32(n) / 64
	if s.words[w] &^= 1 << (uint32(n) % 64); s.words[w] == 0 {
		s.blocks[w/64] &^= 1 << (w % 64)
	}
}

// next returns the index of the first word from w on that is not 0 and whose bit in the given
// blocks is 1, or -1. nil blocks match every word.
func (s *set) next(w int, blocks []uint64) int {
	for b := uint(w) / 64; b < uint(len(s.blocks)); b, w = b+1, 0 {
		word := s.blocks[b] >> (uint(w) % 64) << (uint(w) % 64)
		if blocks != nil {
			word &= blocks[b]
		}
		if word != 0 {
			return int(64*b) + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// all iterates over the numbers in the set, in ascending order.
func (s *set) all() iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for w := s.next(0, nil); w >= 0; w = s.next(w+1, nil) {
			for word := s.words[w]; word != 0; word &= word - 1 {
				if !yield(int32(64*w + bits.TrailingZeros64(word))) {
					return
				}
			}
		}
	}
}

// rows maps a function and a GPU to the idle instance of the function there that finished last.
// Since memory moves to the host least recently finished first, this instance has its memory on
// the GPU if any of them has: it is the instance to use (R9).
//
// The row of a function consists of pages of 64 GPUs. With at most 64 GPUs, the row is one page,
// with an entry for each GPU. With more, the row is a table of pages. Each page has two sets of
// bits: the GPUs where the memory of the instance is on the GPU, and those where it is on the host.
// They are in the head of the only page, or in the table. A function that never had an idle instance has no row.
type rows struct {
	gpus   int
	pages  []int32 // arena of all pages; the first word is unused, since index 0 means no page
	tables []table
}

// table is the row of a function if there are more than 64 GPUs.
type table struct {
	pages []int32 // by GPU / 64: index in rows.pages, or 0 if the function never had an idle instance there
	// warm and host have the bits of each page, in place of the heads of the pages: a search reads them in
	// sequence, and often only one of them.
	warm, host []uint64
	nonEmpty   [4][]uint64 // by kinds of start other than Cold (kinds >> 1): a bit for each page with a GPU that offers one of them
}

// rowHead is the part of a function's row that hotFields holds.
type rowHead struct {
	row        int32 // index of its page or number of its table in rows; 0 for none
	warm, host int32 // number of GPUs where the memory of the instance is on the GPU, and on the host
}

const (
	pageGPUs = 64
	pageHead = 4 // two sets of 64 bits
)

// flat reports whether each row is one page.
func (r *rows) flat() bool { return r.gpus <= pageGPUs }

// newPage adds a page and returns its index. The page is empty, or a copy of a page of at most
// its length.
func (r *rows) newPage(head, instances []int32) int32 {
	if len(r.pages) == 0 {
		r.pages = append(r.pages, 0) // so that no page has index 0
	}
	at := len(r.pages)
	r.pages = append(append(r.pages, head...), instances...)
	for len(r.pages) < at+pageHead {
		r.pages = append(r.pages, 0)
	}
	for len(r.pages) < at+pageHead+min(r.gpus, pageGPUs) {
		r.pages = append(r.pages, none)
	}
	return int32(at)
}

// widen adds a GPU to the row of each function.
func (r *rows) widen(functions []hotFields) {
	old := *r
	r.gpus++
	if r.flat() {
		r.pages = nil
	}
	for i := range functions {
		f := &functions[i]
		switch {
		case f.row == 0:
		case r.flat():
			page := old.pages[f.row:][:pageHead+old.gpus]
			f.row = r.newPage(page[:pageHead], page[pageHead:])
		case old.flat():
			page := f.row
			warm, host := r.headBits(page)
			f.row = r.newTable()
			t := &r.tables[f.row]
			t.pages[0], t.warm[0], t.host[0] = page, warm, host
			t.mark(0, warm, host)
		default:
			t := &r.tables[f.row]
			t.grow(r.gpus)
		}
	}
}

// newTable adds a row without pages and returns its number.
func (r *rows) newTable() int32 {
	if len(r.tables) == 0 {
		r.tables = append(r.tables, table{}) // so that no table has number 0
	}
	var t table
	t.grow(r.gpus)
	r.tables = append(r.tables, t)
	return int32(len(r.tables) - 1)
}

// grow makes room for that many GPUs.
func (t *table) grow(gpus int) {
	pages := (gpus + pageGPUs - 1) / pageGPUs
	t.pages = append(t.pages, make([]int32, pages-len(t.pages))...)
	t.warm = append(t.warm, make([]uint64, pages-len(t.warm))...)
	t.host = append(t.host, make([]uint64, pages-len(t.host))...)
	for i := range t.nonEmpty {
		t.nonEmpty[i] = append(t.nonEmpty[i], make([]uint64, (pages+63)/64-len(t.nonEmpty[i]))...)
	}
}

// mark updates which kinds of start a page offers.
func (t *table) mark(page int, warm, host uint64) {
	for k := range kinds(len(t.nonEmpty)) {
		word := &t.nonEmpty[k][page/64]
		if *word &^= 1 << (page % 64); (k<<1).choose(warm, host) != 0 {
			*word |= 1 << (page % 64)
		}
	}
}

// page returns the index of a page of a function's row, or 0 if there is none.
func (r *rows) page(f *hotFields, page int) int32 {
	if f.row == 0 || r.flat() {
		return f.row
	}
	return r.tables[f.row].pages[page]
}

// bits returns the GPUs of a page of a function's row where the memory of an idle instance is on
// the GPU, and those where it is on the host.
func (r *rows) bits(f *hotFields, page int) (warm, host uint64) {
	if f.row == 0 || r.flat() {
		return r.headBits(f.row)
	}
	t := &r.tables[f.row]
	return t.warm[page], t.host[page]
}

// warm returns the first result of bits.
func (r *rows) warm(f *hotFields, page int) (warm uint64) {
	if f.row == 0 || r.flat() {
		warm, _ = r.headBits(f.row)
		return warm
	}
	return r.tables[f.row].warm[page]
}

// headBits returns the bits in the head of a page.
func (r *rows) headBits(page int32) (warm, host uint64) {
	if page == 0 {
		return 0, 0
	}
	head := r.pages[page:][:pageHead]
	return uint64(uint32(head[0])) | uint64(head[1])<<32, uint64(uint32(head[2])) | uint64(head[3])<<32
}

// on returns the idle instance of a function on a GPU that finished last, or none.
func (r *rows) on(f *hotFields, gpu int32) int32 {
	page := r.page(f, int(uint32(gpu)/pageGPUs))
	if page == 0 {
		return none
	}
	return r.pages[uint32(page+pageHead)+uint32(gpu)%pageGPUs]
}

// set changes the idle instance of a function on a GPU that finished last, and whether its memory
// is on the GPU.
func (r *rows) set(f *hotFields, gpu, instance int32, resident bool) {
	n, at := int(uint32(gpu)/pageGPUs), uint32(gpu)%pageGPUs
	page := r.page(f, n)
	if page == 0 {
		page = r.newPage(nil, nil)
		if r.flat() {
			f.row = page
		} else {
			if f.row == 0 {
				f.row = r.newTable()
			}
			r.tables[f.row].pages[n] = page
		}
	}
	r.pages[uint32(page+pageHead)+at] = instance
	wasWarm, wasHost := r.bits(f, n)
	warm, host := wasWarm&^(1<<at), wasHost&^(1<<at)
	switch {
	case instance == none:
	case resident:
		warm |= 1 << at
	default:
		host |= 1 << at
	}
	f.warm += int32(bits.OnesCount64(warm) - bits.OnesCount64(wasWarm))
	f.host += int32(bits.OnesCount64(host) - bits.OnesCount64(wasHost))
	if r.flat() {
		head := r.pages[page:][:pageHead]
		head[0], head[1], head[2], head[3] = int32(warm), int32(warm>>32), int32(host), int32(host>>32)
	} else {
		t := &r.tables[f.row]
		t.warm[n], t.host[n] = warm, host
		t.mark(n, warm, host)
	}
}

// nonEmptyPages returns a bit for each page of a function's row with a GPU that offers one of the
// kinds of start, or nil if every page may have one.
func (r *rows) nonEmptyPages(f *hotFields, of kinds) []uint64 {
	if f.row == 0 || r.flat() || of&kind(Cold) != 0 {
		return nil
	}
	return r.tables[f.row].nonEmpty[of>>1]
}

// each iterates over the GPUs with an idle instance of a function that offers one of the kinds of
// start, lowest number first. It examines the first most GPUs with an idle instance of any kind.
func (r *rows) each(f *hotFields, of kinds, most int) iter.Seq[int32] {
	return func(yield func(gpu int32) bool) {
		if f.row == 0 {
			return
		}
		pages := (r.gpus + pageGPUs - 1) / pageGPUs
		nonEmpty := r.nonEmptyPages(f, kind(GPUWarm)|kind(HostWarm))
		for n := 0; n < pages && most > 0; n++ {
			if nonEmpty != nil {
				if word := nonEmpty[n/64] >> (n % 64); word != 0 {
					n += bits.TrailingZeros64(word)
				} else {
					n |= 63
					continue
				}
			}
			warm, host := r.bits(f, n)
			among := warm | host
			for ; bits.OnesCount64(among) > most; among &^= 1 << (bits.Len64(among) - 1) {
			}
			most -= bits.OnesCount64(among)
			for w := of.choose(warm, host) & among; w != 0; w &= w - 1 {
				if !yield(int32(n*pageGPUs + bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

// kinds is a set of kinds of start.
type kinds uint8

// kind returns a set with one kind.
func kind(s Start) kinds { return 1 << s }

// choose returns the GPUs of a page where a start has one of the kinds. On GPUs in neither set, a
// start is cold.
func (k kinds) choose(warm, host uint64) (gpus uint64) {
	if k&kind(GPUWarm) != 0 {
		gpus = warm
	}
	if k&kind(HostWarm) != 0 {
		gpus |= host
	}
	if k&kind(Cold) != 0 {
		gpus |= ^(warm | host)
	}
	return gpus
}

// shortest returns the kinds with the shortest duration.
func (k kinds) shortest(f *hotFields) (shortest kinds) {
	for s := range GPUWarm + 1 {
		switch {
		case k&kind(s) == 0:
		case shortest == 0 || f.duration[s] < f.duration[bits.TrailingZeros8(uint8(shortest))]:
			shortest = kind(s)
		case f.duration[s] == f.duration[bits.TrailingZeros8(uint8(shortest))]:
			shortest |= kind(s)
		}
	}
	return shortest
}
