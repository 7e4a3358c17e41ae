package docker

// PID is for tests to see.
var PID = (*Runtime).PID

// Fence is for tests to see.
var Fence = fence
