package docker

// PID is for tests to see.
var PID = (*Runtime).pid
