// Package logs stores the output of processes in log files of limited size, with the time
// of each line. A log continues after the program that started the process has ended.
// Package process writes such logs, and Read serves gfaas logs.
//
// A log is a folder with the files current and previous, each of at most MaxFile bytes;
// when current is full, it becomes previous. A separate program, the keeper, writes them:
// it runs in a session of its own, reads the pipe that the process prints to, holds a lock
// on the file lock, and ends when the last process closes the pipe. If the disk is full or
// does not answer, the keeper continues to read and notes in the log how many bytes are
// missing, so printing never blocks for long.
//
// Each line of a file consists of the time (RFC 3339 with nanoseconds), F, or P if the line
// continues in the next record, and the text, separated by blanks. Kubernetes uses this
// format for containers, with the name of the stream in addition.
package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/owndir"
)

// MaxFile is the approximate size limit of each of a log's two files, in bytes.
const MaxFile = 8 << 20

// Files of a log.
const (
	currentFile  = "current"
	previousFile = "previous"
	nextFile     = "next" // exists only while it replaces current
	lockName     = "lock"
)

// ResultFile is the file in a log's folder that holds the result of a job (pkg/adapter/job). Remove
// removes it together with the log.
const ResultFile = "result.json"

const (
	stamp   = "2006-01-02T15:04:05.000000000Z"
	whole   = 'F'
	partial = 'P'
	// maxRecord is the length limit of a line in a file, including the newline.
	maxRecord = len(stamp) + len(" F ") + ports.MaxLogLine + 1
)

// appendLine appends a line of a file to a buffer; text has at most ports.MaxLogLine bytes.
func appendLine(to []byte, at time.Time, text []byte, tag byte) []byte {
	to = at.UTC().AppendFormat(to, stamp)
	to = append(to, ' ', tag, ' ')
	to = append(to, text...)
	return append(to, '\n')
}

// parseLine parses a line of a file. It returns a damaged line as text without a time.
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

// open opens a log's folder. The folder and its parent must belong to the user, since the
// owner of the parent could replace the folder.
func open(dir string) (*os.Root, error) {
	parent, err := owndir.Open(filepath.Dir(filepath.Clean(dir)))
	if err != nil {
		return nil, err
	}
	_ = parent.Close()
	return owndir.Open(dir)
}
