package kgraph

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Parse decodes a request. If it returns no problems, the request has the right format: keys, types and
// limits are valid, and all names that kernels use exist.
func Parse(data []byte) (*Request, []*Problem) {
	d := &decoder{result: &Request{Iterations: 1}, modules: map[string]int{}, buffers: map[string]int{}}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	switch {
	case len(data) > MaxRequest:
		d.problems.add(TooLarge, "", "%d bytes, expected at most %d", len(data), MaxRequest)
		return nil, d.problems
	case !utf8.Valid(data):
		d.problems.add(BadRequest, "", "invalid UTF-8, expected JSON")
		return nil, d.problems
	case len(bytes.TrimSpace(data)) == 0:
		d.problems.add(BadRequest, "", "the request is empty, expected a JSON object")
		return nil, d.problems
	}
	d.dec = jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	d.request()
	if rest := bytes.TrimLeft(data[d.dec.InputOffset():], " \t\r\n"); !d.broken && len(rest) > 0 {
		d.stop(int64(len(data)-len(rest)+1), "", "text after the end of the request, expected one JSON object")
	}
	if len(d.problems) == 0 {
		return d.result, nil
	}
	return nil, d.problems
}

// decoder decodes a request.
type decoder struct {
	tokens
	result  *Request
	modules map[string]int // index by name
	buffers map[string]int // index by name
	uses    []use
}

// use is a kernel's reference to a name that may be defined later in the text: of a module if arg is
// negative, otherwise of the buffer of that argument.
type use struct {
	kernel, arg int
	name        string
}

// request reads a request into d.result.
func (d *decoder) request() {
	r := d.result
	keys := d.object("an object", func(key string) bool {
		switch key {
		case "version":
			d.integer(1, 1)
		case "iterations":
			r.Iterations = int(d.count(MaxIterations))
		case "modules":
			d.object("modules by name", d.module)
		case "buffers":
			d.object("buffers by name", d.buffer)
		case "kernels":
			d.list("a list of kernels", MaxKernels, d.kernel)
		default:
			return false
		}
		return true
	})
	if keys == nil || d.broken {
		return
	}
	if !keys["version"] {
		d.fail("the key version is missing, expected 1")
	}
	if !keys["kernels"] || len(r.Kernels) == 0 && len(d.problems) == 0 {
		d.fail("there are no kernels, expected at least one")
	}
	d.limit("modules", len(r.Modules), MaxModules)
	d.limit("buffers", len(r.Buffers), MaxBuffers)
	if launches := len(r.Kernels) * r.Iterations; launches > MaxLaunches {
		d.problems.add(TooLarge, "/iterations", "%d launches, expected at most %d", launches, MaxLaunches)
	}
	for _, u := range d.uses {
		d.resolve(u)
	}
}

func (d *decoder) limit(kind string, count, limit int) {
	if count > limit {
		d.problems.add(TooLarge, "/"+kind, "%d %s, expected at most %d", count, kind, limit)
	}
}

// resolve resolves a kernel's reference to a module or buffer.
func (d *decoder) resolve(u use) {
	k := &d.result.Kernels[u.kernel]
	place, known, kind, where := 0, false, "module", "/kernels/"+strconv.Itoa(u.kernel)
	if u.arg < 0 {
		place, known = d.modules[u.name]
		k.Module = place
	} else {
		place, known = d.buffers[u.name]
		k.Args[u.arg].Buffer = place
		kind = "buffer"
		where += "/args/" + strconv.Itoa(u.arg)
	}
	if !known {
		d.problems.add(BadRequest, where+"/"+kind, "there is no %s named %q", kind, shorten(u.name))
	}
}

// named checks the name of a module or buffer. Its length was checked as that of a key.
func (d *decoder) named(name string) {
	if name == "" {
		d.fail("a name of 0 bytes, expected 1 to %d", MaxName)
	}
}

func (d *decoder) module(name string) bool {
	d.named(name)
	m := Module{Name: name}
	sources := 0
	d.object("an object with ptx, binary, file, stored or builtin", func(key string) bool {
		switch key {
		case "ptx":
			m.PTX = d.source("PTX text")
		case "binary":
			code := string(d.base64(MaxBinary))
			if err := m.SetBinary(code); err != nil && !d.broken && len(d.problems) == 0 {
				d.fail("%v", err)
			}
		case "file":
			m.File = d.source("the name of a file")
		case "stored":
			if m.Stored = d.text("the name of a stored module"); !ValidKey(m.Stored) && !d.broken {
				d.fail("%q is not a valid name, expected at most %d of A-Z a-z 0-9 . _ / -, the first a letter or a digit", shorten(m.Stored), MaxName)
			}
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
		d.fail("%d of the keys ptx, binary, file, stored and builtin, expected one", sources)
	}
	d.modules[name] = len(d.result.Modules)
	d.result.Modules = append(d.result.Modules, m)
	return true
}

// source reads a nonempty text without NUL.
func (d *decoder) source(expected string) string {
	s := d.text(expected)
	if (s == "" || strings.IndexByte(s, 0) >= 0) && !d.broken {
		d.fail("an empty string or one with zero bytes, expected %s", expected)
	}
	return s
}

// ValidKey reports whether key is a valid key of an object: [A-Za-z0-9][A-Za-z0-9._/-]{0,254}.
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

// MakeReference returns the reference to a result: "@", the ID of the asynchronous run, "/", and the
// name of the output buffer. A request can use it as the key of an input.
func MakeReference(run, buffer string) string { return "@" + run + "/" + buffer }

// Reference parses a reference. It returns false for any other key.
func Reference(key string) (run, buffer string, ok bool) {
	rest, ok := strings.CutPrefix(key, "@")
	run, buffer, found := strings.Cut(rest, "/")
	return run, buffer, ok && found && ValidKey(run) && buffer != "" && len(buffer) <= MaxName
}

func (d *decoder) buffer(name string) bool {
	d.named(name)
	b := Buffer{Name: name}
	keys := d.object("an object with kind and size", func(key string) bool {
		switch key {
		case "kind":
			kind := d.text("input, output, inout or temporary")
			i := slices.Index(kinds, kind)
			if i < 0 && !d.broken {
				d.fail("%q, expected input, output, inout or temporary", shorten(kind))
			}
			b.Kind = Kind(max(i, 0))
		case "key":
			b.Key = d.text("a key")
			if _, _, isReference := Reference(b.Key); !ValidKey(b.Key) && !isReference && !d.broken {
				d.fail("%q is not a valid key, expected at most %d of A-Z a-z 0-9 . _ / -, the first a letter or a digit (or a reference, @RUN/BUFFER)", shorten(b.Key), MaxName)
			}
		case "size":
			b.Size = d.integer(1, maxSize)
		case "data":
			b.Data = d.base64(MaxInline)
		case "inline":
			b.Inline = d.bool()
		case "result":
			b.Result = d.bool()
		case "volatile":
			b.Volatile = d.bool()
		default:
			return false
		}
		return true
	})
	if keys != nil && !d.broken {
		d.kind(&b, keys)
	}
	d.buffers[name] = len(d.result.Buffers)
	d.result.Buffers = append(d.result.Buffers, b)
	return true
}

// kind checks that a buffer has the keys that its kind requires, and no others.
func (d *decoder) kind(b *Buffer, keys map[string]bool) {
	key, size, data := keys["key"], keys["size"], keys["data"]
	writes := b.Kind == Output || b.Kind == Inout
	switch {
	case !keys["kind"]:
		d.fail("the key kind is missing, expected input, output, inout or temporary")
	case data && b.Kind != Input:
		d.fail("data in a buffer of the kind %s, expected only in inputs", b.Kind)
	case data && key:
		d.fail("both key and data, expected one")
	case data && size && b.Size != int64(len(b.Data)):
		d.fail("size %d and %d bytes of data, expected the same", b.Size, len(b.Data))
	case data && len(b.Data) == 0 && len(d.problems) == 0:
		d.fail("data is empty, expected at least one byte")
	case b.Kind == Input && !key && !data, b.Kind == Inout && !key:
		d.fail("the key of the object is missing")
	case b.Kind == Output && !key && !b.Inline && !b.Result:
		d.fail("the key key is missing, expected the object for the output (or \"inline\":true, or \"result\":true)")
	case b.Kind != Input && strings.HasPrefix(b.Key, "@"):
		d.fail("the key is a reference to a result in a buffer of the kind %s, expected only in inputs", b.Kind)
	case b.Result && (b.Kind != Output || key):
		d.fail("result in a buffer of the kind %s, expected only in outputs without a key", b.Kind)
	case b.Kind == Temporary && key:
		d.fail("a temporary buffer has no key")
	case (b.Kind == Output || b.Kind == Temporary) && !size:
		d.fail("the key size is missing, expected a number of bytes")
	case b.Inline && !writes:
		d.fail("inline in a buffer of the kind %s, expected only in outputs", b.Kind)
	case b.Volatile && !(writes && (key || b.Result)):
		d.fail("volatile in a buffer that is not stored, expected only in outputs with a key or result")
	case data:
		b.Size = int64(len(b.Data))
	}
}

func (d *decoder) kernel(i int) {
	k := Kernel{}
	module := use{kernel: i, arg: -1}
	keys := d.object("a kernel", func(key string) bool {
		switch key {
		case "module":
			module.name = d.text("the name of a module")
		case "name":
			k.Name = d.name()
		case "grid":
			d.shape(&k.Grid)
		case "block":
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
	d.result.Kernels = append(d.result.Kernels, k)
	if keys == nil || d.broken {
		return
	}
	if k.Name == "" && len(d.problems) == 0 {
		d.fail("the key name is missing, expected the name of a kernel")
	}
	if keys["module"] {
		d.uses = append(d.uses, module)
	} else {
		d.fail("the key module is missing, expected the name of a module")
	}
	if keys["grid"] != keys["block"] {
		d.fail("only one of grid and block, expected both")
	}
}

// shape reads a grid or a block. Check compares it with the limits of the device.
func (d *decoder) shape(dims *[3]int) {
	n := 0
	if d.list("three whole numbers", math.MaxInt, func(i int) {
		if n++; i < len(dims) {
			dims[i] = int(d.integer(1, math.MaxInt32))
		} else {
			d.skip()
		}
	}) && n != len(dims) && !d.broken {
		d.fail("%d numbers, expected three", n)
	}
}

func (d *decoder) arg(k *Kernel, kernel int) {
	a := Arg{}
	buffer := ""
	values := 0
	keys := d.object("an argument", func(key string) bool {
		switch key {
		case "offset":
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
	if keys != nil && !d.broken {
		switch {
		case values != 1:
			d.fail("%d values, expected one of buffer, i32, u32, i64, u64, f32, f64 and bytes", values)
		case keys["offset"] && a.Type != "buffer":
			d.fail("offset without buffer")
		}
	}
	k.Args = append(k.Args, a)
	if a.Type == "buffer" {
		d.uses = append(d.uses, use{kernel, len(k.Args) - 1, buffer})
	}
}

func le32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
func le64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
