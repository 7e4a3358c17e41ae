package docker

// PID is for tests to see.
var PID = (*Runtime).PID

// Fence is for tests to see.
var Fence = fence

// Network is the network that instances are started in.
var Network = (*Runtime).network
