package kernel

import (
	"strconv"
	"time"
)

// phases are the times that a request spends in its phases. They do not cover all of its time: for
// example, the start of an executor and the transfer of an object from another GPU belong to none.
type phases [len(phaseNames)]time.Duration

// phaseNames are the names of the phases.
var phaseNames = [...]string{"queue", "link", "copy-in", "run", "copy-out"}

// add adds the times of another request.
func (p *phases) add(o *phases) {
	for i := range p {
		p[i] += o[i]
	}
}

// Phases are the times of a request, or of several, in milliseconds.
type Phases struct {
	QueueMS   float64 `json:"queue_ms"`    // from the arrival to the dispatch
	LinkMS    float64 `json:"link_ms"`     // loading and linking modules
	CopyInMS  float64 `json:"copy_in_ms"`  // evicting, allocating, clearing and copying to the GPU
	RunMS     float64 `json:"run_ms"`      // the kernels
	CopyOutMS float64 `json:"copy_out_ms"` // copying results to the host
}

func (p *phases) encode() Phases {
	return Phases{ms(p[0]), ms(p[1]), ms(p[2]), ms(p[3]), ms(p[4])}
}

// serverTiming returns the phases and the total as the value of the HTTP header Server-Timing.
func (a *Answer) serverTiming() string {
	const usual = 128 // bytes
	p, text := &a.Phases, make([]byte, 0, usual)
	for i, v := range [...]float64{p.QueueMS, p.LinkMS, p.CopyInMS, p.RunMS, p.CopyOutMS} {
		text = append(append(text, phaseNames[i]...), ";dur="...)
		text = append(strconv.AppendFloat(text, v, 'f', 3, 64), ", "...)
	}
	return string(strconv.AppendFloat(append(text, "total;dur="...), a.TotalMS, 'f', 3, 64))
}
