package plan

import "github.com/gfaas/gfaas/pkg/gpu"

// meets is how far apart, in windows, turns may be that are one.
const meets = 1e-9

// Turns are the parts of the window that the plan gives each instance on the
// GPU, by id, in order: under the model "rect" what its rectangle covers, under
// "tokens" the entries of the schedule that name it, as one where they meet.
// They mean something only on a GPU without a fault of verify's.
func (g GPU) Turns() map[string][]gpu.Turn {
	turns := map[string][]gpu.Turn{}
	give := func(id string, from, to float64) {
		from, to = max(from, 0), min(to, 1)
		if before := turns[id]; len(before) > 0 && from-before[len(before)-1].To < meets {
			before[len(before)-1].To = to
		} else if from < to {
			turns[id] = append(before, gpu.Turn{From: from, To: to})
		}
	}
	for _, in := range g.Instances {
		if in.X != nil {
			give(in.ID, *in.X, *in.X+in.QuotaRequest)
		}
	}
	at := 0.0
	for _, entry := range g.Schedule {
		for _, id := range entry.Instances {
			give(id, at, at+entry.Duration)
		}
		at += entry.Duration
	}
	return turns
}
