// Package events reads and writes what happens in a cluster of GPUs: instances
// of functions start and stop (docs/files.md).
package events

// Event is the start or the stop of an instance. What it needs, it needs of
// each of its GPUs; a stop says nothing of it.
type Event struct {
	Time      float64 // seconds
	Start     bool
	Instance  string
	Function  string
	Kind      string // training, inference, llm or any other word
	GPUs      int    // on one node
	SMRequest float64
	SMLimit   float64 // fractions of a GPU's SMs, at least SMRequest
	MemMiB    float64
	Models    []string // of GPU that will do; none: any
	Line      int
}

// Words of the column action.
const (
	start = "start"
	stop  = "stop"
)

// Log is a file of events in the order of time, those of one instant in the
// order of the file.
type Log struct {
	Events []Event
	Sorted bool // the file was in another order
}
