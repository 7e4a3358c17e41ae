// Package measure is the use case behind gfaas-profile run: it measures the load
// that one instance of a function sustains under each configuration of a slice, and
// returns the rows of a profile.
//
// A Job describes the functions, the configurations and the load. Run starts an
// instance for each configuration on a testbed, loads it, and passes each row to
// a RowWriter as soon as it is measured. A Progress observes the run.
//
// Invariants:
//   - One instance at a time runs on each testbed, and it is stopped before the
//     next one starts. If it cannot be stopped, the run ends with a *StopError.
//   - A row is complete when it is passed to the RowWriter, and is passed once.
//   - A configuration that cannot be measured is a Failure and has no row. An
//     error that every further configuration would meet ends the run.
//   - With one testbed, rows are in the order in which the search asked for them.
//     With several, they are in the order of the job.
//
// Subpackages: testbed is the port to GPUs and instances, and local implements it for
// this system; journal writes rows and trials to files; gate judges results; gpus
// chooses and locks GPUs; figures derives figures from loads; loadtest measures running
// servers; recorded searches recorded profiles; and outlook plans from them. The
// commands call these packages, which print nothing themselves.
package measure
