// Package simtest runs ordinary programs of the CUDA driver API on the simulated
// driver that make built, several at once, and looks at what they leave behind.
package simtest
