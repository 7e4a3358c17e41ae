// Package logs keeps what a process prints: bounded, each line with its time, and
// for as long as there is somebody to print, whoever started it.
//
// A log is a folder of its own, in a folder of logs, with the files current and previous, each of at
// most MaxFile: when current is full it becomes previous. Who writes them is the
// keeper, a program in a session of its own that reads the pipe the process
// prints to and ends with the last who has the pipe open. It locks the file lock
// while it lives. A keeper that cannot write, because the disk is full or does
// not answer, goes on reading and says in the log what is missing: printing blocks
// nobody for long.
//
// A line of a file is the time in RFC 3339 with nanoseconds, F or, when the line
// goes on in the next, P, and the text, separated by blanks: the form in which
// Kubernetes keeps those of containers, less the name of the stream.
package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/owndir"
)

// MaxFile is about how long each of the two files of a log may be, in bytes.
const MaxFile = 8 << 20

// Files of a log.
const (
	currentFile  = "current"
	previousFile = "previous"
	nextFile     = "next" // for the moment in which it becomes current
	lockName     = "lock"
)

const (
	stamp   = "2006-01-02T15:04:05.000000000Z"
	whole   = 'F'
	partial = 'P'
	// maxRecord is the longest line of a file, its end included.
	maxRecord = len(stamp) + len(" F ") + ports.MaxLogLine + 1
)

// appendLine adds a line of a file; text is at most ports.MaxLogLine.
func appendLine(to []byte, at time.Time, text []byte, tag byte) []byte {
	to = at.UTC().AppendFormat(to, stamp)
	to = append(to, ' ', tag, ' ')
	to = append(to, text...)
	return append(to, '\n')
}

// parseLine reads a line of a file. One that is damaged is all text.
func parseLine(record []byte) ports.LogLine {
	record = bytes.TrimSuffix(record, []byte{'\n'})
	head := len(stamp)
	if len(record) > head+2 && record[head] == ' ' && record[head+2] == ' ' && (record[head+1] == whole || record[head+1] == partial) {
		if at, err := time.Parse(stamp, string(record[:head])); err == nil {
			return ports.LogLine{Time: at, Text: string(record[head+3:]), Partial: record[head+1] == partial}
		}
	}
	return ports.LogLine{Text: string(record)}
}

// open opens a log's folder, which is the user's own as is the one it is in: who
// owned that could put another in its place.
func open(dir string) (*os.Root, error) {
	above, err := owndir.Open(filepath.Dir(filepath.Clean(dir)))
	if err != nil {
		return nil, err
	}
	_ = above.Close()
	return owndir.Open(dir)
}
