package kgraph

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"
)

// MaxBinary limits a cubin or fatbin in a request, in bytes.
const MaxBinary = 12 << 20

// maxBinaryKernels limits the kernels of a cubin.
const maxBinaryKernels = 1 << 16

// Image is the code for one architecture in a cubin or fatbin.
type Image struct {
	Signature
	Machine    bool // machine code, which runs only on GPUs of the same major version; otherwise PTX
	Compressed bool // its kernels are unknown
}

// runsOn reports whether a GPU with the given compute capability can run the image.
func (m *Image) runsOn(arch int) bool {
	switch {
	case m.Exact:
		return m.Target == arch
	case m.Machine:
		return m.Target/10 == arch/10 && m.Target <= arch
	}
	return m.Target <= arch
}

// chooseImage returns the image that a driver loads on a GPU: machine code before PTX, then the latest
// architecture. It returns nil if there is none.
func chooseImage(images []*Image, arch int) (chosen *Image) {
	for _, m := range images {
		if m.runsOn(arch) && (chosen == nil || m.Machine && !chosen.Machine || m.Machine == chosen.Machine && m.Target > chosen.Target) {
			chosen = m
		}
	}
	return chosen
}

const (
	elfMagic    = "\x7fELF"
	fatbinMagic = "\x50\xed\x55\xba"
)

// IsBinary reports whether code is GPU machine code, or a container of it, as opposed to PTX.
func IsBinary(code string) bool {
	return strings.HasPrefix(code, elfMagic) || strings.HasPrefix(code, fatbinMagic) || strings.HasPrefix(code, "!<arch>")
}

// ReadBinary reads the headers of a cubin or fatbin, and the declarations of its kernels. The simulated
// driver (hook/sim/binary.c) reads the same formats.
func ReadBinary(code string) ([]*Image, error) {
	switch {
	case strings.HasPrefix(code, elfMagic):
		m, err := readCubin([]byte(code))
		return []*Image{m}, err
	case strings.HasPrefix(code, fatbinMagic):
		return readFatbin([]byte(code))
	case code == "":
		return nil, fmt.Errorf("no bytes, expected a cubin or fatbin")
	}
	return nil, fmt.Errorf("neither a cubin (an ELF file) nor a fatbin: it starts with % x", code[:min(len(code), 4)])
}

// Sizes and flags of a fatbin: a header, and images with headers of their own. The layout is that of
// NVIDIA's fatbinary 11.8.
const (
	fatbinHeader     = 16
	imageHeader      = 64
	imagePTX         = 1
	imageELF         = 2
	imageCompressed  = 0x2000 | 0x8000
	maxImages        = 256
	maxImagePTXBytes = 4 << 20 // longer PTX is not read: its kernels are unknown
)

func readFatbin(code []byte) (images []*Image, err error) {
	order := binary.LittleEndian
	if len(code) < fatbinHeader {
		return nil, fmt.Errorf("the header of the fatbin has %d bytes, expected %d", len(code), fatbinHeader)
	}
	version, header, size := order.Uint16(code[4:]), order.Uint16(code[6:]), order.Uint64(code[8:])
	if version != 1 || header != fatbinHeader {
		return nil, fmt.Errorf("version %d of the fatbin with a header of %d bytes, expected 1 and %d", version, header, fatbinHeader)
	}
	if size != uint64(len(code)-fatbinHeader) {
		return nil, fmt.Errorf("the fatbin has %d bytes after its header, expected %d", len(code)-fatbinHeader, size)
	}
	for at := code[fatbinHeader:]; len(at) > 0; {
		i := len(images)
		if len(at) < imageHeader || i == maxImages {
			return nil, fmt.Errorf("image %d of the fatbin: %d bytes follow, expected an image of at least %d, and at most %d images", i, len(at), imageHeader, maxImages)
		}
		kind, header, size := order.Uint16(at), uint64(order.Uint32(at[4:])), order.Uint64(at[8:])
		if header < imageHeader || header > uint64(len(at)) || size > uint64(len(at))-header {
			return nil, fmt.Errorf("image %d of the fatbin: a header of %d bytes and %d bytes of code, but %d bytes follow", i, header, size, len(at))
		}
		m := &Image{Machine: kind == imageELF, Compressed: order.Uint64(at[40:])&imageCompressed != 0}
		m.Target = int(order.Uint32(at[28:]))
		text := at[header : header+size]
		switch {
		case m.Compressed:
		case kind == imageELF:
			if m, err = readCubin(text); err != nil {
				return nil, fmt.Errorf("image %d of the fatbin: %w", i, err)
			}
		case kind == imagePTX && len(text) <= maxImagePTXBytes:
			s, isPTX := ReadPTX(string(bytes.TrimRight(text, "\x00")))
			if !isPTX {
				return nil, fmt.Errorf("image %d of the fatbin: not PTX: .version is missing", i)
			}
			m.Signature = *s
		}
		if kind == imageELF || kind == imagePTX {
			images = append(images, m)
		}
		at = at[header+size:]
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("the fatbin has neither machine code nor PTX")
	}
	return images, nil
}

// Values in the ELF header of a cubin. The second version of the format is that of CUDA 13.
const (
	osabiCUDA   = 0x33
	osabiCUDAv2 = 0x41
	machineCUDA = 190
	kernelOther = 0x10 // st_other of a symbol that is a kernel
)

// readCubin reads the headers and the kernels of a cubin. It overwrites the version field of code, because
// debug/elf refuses the values that CUDA writes there.
func readCubin(code []byte) (*Image, error) {
	const version = 20 // offset of e_version, in which cubins have the version of the CUDA toolkit
	if len(code) >= version+4 {
		binary.LittleEndian.PutUint32(code[version:], uint32(elf.EV_CURRENT)) // the only one that debug/elf accepts
	}
	f, err := elf.NewFile(bytes.NewReader(code))
	switch {
	case err != nil:
		return nil, fmt.Errorf("malformed cubin: %w", err)
	case f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB || f.Machine != machineCUDA:
		return nil, fmt.Errorf("an ELF file for %v (%v, %v), expected a 64-bit cubin", f.Machine, f.Class, f.Data)
	case f.Type != elf.ET_EXEC:
		return nil, fmt.Errorf("a cubin of the type %v, expected a linked one (%v)", f.Type, elf.ET_EXEC)
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NULL && s.Type != elf.SHT_NOBITS && (s.Offset > uint64(len(code)) || s.FileSize > uint64(len(code))-s.Offset) {
			return nil, fmt.Errorf("the section %s of the cubin exceeds the file: %d bytes from byte %d, the file has %d", s.Name, s.FileSize, s.Offset, len(code))
		}
	}
	m := &Image{Machine: true, Signature: Signature{Entries: map[string]*Entry{}}}
	const flags = 48 // offset of e_flags
	switch bits := binary.LittleEndian.Uint32(code[flags:]); f.OSABI {
	case osabiCUDA:
		m.Target, m.Exact = int(bits&0xff), bits&0x800 != 0
	case osabiCUDAv2:
		m.Target, m.Exact = int(bits>>8&0xff), bits&0x8 != 0
	default:
		return nil, fmt.Errorf("the ABI of the cubin is %#x, expected %#x or %#x", byte(f.OSABI), osabiCUDA, osabiCUDAv2)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("malformed cubin: %w", err)
	}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Other&kernelOther == 0 {
			continue
		}
		if len(m.Entries) == maxBinaryKernels || f.Section(".text."+s.Name) == nil {
			return nil, fmt.Errorf("the cubin has no code for the kernel %s, or more than %d kernels", shorten(s.Name), maxBinaryKernels)
		}
		if m.Entries[s.Name], err = readEntry(f, s.Name); err != nil {
			return nil, fmt.Errorf("kernel %s of the cubin: %w", shorten(s.Name), err)
		}
	}
	if len(m.Entries) == 0 {
		return nil, fmt.Errorf("the cubin has no kernels")
	}
	return m, nil
}

// Attributes in the section .nv.info.NAME of a kernel, and their format.
const (
	sizedAttribute     = 4    // format of an attribute whose value follows it
	attrParameter      = 0x17 // ordinal, offset and size of a parameter
	attrParameterBytes = 0x19 // size of all parameters
	attrMaxThreads     = 0x05
	attrRequired       = 0x10
)

// readEntry reads the declaration of a kernel. It fails if the section does not describe all parameters,
// because a launch with too few arguments would make the driver read beyond them.
func readEntry(f *elf.File, name string) (*Entry, error) {
	e := &Entry{}
	var info []byte
	if s := f.Section(".nv.info." + name); s != nil {
		var err error
		if info, err = s.Data(); err != nil {
			return nil, err
		}
	}
	order := binary.LittleEndian
	declared, described := 0, 0
	for len(info) >= 4 {
		format, attr, value := info[0], info[1], int(order.Uint16(info[2:]))
		info = info[4:]
		var data []byte
		if format == sizedAttribute {
			if value > len(info) {
				return nil, fmt.Errorf("an attribute of %d bytes, but %d follow", value, len(info))
			}
			data, info = info[:value], info[value:]
		}
		switch {
		case attr == attrParameter && len(data) == 12:
			ordinal, offset, size := int(order.Uint16(data[4:])), int(order.Uint16(data[6:])), int(order.Uint32(data[8:])>>18)
			if ordinal >= MaxArgs {
				return nil, fmt.Errorf("more than %d parameters", MaxArgs)
			}
			for len(e.Params) <= ordinal {
				e.Params = append(e.Params, Param{})
			}
			e.Params[ordinal] = Param{Size: size, Pointer: size == 8}
			described = max(described, offset+size)
		case attr == attrParameterBytes:
			declared = value
		case attr == attrMaxThreads && len(data) == 12:
			e.MaxThreads = int(volume([3]int{int(order.Uint32(data)), int(order.Uint32(data[4:])), int(order.Uint32(data[8:]))}))
		case attr == attrRequired && len(data) == 12:
			e.RequiredThreads = [3]int{int(order.Uint32(data)), int(order.Uint32(data[4:])), int(order.Uint32(data[8:]))}
		}
	}
	for i, p := range e.Params {
		if p.Size == 0 {
			return nil, fmt.Errorf("parameter %d is not described", i)
		}
	}
	if described != declared {
		return nil, fmt.Errorf("%d bytes of parameters are described, expected %d", described, declared)
	}
	return e, nil
}

// SetBinary makes a cubin or fatbin the code of the module.
func (m *Module) SetBinary(code string) error {
	images, err := ReadBinary(code)
	if err != nil {
		return err
	}
	m.PTX, m.File, m.Builtin = "", "", ""
	m.Binary, m.images = code, images
	return nil
}

// Code is code of kernels that has been checked. Several requests can use it.
type Code struct {
	Text      string
	Signature *Signature // of PTX
	Images    []*Image   // of a cubin or fatbin
}

// ReadCode checks PTX, a cubin or a fatbin. It finds the same problems as Parse and Check find without a device.
func ReadCode(text string) (*Code, error) {
	if IsBinary(text) {
		images, err := ReadBinary(text)
		return &Code{Text: text, Images: images}, err
	}
	s, isPTX := ReadPTX(text)
	if !isPTX || strings.IndexByte(text, 0) >= 0 {
		return nil, fmt.Errorf("neither PTX (.version is missing, or there are zero bytes) nor a cubin or fatbin")
	}
	return &Code{Text: text, Signature: s}, nil
}

// Kind returns ptx, cubin or fatbin.
func (c *Code) Kind() string {
	switch {
	case c.Signature != nil:
		return "ptx"
	case strings.HasPrefix(c.Text, elfMagic):
		return "cubin"
	}
	return "fatbin"
}

// MemorySize estimates how many bytes of memory the code and its declarations take.
func (c *Code) MemorySize() int64 {
	total := allocated(len(c.Text))
	if c.Signature != nil {
		total += c.Signature.memorySize()
	}
	for _, image := range c.Images {
		total += size[Image](1) + image.memorySize()
	}
	return total
}

// Resolve sets the code of a module that refers to stored code.
func (m *Module) Resolve(c *Code) {
	if c.Signature != nil {
		m.PTX = c.Text
	} else {
		m.Binary, m.images = c.Text, c.Images
	}
}

// Code returns the code for the driver: PTX, a cubin or a fatbin.
func (m *Module) Code() string {
	switch {
	case m.Builtin != "":
		return blasPTX()
	case m.Binary != "":
		return m.Binary
	}
	return m.PTX
}

// binary checks a cubin or fatbin, and returns the declarations of its kernels, or nil if there is a problem
// or the device is unknown and no image has them.
func (c *checker) binary(m *Module, where string) *Signature {
	d := c.w.Device
	if d == nil {
		for _, image := range m.images {
			if !image.Compressed {
				return &image.Signature
			}
		}
		return nil
	}
	image := chooseImage(m.images, d.Arch)
	switch {
	case image == nil:
		var targets []string
		for _, image := range m.images {
			targets = append(targets, fmt.Sprintf("sm_%d", image.Target))
		}
		c.problems.add(Unsupported, where, "the code is for %s, but %s is sm_%d", strings.Join(targets, ", "), d.Name, d.Arch)
		return nil
	case image.Compressed, image.Entries == nil:
		c.problems.add(Unsupported, where, "the code for sm_%d is compressed or too long, so that its kernels are unknown: build the fatbin with fatbinary --compress=false, or send the cubin", image.Target)
		return nil
	}
	return &image.Signature
}
