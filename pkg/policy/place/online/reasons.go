package online

import (
	"strings"

	"github.com/gfaas/gfaas/pkg/reason"
)

// Codes of placements, in the order in which Dilu's Algorithm 1 tries them.
const (
	besideSiblings reason.Code = "beside-siblings"
	bestFit        reason.Code = "best-fit"
	mostMemory     reason.Code = "most-memory"
	someNewGPUs    reason.Code = "some-new-gpus"
	newGPUs        reason.Code = "new-gpus"
)

// Codes of rejections.
const (
	NodeTooSmall reason.Code = "node-too-small"
	noNodeFits   reason.Code = "no-node-fits"
)

// Reasons documents the codes of decisions.
var Reasons = reason.Table{
	reason.Doc(besideSiblings, "on GPUs in use that host a friend of the function: another function whose instances already share GPUs with its instances"),
	reason.Doc(bestFit, "on the GPUs in use with the least remaining room"),
	reason.Doc(mostMemory, "on the GPUs in use with the most free memory"),
	reason.Doc(someNewGPUs, "partly on new GPUs, because too few GPUs in use of a node have room"),
	reason.Doc(newGPUs, "on new GPUs, because no GPU in use has room"),
	reason.Doc(NodeTooSmall, "an instance spans more GPUs than any node has", "gpus", "GPUs of the instance", "largest_node", "GPUs of the largest node"),
	reason.Doc(noNodeFits, "no node has enough GPUs with room", "gpus", "GPUs of the instance", "sm_request", "SM request on each GPU by the rule of the scheduler, as a fraction of the SMs",
		"sm_limit", "SM limit on each GPU, likewise", "mem_mib", "memory on each GPU", "models", "acceptable GPU models"),
}

// rejection returns the reason for a rejection. n holds the resources that the instance needs by the
// scheduler's rule; largestNode is the largest number of GPUs of a node.
func rejection(r Request, n resources, largestNode int) reason.Reason {
	if r.GPUs > largestNode {
		return reason.New(NodeTooSmall, reason.Number("gpus", r.GPUs), reason.Number("largest_node", largestNode))
	}
	params := make([]reason.Param, 0, 5)
	params = append(params, reason.Number("gpus", r.GPUs), reason.Number("sm_request", float64(n.request)/billion), reason.Number("sm_limit", float64(n.limit)/billion))
	if r.Mem > 0 {
		params = append(params, reason.Number("mem_mib", r.Mem.MiB()))
	}
	if len(r.Models) > 0 {
		params = append(params, reason.Text("models", strings.Join(r.Models, "|")))
	}
	return reason.New(noNodeFits, params...)
}
