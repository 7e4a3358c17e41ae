// Package journal writes the rows and trials of a run to files, one at a time, and
// resumes the files of an earlier run.
//
// File and Trials are the writers of profiles and of trials for the goodput; Stream
// writes a profile to a pipe.
//
// Invariants:
//   - A row is on the disk when Append returns. A crash tears at most the last line,
//     which the next run drops.
//   - A run that measures nothing changes no file: a file is created or replaced with
//     the first row.
//   - One process at a time writes to a profile; others get an *InUseError.
//
// The commands gfaas-profile run and import call the package. Only Trials is safe for
// concurrent use.
package journal
