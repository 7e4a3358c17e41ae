package kgraph

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Parse reads a request. Without problems its form is right: keys, kinds of
// values, limits, and that every name used exists.
func Parse(data []byte) (*Request, []*Problem) {
	d := &decoder{}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	switch {
	case len(data) > MaxRequest:
		d.problems.add(TooLarge, "", "%d bytes, expected at most %d", len(data), MaxRequest)
		return nil, d.problems
	case !utf8.Valid(data):
		d.problems.add(BadRequest, "", "not a text, expected JSON in UTF-8")
		return nil, d.problems
	case len(bytes.TrimSpace(data)) == 0:
		d.problems.add(BadRequest, "", "it is empty, expected a JSON object")
		return nil, d.problems
	}
	d.dec = json.NewDecoder(bytes.NewReader(data))
	d.dec.UseNumber()
	r := d.request()
	if !d.broken {
		if _, err := d.dec.Token(); !errors.Is(err, io.EOF) {
			d.fail("there is more after the request, expected one JSON object")
			d.notJSON()
		}
	}
	if len(d.problems) == 0 {
		return r, nil
	}
	var syntax *json.SyntaxError
	if d.syntax != nil && errors.As(json.Unmarshal(data, new(json.RawMessage)), &syntax) {
		d.syntax.offset = syntax.Offset
	}
	return nil, d.problems
}

// decoder reads a request token by token. It goes on after a problem unless the
// text is no JSON.
type decoder struct {
	dec      *json.Decoder
	path     []byte // where it is, as a JSON pointer
	depth    int
	broken   bool
	problems problems
	syntax   *Problem // that the text is no JSON
	modules  map[string]int
	buffers  map[string]int
	uses     []use
}

// use is a name that a kernel uses and that may come later in the text: of its
// module or, if arg is not negative, of an argument's buffer.
type use struct {
	kernel, arg int
	name        string
}

func (d *decoder) fail(format string, args ...any) {
	d.problems.add(BadRequest, string(d.path), format, args...)
}

func (d *decoder) stop(format string, args ...any) {
	if !d.broken {
		d.fail(format, args...)
	}
	d.broken = true
}

// notJSON says that the problem told last is that the text is no JSON.
func (d *decoder) notJSON() { d.syntax = d.problems[len(d.problems)-1] }

// token is the next one; nil too when the text is broken.
func (d *decoder) token() json.Token {
	if d.broken {
		return nil
	}
	tok, err := d.dec.Token()
	if err != nil {
		text := err.Error()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			text = "it ends in the middle"
		}
		d.stop("%s, expected JSON", text)
		d.notJSON()
		return nil
	}
	switch tok {
	case json.Delim('{'), json.Delim('['):
		if d.depth++; d.depth > MaxNesting {
			d.stop("nested too deeply, expected at most %d levels", MaxNesting)
			return nil
		}
	case json.Delim('}'), json.Delim(']'):
		d.depth--
	}
	return tok
}

func (d *decoder) more() bool { return !d.broken && d.dec.More() }

// skip reads to the end of a value whose first token that was.
func (d *decoder) skip(tok json.Token) {
	if tok != json.Delim('{') && tok != json.Delim('[') {
		return
	}
	for end := d.depth - 1; !d.broken && d.depth > end; {
		d.token()
	}
}

// wrong says that a value is of another kind than it should be, and passes it.
func (d *decoder) wrong(tok json.Token, expected string) {
	if !d.broken {
		d.fail("%s, expected %s", describe(tok), expected)
		d.skip(tok)
	}
}

func describe(tok json.Token) string {
	switch t := tok.(type) {
	case json.Delim:
		if t == '{' {
			return "an object"
		}
		return "a list"
	case string:
		return strconv.Quote(t[:min(len(t), 40)])
	case json.Number:
		return shorten(string(t))
	case bool:
		return strconv.FormatBool(t)
	}
	return "null"
}

func shorten(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

var escape = strings.NewReplacer("~", "~0", "/", "~1")

// at does something one step further down.
func (d *decoder) at(step string, do func()) {
	size := len(d.path)
	d.path = append(append(d.path, '/'), escape.Replace(step)...)
	do()
	d.path = d.path[:size]
}

// object reads an object: field is called for the value of each key, and says
// whether it knows that key. It is false where there is no object.
func (d *decoder) object(what string, field func(key string) bool) bool {
	if tok := d.token(); tok != json.Delim('{') {
		d.wrong(tok, what)
		return false
	}
	d.fields(field)
	return true
}

// fields is object after its first token.
func (d *decoder) fields(field func(key string) bool) {
	var few [12]string
	seen := few[:0]
	var many map[string]bool
	for d.more() {
		key, ok := d.token().(string)
		if !ok {
			d.stop("a key is missing, expected JSON")
			d.notJSON()
			return
		}
		if len(key) > MaxName { // none has such a one, and where things are stays short
			d.fail("the key %q has %d bytes, expected at most %d", shorten(key), len(key), MaxName)
			d.skip(d.token())
			continue
		}
		d.at(key, func() {
			twice := many[key] || slices.Contains(seen, key)
			if len(seen) < len(few) {
				seen = append(seen, key)
			} else {
				if many == nil {
					many = map[string]bool{}
				}
				many[key] = true
			}
			switch {
			case twice:
				d.fail("the key is there twice, expected once")
				d.skip(d.token())
			case !field(key):
				d.fail("unknown key")
				d.skip(d.token())
			}
		})
	}
	d.token()
}

// list reads a list of at most so many values.
func (d *decoder) list(what string, most int, element func(i int)) bool {
	if tok := d.token(); tok != json.Delim('[') {
		d.wrong(tok, what)
		return false
	}
	i := 0
	for ; d.more(); i++ {
		d.at(strconv.Itoa(i), func() {
			if i < most {
				element(i)
			} else {
				d.skip(d.token())
			}
		})
	}
	d.token()
	if i > most {
		d.problems.add(TooLarge, string(d.path), "%d values, expected at most %d", i, most)
	}
	return true
}

func (d *decoder) text(what string) string {
	tok := d.token()
	s, ok := tok.(string)
	if !ok {
		d.wrong(tok, what)
	}
	return s
}

func (d *decoder) bool() bool {
	tok := d.token()
	b, ok := tok.(bool)
	if !ok {
		d.wrong(tok, "true or false")
	}
	return b
}

// integer reads a whole number between two, which are less than 2⁶³.
func (d *decoder) integer(least, most int64) int64 {
	tok := d.token()
	if n, ok := tok.(json.Number); ok {
		if v, err := strconv.ParseInt(string(n), 10, 64); err == nil && v >= least && v <= most {
			return v
		}
	}
	d.wrong(tok, "a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
	return 0
}

// name reads what something is called.
func (d *decoder) name() string {
	s := d.text("a name")
	if !d.broken && (s == "" || len(s) > MaxName) {
		d.fail("a name of %d bytes, expected 1 to %d", len(s), MaxName)
	}
	return s
}

func (d *decoder) base64(most int) []byte {
	s := d.text("bytes in base64")
	if base64.StdEncoding.DecodedLen(len(s)) > most+3 {
		d.problems.add(TooLarge, string(d.path), "more than %d bytes", most)
		return nil
	}
	data, err := base64.StdEncoding.Strict().DecodeString(s)
	switch {
	case err != nil || strings.ContainsAny(s, "\r\n"):
		d.fail("no base64, expected it with its padding and without line breaks")
	case len(data) > most:
		d.problems.add(TooLarge, string(d.path), "%d bytes, expected at most %d", len(data), most)
	}
	return data
}

func (d *decoder) request() *Request {
	r := &Request{Iterations: 1}
	d.modules, d.buffers = map[string]int{}, map[string]int{}
	version, kernels := false, false
	ok := d.object("an object", func(key string) bool {
		switch key {
		case "version":
			version = true
			d.integer(1, 1)
		case "iterations":
			r.Iterations = int(d.count(MaxIterations))
		case "modules":
			d.object("modules by name", func(name string) bool { return d.module(r, name) })
		case "buffers":
			d.object("buffers by name", func(name string) bool { return d.buffer(r, name) })
		case "kernels":
			kernels = true
			d.list("a list of kernels", MaxKernels, func(int) { d.kernel(r) })
		default:
			return false
		}
		return true
	})
	if !ok || d.broken {
		return r
	}
	if !version {
		d.fail("the key version is missing, expected 1")
	}
	if !kernels || len(r.Kernels) == 0 && len(d.problems) == 0 {
		d.fail("there are no kernels, expected a list of them")
	}
	for _, n := range []struct {
		many, most int
		what       string
	}{{len(r.Modules), MaxModules, "modules"}, {len(r.Buffers), MaxBuffers, "buffers"}} {
		if n.many > n.most {
			d.problems.add(TooLarge, "/"+n.what, "%d %s, expected at most %d", n.many, n.what, n.most)
		}
	}
	if launches := len(r.Kernels) * r.Iterations; launches > MaxLaunches {
		d.problems.add(TooLarge, "/iterations", "%d launches, expected at most %d", launches, MaxLaunches)
	}
	for _, u := range d.uses {
		d.resolve(r, u)
	}
	return r
}

// resolve finds what a kernel uses by name.
func (d *decoder) resolve(r *Request, u use) {
	k := &r.Kernels[u.kernel]
	place, known, what, where := 0, false, "module", "/kernels/"+strconv.Itoa(u.kernel)
	if u.arg < 0 {
		place, known = d.modules[u.name]
		k.Module = place
	} else {
		place, known = d.buffers[u.name]
		k.Args[u.arg].Buffer = place
		what = "buffer"
		where += "/args/" + strconv.Itoa(u.arg)
	}
	if !known {
		d.problems.add(BadRequest, where+"/"+what, "there is no %s of the name %q", what, shorten(u.name))
	}
}

// count reads a number of things, of which too many are another error.
func (d *decoder) count(most int64) int64 {
	tok := d.token()
	if n, ok := tok.(json.Number); ok {
		if v, err := strconv.ParseInt(string(n), 10, 64); err == nil && v > most {
			d.problems.add(TooLarge, string(d.path), "%d, expected at most %d", v, most)
			return 1
		} else if err == nil && v >= 1 {
			return v
		}
	}
	d.wrong(tok, "a whole number from 1 to "+strconv.FormatInt(most, 10))
	return 1
}

// named checks the name of a module or buffer, which is a key.
func (d *decoder) named(name string) {
	if name == "" {
		d.fail("a name of 0 bytes, expected 1 to %d", MaxName)
	}
}

func (d *decoder) module(r *Request, name string) bool {
	d.named(name)
	m := Module{Name: name}
	sources := 0
	d.object("an object with ptx, file or builtin", func(key string) bool {
		switch key {
		case "ptx":
			m.PTX = d.source("PTX text")
		case "file":
			m.File = d.source("the name of a file")
		case "builtin":
			if m.Builtin = d.text(Blas); m.Builtin != Blas && !d.broken {
				d.fail("there is no built-in module %q, expected %s", shorten(m.Builtin), Blas)
			}
		default:
			return false
		}
		sources++
		return true
	})
	if sources != 1 && !d.broken {
		d.fail("%d of the keys ptx, file and builtin, expected one", sources)
	}
	d.modules[name] = len(r.Modules)
	r.Modules = append(r.Modules, m)
	return true
}

// source reads a text that may not be empty or have zeros in it.
func (d *decoder) source(what string) string {
	s := d.text(what)
	if (s == "" || strings.IndexByte(s, 0) >= 0) && !d.broken {
		d.fail("an empty text or one with zeros in it, expected %s", what)
	}
	return s
}

// ValidKey says whether an object may have that key:
// [A-Za-z0-9][A-Za-z0-9._/-]{0,254}.
func ValidKey(key string) bool {
	for i := range len(key) {
		c := key[i]
		word := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !word && (i == 0 || c != '.' && c != '_' && c != '/' && c != '-') {
			return false
		}
	}
	return key != "" && len(key) <= MaxName
}

func (d *decoder) buffer(r *Request, name string) bool {
	d.named(name)
	b := Buffer{Name: name}
	var has [7]bool // by the order of the cases
	ok := d.object("an object with kind and size", func(key string) bool {
		switch key {
		case "kind":
			has[0] = true
			kind := d.text("input, output, inout or temporary")
			i := slices.Index(kinds, kind)
			if i < 0 && !d.broken {
				d.fail("%q, expected input, output, inout or temporary", shorten(kind))
			}
			b.Kind = Kind(max(i, 0))
		case "key":
			has[1] = true
			if b.Key = d.text("a key"); !ValidKey(b.Key) && !d.broken {
				d.fail("%q is no key, expected at most %d of A-Z a-z 0-9 . _ / -, the first a letter or a digit", shorten(b.Key), MaxName)
			}
		case "size":
			has[2] = true
			b.Size = d.integer(1, maxSize)
		case "data":
			has[3] = true
			b.Data = d.base64(MaxInline)
		case "inline":
			b.Inline = d.bool()
		case "volatile":
			b.Volatile = d.bool()
		default:
			return false
		}
		return true
	})
	if ok && !d.broken {
		d.kind(&b, has[0], has[1], has[2], has[3])
	}
	d.buffers[name] = len(r.Buffers)
	r.Buffers = append(r.Buffers, b)
	return true
}

// kind checks that a buffer has the keys of its kind, and no others.
func (d *decoder) kind(b *Buffer, kind, key, size, data bool) {
	writes := b.Kind == Output || b.Kind == Inout
	switch {
	case !kind:
		d.fail("the key kind is missing, expected input, output, inout or temporary")
	case data && b.Kind != Input:
		d.fail("data of a buffer that is %s, expected it of inputs only", b.Kind)
	case data && key:
		d.fail("both key and data, expected one")
	case data && size && b.Size != int64(len(b.Data)):
		d.fail("size %d and %d bytes of data, expected the same", b.Size, len(b.Data))
	case data && len(b.Data) == 0 && len(d.problems) == 0:
		d.fail("data is empty, expected at least one byte")
	case b.Kind == Input && !key && !data, b.Kind == Inout && !key:
		d.fail("the key of the object is missing")
	case b.Kind == Output && !key && !b.Inline:
		d.fail("the key key is missing, expected where the output goes (or \"inline\":true)")
	case b.Kind == Temporary && key:
		d.fail("a temporary buffer has no key")
	case (b.Kind == Output || b.Kind == Temporary) && !size:
		d.fail("the key size is missing, expected bytes")
	case b.Inline && !writes:
		d.fail("inline of a buffer that is %s, expected it of outputs only", b.Kind)
	case b.Volatile && !(writes && key):
		d.fail("volatile of what is not stored, expected it of outputs with a key only")
	case data:
		b.Size = int64(len(b.Data))
	}
}

func (d *decoder) kernel(r *Request) {
	i := len(r.Kernels)
	k := Kernel{}
	module, shaped := use{kernel: i, arg: -1}, 0
	named := false
	ok := d.object("a kernel", func(key string) bool {
		switch key {
		case "module":
			named = true
			module.name = d.text("the name of a module")
		case "name":
			k.Name = d.name()
		case "grid":
			shaped++
			d.shape(&k.Grid)
		case "block":
			shaped++
			d.shape(&k.Block)
		case "shared":
			k.Shared = int(d.integer(0, math.MaxInt32))
		case "args":
			d.list("a list of arguments", MaxArgs, func(int) { d.arg(&k, i) })
		default:
			return false
		}
		return true
	})
	r.Kernels = append(r.Kernels, k)
	if !ok || d.broken {
		return
	}
	if k.Name == "" && len(d.problems) == 0 {
		d.fail("the key name is missing, expected that of a kernel")
	}
	if named {
		d.uses = append(d.uses, module)
	} else {
		d.fail("the key module is missing, expected the name of one")
	}
	if shaped == 1 {
		d.fail("only one of grid and block, expected both")
	}
}

// shape reads a grid or a block; how large a device takes it, Check knows.
func (d *decoder) shape(out *[3]int) {
	n := 0
	if d.list("three whole numbers", math.MaxInt, func(i int) {
		if n++; i < len(out) {
			out[i] = int(d.integer(1, math.MaxInt32))
		} else {
			d.skip(d.token())
		}
	}) && n != len(out) && !d.broken {
		d.fail("%d numbers, expected three", n)
	}
}

func (d *decoder) arg(k *Kernel, kernel int) {
	a := Arg{}
	buffer := ""
	values, offset := 0, false
	ok := d.object("an argument", func(key string) bool {
		switch key {
		case "offset":
			offset = true
			a.Offset = d.integer(0, maxSize)
			return true
		case "buffer":
			buffer = d.text("the name of a buffer")
		case "i32":
			a.Value = le32(uint32(d.integer(math.MinInt32, math.MaxInt32)))
		case "u32":
			a.Value = le32(uint32(d.integer(0, math.MaxUint32)))
		case "i64":
			a.Value = le64(uint64(d.integer(math.MinInt64, math.MaxInt64)))
		case "u64":
			a.Value = le64(d.unsigned())
		case "f32":
			a.Value = le32(math.Float32bits(float32(d.real(32))))
		case "f64":
			a.Value = le64(math.Float64bits(d.real(64)))
		case "bytes":
			if a.Value = d.base64(MaxArg); len(a.Value) == 0 && len(d.problems) == 0 && !d.broken {
				d.fail("no bytes, expected at least one")
			}
		default:
			return false
		}
		a.Type = key
		values++
		return true
	})
	if ok && !d.broken {
		switch {
		case values != 1:
			d.fail("%d values, expected one of buffer, i32, u32, i64, u64, f32, f64 and bytes", values)
		case offset && a.Type != "buffer":
			d.fail("offset without buffer")
		}
	}
	k.Args = append(k.Args, a)
	if a.Type == "buffer" {
		d.uses = append(d.uses, use{kernel, len(k.Args) - 1, buffer})
	}
}

func (d *decoder) unsigned() uint64 {
	tok := d.token()
	if n, ok := tok.(json.Number); ok {
		if v, err := strconv.ParseUint(string(n), 10, 64); err == nil {
			return v
		}
	}
	d.wrong(tok, "a whole number from 0 to 18446744073709551615")
	return 0
}

func (d *decoder) real(bits int) float64 {
	tok := d.token()
	if n, ok := tok.(json.Number); ok {
		if v, err := strconv.ParseFloat(string(n), bits); err == nil {
			return v
		}
	}
	d.wrong(tok, "a number that "+strconv.Itoa(bits)+" bits can hold")
	return 0
}

func le32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func le64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
