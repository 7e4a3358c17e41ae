package kgraph

import (
	"strconv"
	"strings"
)

// Signature is what PTX text says of itself: for which architecture it is and
// what its kernels take. What a compiler would find wrong is not looked for.
type Signature struct {
	Target  int  // of .target sm_80: 80; 0 when there is none
	Exact   bool // .target sm_90a: for that architecture alone
	Entries map[string]*Entry
}

// Entry is a kernel.
type Entry struct {
	Params   []Param
	Required [3]int // .reqntid: threads of a block, 0 where it is free
	Most     int    // .maxntid: most threads of a block; 0 is no limit
}

// Param is a parameter of a kernel.
type Param struct {
	Size    int  // bytes
	Pointer bool // .ptr, or 64 bits without a sign or a fraction
}

// ReadPTX reads the declarations of PTX text. It is not text of that kind where
// .version is missing.
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

// ptx is PTX text word by word.
type ptx struct {
	rest, word string
}

// next reads a word with its dots, a string, or one other character, and passes
// comments; false at the end.
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

// block passes what is between braces, the first of which was read.
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

// entry reads a kernel from its name to its body. Where it is declared first and
// defined later the declarations are the same.
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
			e.Required = p.threads()
			continue
		case ".maxntid":
			n := p.threads()
			e.Most = n[0] * max(n[1], 1) * max(n[2], 1)
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
func (p *ptx) threads() (out [3]int) {
	for i := 0; p.next(); {
		n, err := strconv.Atoi(p.word)
		switch {
		case err == nil && i < 3 && n >= 0 && n <= 1<<20:
			out[i] = n
			i++
		case p.word != ",":
			return out
		}
	}
	return out
}

var typeSizes = map[string]int{
	".b8": 1, ".u8": 1, ".s8": 1, ".b16": 2, ".u16": 2, ".s16": 2, ".f16": 2, ".bf16": 2,
	".b32": 4, ".u32": 4, ".s32": 4, ".f32": 4, ".f16x2": 4, ".b64": 8, ".u64": 8, ".s64": 8, ".f64": 8, ".b128": 16,
}

// param reads ".align 8 .b8 name[16]" and the word after it.
func (p *ptx) param() (out Param) {
	count := 1
	for p.next() && p.word != "," && p.word != ")" {
		size := typeSizes[p.word]
		switch {
		case size > 0:
			out.Size = size
			out.Pointer = p.word == ".u64" || p.word == ".b64"
		case p.word == ".ptr":
			out.Pointer = true
		case p.word == "[":
			p.next()
			n, err := strconv.Atoi(p.word)
			if err != nil || n < 1 || n > 1<<16 {
				n = 1 << 16 // more than a kernel can take
			}
			count = min(count*n, 1<<16)
			out.Pointer = false
		}
	}
	out.Size *= count
	return out
}
