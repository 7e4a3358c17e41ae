package bolt

var (
	// Header returns the first line of the state file with this database.
	Header = header
	// TryLock reports whether it has locked a file that is the current generation.
	TryLock = tryLock
)
