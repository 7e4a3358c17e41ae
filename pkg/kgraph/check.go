package kgraph

import (
	"strconv"
	"strings"
)

// Device describes the limits of a GPU.
type Device struct {
	Name       string
	Arch       int // compute capability, 90 for 9.0
	MaxGrid    [3]int
	MaxBlock   [3]int
	MaxThreads int   // threads per block
	MaxShared  int   // bytes of shared memory per block
	Budget     int64 // bytes for all buffers of a request; 0: no limit
}

// maxParams is the size of parameters that all architectures support, in bytes.
const maxParams = 4096

// World describes the known environment of a request. Check skips the checks for which a field is
// missing; the zero value skips all of them.
type World struct {
	// Object returns the size of the object with a key. If nil, objects are not checked.
	Object func(key string) (size int64, found bool)
	Device *Device
	// Files allows modules to refer to files.
	Files bool
	// Signature is used in place of ReadPTX if it is not nil.
	Signature func(text string) (*Signature, bool)
	// Footprint returns how much of the device's budget a buffer takes. If nil, it is the size
	// of the buffer.
	Footprint func(size int64) int64
}

// Check returns the problems of a request that Parse returned, in the order of its parts. It fills in
// the sizes of buffers that objects determine, and the grids and blocks of built-ins. If there are
// problems, it may have done so only in part.
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
	signatures []*Signature // by module; nil if unknown or invalid
}

func (c *checker) buffers() {
	var written map[string]string
	for i := range c.r.Buffers {
		b := &c.r.Buffers[i]
		where := "/buffers/" + Pointer(b.Name)
		if b.Writes() {
			if other, twice := written[b.Key]; twice {
				c.problems.add(BadRequest, where+"/key", "%q is also written by the buffer %q, expected one writer", b.Key, other)
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
		where := "/modules/" + Pointer(m.Name) + "/" + m.Source()
		switch {
		case m.Builtin != "":
			continue
		case m.File != "":
			if !c.w.Files {
				c.problems.add(BadRequest, where, "a file, expected ptx: only gfaas-kerneld run reads files")
			}
			continue
		case IsBinary(m.PTX):
			c.problems.add(Unsupported, where, "code of one architecture (a cubin or fat binary), expected PTX text (or the code in the key binary, in base64)")
			continue
		}
		if m.Binary != "" {
			c.signatures[i] = c.binary(m, where)
			continue
		}
		if m.Stored != "" && m.PTX == "" {
			continue // known only to the daemon, which resolves it before the check
		}
		s, isPTX := c.w.Signature(m.PTX)
		if !isPTX {
			c.problems.add(BadRequest, where, "not PTX: .version is missing")
			continue
		}
		if d := c.w.Device; d != nil && (s.Target > d.Arch || s.Exact && s.Target != d.Arch) {
			c.problems.add(Unsupported, where, "the code is for sm_%d, but %s is sm_%d", s.Target, d.Name, d.Arch)
			continue
		}
		c.signatures[i] = s
	}
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
	if total > maxParams {
		c.problems.add(TooLarge, where+"/args", "%d bytes of arguments, expected at most %d", total, maxParams)
	}
}

// threads compares the block size with the limits declared for the kernel.
func (c *checker) threads(k *Kernel, e *Entry, where string) {
	if e.RequiredThreads[0] > 0 && k.Block != [3]int{e.RequiredThreads[0], max(e.RequiredThreads[1], 1), max(e.RequiredThreads[2], 1)} {
		c.problems.add(BadRequest, where+"/block", "%v, but %s requires blocks of %v", k.Block, k.Name, e.RequiredThreads)
	}
	if e.MaxThreads > 0 && volume(k.Block) > int64(e.MaxThreads) {
		c.problems.add(BadRequest, where+"/block", "%d threads, but %s allows at most %d", volume(k.Block), k.Name, e.MaxThreads)
	}
}

func volume(n [3]int) int64 {
	const highest = 1 << 40
	return min(min(int64(n[0])*int64(n[1]), highest)*int64(n[2]), highest)
}

// shape compares a launch with the limits of the device.
func (c *checker) shape(k *Kernel, where string) {
	d := c.w.Device
	if d == nil {
		return
	}
	for i := range 3 {
		if k.Grid[i] > d.MaxGrid[i] {
			c.problems.add(TooLarge, where+"/grid/"+strconv.Itoa(i), "%d, but %s allows at most %d", k.Grid[i], d.Name, d.MaxGrid[i])
		}
		if k.Block[i] > d.MaxBlock[i] {
			c.problems.add(TooLarge, where+"/block/"+strconv.Itoa(i), "%d, but %s allows at most %d", k.Block[i], d.Name, d.MaxBlock[i])
		}
	}
	if n := volume(k.Block); n > int64(d.MaxThreads) {
		c.problems.add(TooLarge, where+"/block", "%d threads, but %s allows at most %d", n, d.Name, d.MaxThreads)
	}
	if k.Shared > d.MaxShared {
		c.problems.add(TooLarge, where+"/shared", "%d bytes, but %s has at most %d", k.Shared, d.Name, d.MaxShared)
	}
}

// budget checks that all buffers together fit in the device's budget.
func (c *checker) budget() {
	d := c.w.Device
	if d == nil || d.Budget == 0 {
		return
	}
	if total := c.r.memory(c.w.Footprint); total > d.Budget {
		c.problems.add(TooLarge, "/buffers", "%d bytes at once, but the limit on %s is %d", total, d.Name, d.Budget)
	}
}

// memory returns how much GPU memory the buffers take. Inputs that read the same object share one
// block. footprint is as in World.
func (r *Request) memory(footprint func(int64) int64) (total int64) {
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

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer escapes a name for use in a JSON pointer.
func Pointer(name string) string { return pointerEscapes.Replace(name) }
