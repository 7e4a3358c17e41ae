package placement

import "github.com/gfaas/gfaas/pkg/reason"

// Codes of placements, in addition to those of package online.
const (
	mostFreeMemory reason.Code = "most-free-memory"
	bestAreaFit    reason.Code = "best-area-fit"
	Cleared        reason.Code = "cleared"
	Refused        reason.Code = "start-refused"
	NoRoom         reason.Code = "no-free-gpus"
	NoRectangle    reason.Code = "no-free-rectangle"
)

// Reasons documents the codes of decisions. The placement dilu has those of gfaas-sim cluster.
var Reasons = reason.Table{
	reason.Doc(mostFreeMemory, "on the GPUs with the most free memory"),
	reason.Doc(bestAreaFit, "in the free rectangle that the instance fills best", "slack_pct", "area of the rest of this rectangle, in percent of the GPU"),
	reason.Doc(Cleared, "on GPUs where idle instances have stopped for it"),
	reason.Doc(Refused, "the queueing policy starts no instance on the chosen GPUs: earlier starts failed, or the number of instances there is limited"),
	reason.Doc(NoRoom, "too few GPUs have enough free memory", "gpus", "GPUs of the instance", "mem_mib", "memory on each GPU"),
	reason.Doc(NoRectangle, "too few GPUs have a free rectangle and enough free memory", "gpus", "GPUs of the instance", "sm_pct", "SM share", "quota", "quota request", "mem_mib", "memory on each GPU"),
}
