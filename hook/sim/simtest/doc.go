// Package simtest runs ordinary programs of the CUDA driver API on the built simulated
// driver, several at once, and checks their results and the files that they leave
// behind.
package simtest
