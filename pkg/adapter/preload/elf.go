package preload

import (
	"debug/elf"
	"io"
	"path"
	"runtime"
	"strings"
)

// machines maps our architectures to those of ELF files.
var machines = map[string]elf.Machine{
	"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "ppc64le": elf.EM_PPC64, "riscv64": elf.EM_RISCV,
}

// checkELF says whether glibc's loader will start this program, with the
// preload library in it.
func checkELF(name string, r io.ReaderAt) error {
	f, err := elf.NewFile(r)
	if err != nil {
		return &ProgramError{name, "is neither an ELF program nor a script with a #! line", "name its interpreter in such a line, or before it: sh " + name}
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Machine != machines[runtime.GOARCH] {
		return &ProgramError{name, "is built for another machine (" + f.Class.String() + ", " + f.Machine.String() + ")",
			"build it for " + runtime.GOARCH}
	}
	static := &ProgramError{name, "is statically linked: the preload library cannot be loaded into it", "link it dynamically with glibc"}
	loader := programLoader(f)
	if loader == "" {
		return static
	}
	needed, err := f.ImportedLibraries()
	if err != nil || len(needed) == 0 {
		return static
	}
	for _, lib := range needed {
		if strings.HasPrefix(lib, "libc.musl") || lib == "libc.so" {
			return foreignLibc(name, loader)
		}
	}
	if !isGlibcLoader(path.Base(loader)) {
		return foreignLibc(name, loader)
	}
	return nil
}

func foreignLibc(name, loader string) error {
	libc := "another libc than glibc (its loader is " + loader + ")"
	if strings.Contains(loader, "musl") {
		libc = "musl"
	}
	return &ProgramError{name, "is linked with " + libc + ": the preload library cannot be loaded into it",
		"build it on a system with glibc: Debian, Ubuntu, Fedora"}
}

// isGlibcLoader knows the names of glibc's loader on every architecture.
func isGlibcLoader(base string) bool {
	for _, prefix := range []string{"ld-linux", "ld-lsb", "ld64.so", "ld.so"} {
		if strings.HasPrefix(base, prefix) {
			return true
		}
	}
	return false
}

// programLoader is the PT_INTERP of a program; empty when it has none.
func programLoader(f *elf.File) string {
	const longest = 4096
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz == 0 || p.Filesz > longest {
			continue
		}
		text := make([]byte, p.Filesz)
		if _, err := p.ReadAt(text, 0); err != nil {
			return ""
		}
		return strings.TrimRight(string(text), "\x00")
	}
	return ""
}
