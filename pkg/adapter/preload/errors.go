package preload

import "fmt"

// ProgramError says why a program cannot run under a slice: the preload
// library would never be loaded into it, or could not work there.
type ProgramError struct {
	File   string // the program or, for a script, its interpreter
	Reason string // reads after "FILE "
	Remedy string
}

func (e *ProgramError) Error() string { return e.File + " " + e.Reason }

// Unavailable reports true: what is missing is a program that can be limited.
func (e *ProgramError) Unavailable() bool { return true }

// Hint is what to do about it.
func (e *ProgramError) Hint() string { return e.Remedy }

// NotFoundError says that a command, or an interpreter that a script names,
// does not exist.
type NotFoundError struct {
	Command string
	By      string // the script that asked for it; empty for the command itself
	Err     error
}

func (e *NotFoundError) Error() string {
	if e.By != "" {
		return fmt.Sprintf("%s: command not found (interpreter of %s)", e.Command, e.By)
	}
	return e.Command + ": command not found"
}

func (e *NotFoundError) Unwrap() error { return e.Err }

// Unavailable reports true.
func (e *NotFoundError) Unavailable() bool { return true }

// Hint is what to do about it.
func (e *NotFoundError) Hint() string {
	return "give the path of the program, or add its folder to PATH"
}

// libError says that a library of ours is missing or cannot be used.
type libError struct {
	Message string
	Remedy  string
}

func (e *libError) Error() string { return e.Message }

// Unavailable reports true.
func (e *libError) Unavailable() bool { return true }

// Hint is what to do about it.
func (e *libError) Hint() string { return e.Remedy }
