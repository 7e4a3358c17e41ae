package ports

// UnavailableError reports that a dependency, such as a daemon, a library or a program, is
// missing or cannot be used. Unavailable and Hint find it in the chain of an error.
type UnavailableError struct {
	Err    error
	Remedy string // the next step for the user; may be empty
}

func (e *UnavailableError) Error() string { return e.Err.Error() }
func (e *UnavailableError) Unwrap() error { return e.Err }

// Unavailable returns true.
func (e *UnavailableError) Unavailable() bool { return true }

// Hint returns Remedy.
func (e *UnavailableError) Hint() string { return e.Remedy }
