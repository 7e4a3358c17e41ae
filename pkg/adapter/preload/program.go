package preload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Files is where programs are looked up: this machine, or an image.
type Files interface {
	// Find returns the path that a command name runs; fs.ErrNotExist when
	// there is none, fs.ErrPermission when it cannot be executed.
	Find(command string) (string, error)
	// Open opens a program and tells its mode, symbolic links followed, and
	// whether it carries file capabilities.
	Open(path string) (f File, mode fs.FileMode, capable bool, err error)
}

// File is an open program.
type File interface {
	io.ReaderAt
	io.Closer
}

// maxScripts bounds scripts whose interpreters are scripts, as the kernel does.
const maxScripts = 5

// CheckProgram reports why the preload library would not be loaded into a
// command: the program is static, linked with another libc than glibc, setuid,
// or for another machine. It follows #! lines. The error names the file and is
// Unavailable, a *NotFoundError or a *ProgramError, unless looking it up failed.
func CheckProgram(files Files, command string) error {
	_, err := resolve(files, command)
	return err
}

// resolve checks a command and returns the path of the ELF program it comes to.
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
	return "", &ProgramError{script, "is a script whose interpreters are scripts too, without end", ""}
}

// lookupError names what a failed look-up means.
func lookupError(command, script string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound), errors.Is(err, unix.ENOTDIR):
		return &NotFoundError{Command: command, By: script, Err: err}
	case errors.Is(err, unix.EISDIR):
		return &ProgramError{command, "is a folder, expected a program", "give the path of a program in it"}
	case errors.Is(err, fs.ErrPermission):
		return &ProgramError{command, "cannot be executed: permission denied", "check its mode: chmod +x"}
	}
	return fmt.Errorf("look up %s: %w", command, err)
}

// checkFile checks one file; next is the interpreter when it is a script.
func checkFile(files Files, name string) (next string, err error) {
	f, mode, capable, err := files.Open(name)
	if err != nil {
		return "", &ProgramError{name, "cannot be read: " + err.Error(), "only programs that can be read can be checked"}
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
		return "", &ProgramError{name, "is setuid: the loader ignores LD_PRELOAD there", "run a copy without the setuid bit"}
	case mode&fs.ModeSetgid != 0:
		return "", &ProgramError{name, "is setgid: the loader ignores LD_PRELOAD there", "run a copy without the setgid bit"}
	case capable:
		return "", &ProgramError{name, "has file capabilities: the loader ignores LD_PRELOAD there", "run a copy without them: setcap -r"}
	}
	return "", checkELF(name, f)
}

// interpreter reads the #! line at the head of a script. Blanks are what the
// kernel takes for them: a carriage return is part of a name.
func interpreter(name string, head []byte) (string, error) {
	line, _, _ := strings.Cut(string(head[2:]), "\n")
	words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(words) == 0 {
		return "", &ProgramError{name, "has a #! line that names no interpreter", ""}
	}
	found, err := named(name, words)
	if strings.HasSuffix(found, "\r") {
		return "", &ProgramError{name, "has a carriage return behind the interpreter in its #! line", "end its lines in line feeds alone: dos2unix " + name}
	}
	return found, err
}

// named is the interpreter that the words of a #! line name, behind env if it
// is that.
func named(name string, words []string) (string, error) {
	if path.Base(words[0]) != "env" {
		return words[0], nil
	}
	for i := 1; i < len(words); i++ {
		switch word := words[i]; {
		case word == "-i" || word == "-" || word == "--ignore-environment":
			return "", &ProgramError{name, "clears its environment with env " + word + ": LD_PRELOAD would be lost", "drop " + word + " from its #! line"}
		case word == "-u" || word == "-C":
			i++
		case strings.HasPrefix(word, "-"), strings.Contains(word, "="):
		default:
			return word, nil
		}
	}
	return words[0], nil
}

// host is this machine's own files.
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
