// Package gate judges what was measured, for continuous integration: it applies
// conditions (Gate) to rows, compares rows with an older profile (Baseline), and
// reports the findings, also as JUnit XML.
//
// A figure counts as its 95% confidence interval, where that is known: a finding is
// Tripped only if the whole interval says so, and Doubtful if a part of it does. The
// commands gfaas-profile run and load call the package; it neither reads nor writes
// files, and all functions are safe for concurrent use.
package gate
