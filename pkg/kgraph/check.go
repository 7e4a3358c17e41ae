package kgraph

import (
	"strconv"
)

// Device is what a GPU takes.
type Device struct {
	Name           string
	Arch           int // compute capability, 90 for 9.0
	MaxGrid        [3]int
	MaxBlock       [3]int
	MaxThreads     int   // of a block
	MaxShared      int   // bytes of a block's shared memory
	MaxParamsBytes int   // of a kernel's parameters; 0 is 4,096
	Budget         int64 // bytes of buffers at once; 0 is no limit
}

// maxParams is what all architectures take.
const maxParams = 4096

// World is as much as is known of what a request meets. The zero value is
// nothing: what needs more is not checked then.
type World struct {
	// Object says how large the object of a key is; nil where there are none to
	// ask about.
	Object func(key string) (size int64, found bool)
	Device *Device
	// Files says that modules may still be in files.
	Files bool
	// Signature reads PTX, as ReadPTX does; nil is ReadPTX.
	Signature func(text string) (*Signature, bool)
	// Footprint is what a buffer of that size takes of the device's budget; nil is
	// its size.
	Footprint func(size int64) int64
}

// Check finds what is wrong with a request that Parse read, in the order of its
// parts. It sets the sizes of inputs that objects have, and the grids and blocks
// that built-ins leave out; with a problem it may have done part of that.
func (r *Request) Check(w World) []*Problem {
	c := &checker{r: r, w: w}
	if c.w.Signature == nil {
		c.w.Signature = ReadPTX
	}
	c.buffers()
	c.modules()
	for i := range r.Kernels {
		c.kernel(i)
	}
	if len(c.problems) == 0 {
		c.budget()
	}
	return c.problems
}

type checker struct {
	r          *Request
	w          World
	problems   problems
	signatures []*Signature // by module; nil for those that are unknown or wrong
}

func (c *checker) buffers() {
	var written map[string]string
	for i := range c.r.Buffers {
		b := &c.r.Buffers[i]
		where := "/buffers/" + escape.Replace(b.Name)
		if b.Writes() {
			if other, twice := written[b.Key]; twice {
				c.problems.add(BadRequest, where+"/key", "%q is written by the buffer %q too, expected once", b.Key, other)
			}
			if written == nil {
				written = map[string]string{}
			}
			written[b.Key] = b.Name
		}
		if !b.Reads() || c.w.Object == nil {
			continue
		}
		size, found := c.w.Object(b.Key)
		switch {
		case !found:
			c.problems.add(NotFound, where+"/key", "there is no object %q", b.Key)
		case b.Size != 0 && b.Size != size:
			c.problems.add(BadRequest, where+"/size", "%d bytes, but the object %q has %d", b.Size, b.Key, size)
		default:
			b.Size = size
		}
	}
}

func (c *checker) modules() {
	c.signatures = make([]*Signature, len(c.r.Modules))
	for i := range c.r.Modules {
		m := &c.r.Modules[i]
		where := "/modules/" + escape.Replace(m.Name)
		switch {
		case m.Builtin != "":
			continue
		case m.File != "":
			if !c.w.Files {
				c.problems.add(BadRequest, where+"/file", "a file, expected ptx: only gfaas-kerneld run reads files")
			}
			continue
		case isBinary(m.PTX):
			c.problems.add(Unsupported, where+"/ptx", "code of one architecture (a cubin or fat binary), expected PTX text")
			continue
		}
		s, isPTX := c.w.Signature(m.PTX)
		if !isPTX {
			c.problems.add(BadRequest, where+"/ptx", "no PTX: .version is missing")
			continue
		}
		if d := c.w.Device; d != nil && (s.Target > d.Arch || s.Exact && s.Target != d.Arch) {
			c.problems.add(Unsupported, where+"/ptx", "it is for sm_%d, and %s is sm_%d", s.Target, d.Name, d.Arch)
			continue
		}
		c.signatures[i] = s
	}
}

// isBinary says whether a text is code of a GPU, or a container of it.
func isBinary(text string) bool {
	for _, magic := range []string{"\x7fELF", "\x50\xed\x55\xba", "!<arch>"} {
		if len(text) >= len(magic) && text[:len(magic)] == magic {
			return true
		}
	}
	return false
}

func (c *checker) kernel(i int) {
	k := &c.r.Kernels[i]
	where := "/kernels/" + strconv.Itoa(i)
	for j := range k.Args {
		a := &k.Args[j]
		if a.Type != "buffer" {
			continue
		}
		if b := &c.r.Buffers[a.Buffer]; b.Size > 0 && a.Offset >= b.Size {
			c.problems.add(BadRequest, where+"/args/"+strconv.Itoa(j)+"/offset", "%d, but the buffer %q has %d bytes", a.Offset, b.Name, b.Size)
		}
	}
	var e *Entry
	if m := &c.r.Modules[k.Module]; m.Builtin != "" {
		e = c.builtin(k, where)
	} else if s := c.signatures[k.Module]; s != nil {
		if e = s.Entries[k.Name]; e == nil {
			c.problems.add(BadRequest, where+"/name", "the module %q has no kernel %q", m.Name, k.Name)
		}
	}
	if k.Grid[0] == 0 && e != nil && c.r.Modules[k.Module].Builtin == "" {
		c.problems.add(BadRequest, where+"/grid", "the key is missing, expected three whole numbers")
	}
	if e != nil {
		c.args(k, e, where)
		c.threads(k, e, where)
	}
	c.shape(k, where)
}

// args compares a kernel's arguments with its declaration.
func (c *checker) args(k *Kernel, e *Entry, where string) {
	if len(k.Args) != len(e.Params) {
		c.problems.add(BadRequest, where+"/args", "%d arguments, but %s takes %d", len(k.Args), k.Name, len(e.Params))
		return
	}
	total := 0
	for j := range k.Args {
		a, p := &k.Args[j], e.Params[j]
		total += p.Size
		switch at := where + "/args/" + strconv.Itoa(j); {
		case a.Size() != p.Size:
			c.problems.add(BadRequest, at, "%s is %d bytes, but %s takes %d there", a.Type, a.Size(), k.Name, p.Size)
		case a.Type == "buffer" && !p.Pointer:
			c.problems.add(BadRequest, at, "a buffer, but %s takes a number there", k.Name)
		}
	}
	most := maxParams
	if c.w.Device != nil && c.w.Device.MaxParamsBytes > 0 {
		most = c.w.Device.MaxParamsBytes
	}
	if total > most {
		c.problems.add(TooLarge, where+"/args", "%d bytes of arguments, expected at most %d", total, most)
	}
}

// threads compares a block with what the kernel was compiled for.
func (c *checker) threads(k *Kernel, e *Entry, where string) {
	if e.Required[0] > 0 && k.Block != [3]int{e.Required[0], max(e.Required[1], 1), max(e.Required[2], 1)} {
		c.problems.add(BadRequest, where+"/block", "%v, but %s is for blocks of %v alone", k.Block, k.Name, e.Required)
	}
	if e.Most > 0 && volume(k.Block) > int64(e.Most) {
		c.problems.add(BadRequest, where+"/block", "%d threads, but %s is for at most %d", volume(k.Block), k.Name, e.Most)
	}
}

func volume(n [3]int) int64 {
	const much = 1 << 40
	return min(min(int64(n[0])*int64(n[1]), much)*int64(n[2]), much)
}

// shape compares a launch with the device.
func (c *checker) shape(k *Kernel, where string) {
	d := c.w.Device
	if d == nil {
		return
	}
	for i := range 3 {
		if k.Grid[i] > d.MaxGrid[i] {
			c.problems.add(TooLarge, where+"/grid/"+strconv.Itoa(i), "%d, but %s takes at most %d", k.Grid[i], d.Name, d.MaxGrid[i])
		}
		if k.Block[i] > d.MaxBlock[i] {
			c.problems.add(TooLarge, where+"/block/"+strconv.Itoa(i), "%d, but %s takes at most %d", k.Block[i], d.Name, d.MaxBlock[i])
		}
	}
	if n := volume(k.Block); n > int64(d.MaxThreads) {
		c.problems.add(TooLarge, where+"/block", "%d threads, but %s takes at most %d", n, d.Name, d.MaxThreads)
	}
	if k.Shared > d.MaxShared {
		c.problems.add(TooLarge, where+"/shared", "%d bytes, but %s has at most %d", k.Shared, d.Name, d.MaxShared)
	}
}

// budget checks that all buffers fit the device's memory at once.
func (c *checker) budget() {
	d := c.w.Device
	if d == nil || d.Budget == 0 {
		return
	}
	if total := c.r.Memory(c.w.Footprint); total > d.Budget {
		c.problems.add(TooLarge, "/buffers", "%d bytes, but %s may have %d at once", total, d.Name, d.Budget)
	}
}

// Memory is what the buffers take of a GPU's memory. Buffers of the same object
// that are only read are one; footprint as in World.
func (r *Request) Memory(footprint func(int64) int64) (total int64) {
	read := map[string]bool{}
	for i := range r.Buffers {
		b := &r.Buffers[i]
		if b.Kind == Input && b.Key != "" {
			if read[b.Key] {
				continue
			}
			read[b.Key] = true
		}
		size := b.Size
		if footprint != nil {
			size = footprint(size)
		}
		total += size
	}
	return total
}

// Pointer is a name as a step of a JSON pointer.
func Pointer(name string) string { return escape.Replace(name) }
