package preload

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// Files gives access to a file system with programs: the host's or an image's.
type Files interface {
	// Find returns the path of the program that a command name selects. It returns
	// fs.ErrNotExist if there is none and fs.ErrPermission if it is not executable.
	Find(command string) (string, error)
	// Open opens a program, following symbolic links, and returns its mode and whether it
	// has file capabilities.
	Open(path string) (f File, mode fs.FileMode, capable bool, err error)
}

// File is an open program.
type File interface {
	io.ReaderAt
	io.Closer
}

// maxScripts limits the nesting of interpreters that are scripts, as the kernel does.
const maxScripts = 5

// CheckProgram returns an error if the preload library would not be loaded into a command:
// the program is static, linked with another libc than glibc, setuid, or built for another
// architecture. It follows #! lines. Unless the lookup fails, the error is a *notFoundError
// or a *ProgramError. Both name the file and have a method Unavailable that returns true.
func CheckProgram(files Files, command string) error {
	_, err := resolve(files, command)
	return err
}

// resolve checks a command and returns the path of its ELF program.
func resolve(files Files, command string) (program string, err error) {
	script := ""
	for range maxScripts {
		file, err := files.Find(command)
		if err != nil {
			return "", lookupError(command, script, err)
		}
		next, err := checkFile(files, file)
		if err != nil || next == "" {
			return file, err
		}
		script, command = file, next
	}
	return "", &ProgramError{script, "is a script whose interpreters are all scripts", ""}
}

// lookupError converts the error of Files.Find.
func lookupError(command, script string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound), errors.Is(err, unix.ENOTDIR):
		return &notFoundError{Command: command, By: script, Err: err}
	case errors.Is(err, unix.EISDIR):
		return &ProgramError{command, "is a folder, expected a program", "give the path of a program in it"}
	case errors.Is(err, fs.ErrPermission):
		return &ProgramError{command, "cannot be executed: permission denied", "check its mode: chmod +x"}
	}
	return fmt.Errorf("look up %s: %w", command, err)
}

// checkFile checks one file. If it is a script, next is the interpreter.
func checkFile(files Files, name string) (next string, err error) {
	f, mode, capable, err := files.Open(name)
	if err != nil {
		return "", &ProgramError{name, "cannot be read: " + err.Error(), "make it readable, so that gfaas can check it"}
	}
	defer f.Close()
	head := make([]byte, 256)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", &ProgramError{name, "cannot be read: " + err.Error(), ""}
	}
	if head = head[:n]; strings.HasPrefix(string(head), "#!") {
		return interpreter(name, head)
	}
	switch {
	case mode&fs.ModeSetuid != 0:
		return "", &ProgramError{name, "is setuid, so the loader ignores LD_PRELOAD", "run a copy without the setuid bit"}
	case mode&fs.ModeSetgid != 0:
		return "", &ProgramError{name, "is setgid, so the loader ignores LD_PRELOAD", "run a copy without the setgid bit"}
	case capable:
		return "", &ProgramError{name, "has file capabilities, so the loader ignores LD_PRELOAD", "run a copy without them: setcap -r"}
	}
	return "", checkELF(name, f)
}

// interpreter parses the #! line of a script. Like the kernel, it treats a carriage return
// as part of a name.
func interpreter(name string, head []byte) (string, error) {
	line, _, _ := strings.Cut(string(head[2:]), "\n")
	words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(words) == 0 {
		return "", &ProgramError{name, "has a #! line that names no interpreter", ""}
	}
	found, err := interpreterFromEnv(name, words)
	if strings.HasSuffix(found, "\r") {
		return "", &ProgramError{name, "has a carriage return after the interpreter in its #! line", "convert its line ends: dos2unix " + name}
	}
	return found, err
}

// interpreterFromEnv returns the interpreter in the words of a #! line, or the command of env if the
// interpreter is env.
func interpreterFromEnv(name string, words []string) (string, error) {
	if path.Base(words[0]) != "env" {
		return words[0], nil
	}
	for i := 1; i < len(words); i++ {
		switch word := words[i]; {
		case word == "-i" || word == "-" || word == "--ignore-environment":
			return "", &ProgramError{name, "clears its environment with env " + word + ": LD_PRELOAD would be lost", "remove " + word + " from its #! line"}
		case word == "-u" || word == "-C":
			i++
		case strings.HasPrefix(word, "-"), strings.Contains(word, "="):
		default:
			return word, nil
		}
	}
	return words[0], nil
}

// host is the file system of this machine.
type host struct{}

func (host) Find(command string) (string, error) {
	if !strings.Contains(command, "/") {
		return exec.LookPath(command)
	}
	info, err := os.Stat(command)
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		return "", unix.EISDIR
	case !info.Mode().IsRegular() || unix.Access(command, unix.X_OK) != nil:
		return "", fs.ErrPermission
	}
	return command, nil
}

func (host) Open(name string) (File, fs.FileMode, bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, false, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, 0, false, err
	}
	n, err := unix.Fgetxattr(int(f.Fd()), "security.capability", nil)
	return f, info.Mode(), err == nil && n > 0, nil
}

// elfMachines maps Go architectures to ELF machines.
var elfMachines = map[string]elf.Machine{
	"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "ppc64le": elf.EM_PPC64, "riscv64": elf.EM_RISCV,
}

// checkELF returns an error unless glibc's loader starts the program and can load the
// preload library.
func checkELF(name string, r io.ReaderAt) error {
	f, err := elf.NewFile(r)
	if err != nil {
		return &ProgramError{name, "is neither an ELF program nor a script with a #! line", "name its interpreter in a #! line or on the command line: sh " + name}
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Machine != elfMachines[runtime.GOARCH] {
		return &ProgramError{name, "is built for another architecture (" + f.Class.String() + ", " + f.Machine.String() + ")",
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
	musl := func(lib string) bool { return strings.HasPrefix(lib, "libc.musl") || lib == "libc.so" }
	if slices.ContainsFunc(needed, musl) || !isGlibcLoader(path.Base(loader)) {
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

// isGlibcLoader reports whether base is the name of glibc's loader on any architecture.
func isGlibcLoader(base string) bool {
	return slices.ContainsFunc([]string{"ld-linux", "ld-lsb", "ld64.so", "ld.so"}, func(prefix string) bool {
		return strings.HasPrefix(base, prefix)
	})
}

// programLoader returns a program's PT_INTERP, or "" if there is none.
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

// Hooked reports whether a process has loaded the preload library; known is false if that
// cannot be determined.
func Hooked(pid int) (hooked, known bool) {
	maps, err := procfs.Maps(pid)
	if err != nil || len(maps) == 0 {
		return false, false
	}
	return strings.Contains(maps, "libgfaas.so"), true
}

// ProgramError reports that a program cannot run in a slice, because the preload library
// would not be loaded or would not work.
type ProgramError struct {
	File   string // the program or, for a script, its interpreter
	Reason string // follows "FILE " in the message
	Remedy string
}

func (e *ProgramError) Error() string { return e.File + " " + e.Reason }

// Unavailable returns true: a program that can be limited is missing.
func (e *ProgramError) Unavailable() bool { return true }

// Hint returns the remedy for the user.
func (e *ProgramError) Hint() string { return e.Remedy }

// notFoundError reports that a command or a script's interpreter does not exist.
type notFoundError struct {
	Command string
	By      string // the script that names the interpreter; empty for the command itself
	Err     error
}

func (e *notFoundError) Error() string {
	if e.By != "" {
		return fmt.Sprintf("%s: command not found (interpreter of %s)", e.Command, e.By)
	}
	return e.Command + ": command not found"
}

func (e *notFoundError) Unwrap() error { return e.Err }

// Is matches exec.ErrNotFound, whatever the system's error is.
func (e *notFoundError) Is(target error) bool { return target == exec.ErrNotFound }

// Unavailable returns true.
func (e *notFoundError) Unavailable() bool { return true }

// Hint returns a remedy for the user.
func (e *notFoundError) Hint() string {
	return "give the path of the program, or add its folder to PATH"
}
