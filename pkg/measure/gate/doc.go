// Package gate judges measurements, for continuous integration: it applies
// conditions (Gate) to rows, compares rows with an older profile (Baseline), and
// reports the findings, also as JUnit XML.
//
// A figure counts as its 95% confidence interval, where that is known: a finding is
// Tripped only if it holds for the whole interval, and Doubtful if it holds for a part. The
// commands gfaas-profile run and load call the package; it neither reads nor writes
// files, and all functions are safe for concurrent use.
package gate
