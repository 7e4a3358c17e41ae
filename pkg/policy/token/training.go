package token

import "slices"

// capTraining lowers the limits of training instances to their requests while a launch cycle of an
// SLO-sensitive instance stretches. A training job has no deadline for an iteration, so it gives up the
// share beyond its request before the stretch is an emergency. Algorithm 2 knows only requests and
// limits, and lets a best-effort instance keep its share until then. When no cycle stretches, the share
// grows again as that of any best-effort instance. While all SLO-sensitive instances are quiet, the jobs
// have their limits, so that they can be issued the rest of the GPU (rule 5 in scaling.go).
func (s *scaling) capTraining() {
	capped := slices.ContainsFunc(s.instances, s.stretches) && !s.objectivesQuiet()
	for _, i := range s.instances {
		if i.capped = capped && i.training; i.capped {
			i.scaledShare = min(i.scaledShare, i.request)
		}
	}
}

// stretches reports whether the instance is SLO-sensitive and its last launch cycle was longer than the
// shortest by the factor below which an emergency ends, or more.
func (s *scaling) stretches(i *meteredInstance) bool {
	return i.sensitive && len(i.clients) > 0 && !s.empty(i) && (i.phase == emergency || i.cycle.stretch >= s.params.recovery)
}

// currentLimit returns the limit of the instance's share at present.
func (i *meteredInstance) currentLimit() float64 {
	if i.capped {
		return i.request
	}
	return i.limit
}
