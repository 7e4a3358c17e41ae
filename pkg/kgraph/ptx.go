package kgraph

import (
	"strconv"
	"strings"
)

// Signature describes the declarations in PTX text: the target architecture and the kernels'
// parameters.
type Signature struct {
	Target  int  // 80 for .target sm_80; 0 if there is none
	Exact   bool // the code runs only on that architecture (.target sm_90a)
	Entries map[string]*Entry
}

// Entry describes a kernel.
type Entry struct {
	Params          []Param
	RequiredThreads [3]int // .reqntid: required threads per block; 0: any
	MaxThreads      int    // .maxntid: limit on the threads per block; 0: none
}

// Param describes a parameter of a kernel.
type Param struct {
	Size    int  // bytes
	Pointer bool // may be an address: declared with .ptr, or an untyped or unsigned integer of 64 bits
}

// ReadPTX reads the declarations of PTX text. It does not find all errors that a compiler would find.
// It returns false if the text has no .version, so that it cannot be PTX.
func ReadPTX(text string) (s *Signature, isPTX bool) {
	p := &ptx{rest: text}
	s = &Signature{Entries: map[string]*Entry{}}
	for p.next() {
		switch p.word {
		case ".version":
			isPTX = true
		case ".target":
			p.next()
			if sm, ok := strings.CutPrefix(p.word, "sm_"); ok && s.Target == 0 {
				digits := strings.TrimRight(sm, "abcdefghijklmnopqrstuvwxyz")
				s.Target, _ = strconv.Atoi(digits)
				s.Exact = digits != sm
			}
		case ".entry":
			p.entry(s)
		case "{":
			p.block()
		}
	}
	return s, isPTX
}

// ptx is a tokenizer for PTX.
type ptx struct {
	rest, word string
}

// next reads the next word (with its dots), string or single character, and skips comments. It
// returns false at the end of the text.
func (p *ptx) next() bool {
	for {
		p.rest = strings.TrimLeft(p.rest, " \t\r\n\f\v")
		switch {
		case strings.HasPrefix(p.rest, "//"):
			_, p.rest, _ = strings.Cut(p.rest, "\n")
			continue
		case strings.HasPrefix(p.rest, "/*"):
			_, p.rest, _ = strings.Cut(p.rest, "*/")
			continue
		case p.rest == "":
			p.word = ""
			return false
		}
		break
	}
	n := 0
	for n < len(p.rest) && wordChar(p.rest[n]) {
		n++
	}
	switch {
	case n > 0:
	case p.rest[0] == '"':
		if n = strings.IndexByte(p.rest[1:], '"') + 2; n < 2 {
			n = len(p.rest)
		}
	default:
		n = 1
	}
	p.word, p.rest = p.rest[:n], p.rest[n:]
	return true
}

func wordChar(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c == '.' || c == '%'
}

// block skips to the end of a block whose opening brace was read.
func (p *ptx) block() {
	for depth := 1; depth > 0 && p.next(); {
		switch p.word {
		case "{":
			depth++
		case "}":
			depth--
		}
	}
}

// entry reads a kernel from its name to the start of its body. If a kernel is declared before its
// definition, the later declarations, which are equal, replace the earlier ones.
func (p *ptx) entry(s *Signature) {
	if !p.next() {
		return
	}
	e := &Entry{}
	s.Entries[p.word] = e
	if !p.next() {
		return
	}
	if p.word == "(" {
		for p.next() && p.word != ")" {
			if p.word == ".param" {
				e.Params = append(e.Params, p.param())
				if p.word == ")" {
					break
				}
			}
		}
		p.next()
	}
	for p.word != "{" && p.word != ";" {
		switch p.word {
		case ".reqntid":
			e.RequiredThreads = p.threads()
			continue
		case ".maxntid":
			n := p.threads()
			e.MaxThreads = n[0] * max(n[1], 1) * max(n[2], 1)
			continue
		}
		if !p.next() {
			return
		}
	}
	if p.word == "{" {
		p.block()
	}
}

// threads reads up to three numbers and the word after them.
func (p *ptx) threads() (dims [3]int) {
	for i := 0; p.next(); {
		n, err := strconv.Atoi(p.word)
		switch {
		case err == nil && i < 3 && n >= 0 && n <= 1<<20:
			dims[i] = n
			i++
		case p.word != ",":
			return dims
		}
	}
	return dims
}

var typeSizes = map[string]int{
	".b8": 1, ".u8": 1, ".s8": 1, ".b16": 2, ".u16": 2, ".s16": 2, ".f16": 2, ".bf16": 2,
	".b32": 4, ".u32": 4, ".s32": 4, ".f32": 4, ".f16x2": 4, ".b64": 8, ".u64": 8, ".s64": 8, ".f64": 8, ".b128": 16,
}

// param reads a parameter, for example ".align 8 .b8 name[16]", and the word after it.
func (p *ptx) param() (prm Param) {
	count := 1
	for p.next() && p.word != "," && p.word != ")" {
		size := typeSizes[p.word]
		switch {
		case size > 0:
			prm.Size = size
			prm.Pointer = p.word == ".u64" || p.word == ".b64"
		case p.word == ".ptr":
			prm.Pointer = true
		case p.word == "[":
			p.next()
			n, err := strconv.Atoi(p.word)
			if err != nil || n < 1 || n > 1<<16 {
				n = 1 << 16 // more than a kernel's parameters can take
			}
			count = min(count*n, 1<<16)
			prm.Pointer = false
		}
	}
	prm.Size *= count
	return prm
}
