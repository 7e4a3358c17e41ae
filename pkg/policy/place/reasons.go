package place

import (
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Codes of unplaced demand.
const (
	notInProfile    reason.Code = "not-in-profile"
	noThroughput    reason.Code = "no-throughput"
	onlyBatches     reason.Code = "only-batches"
	sloTooTight     reason.Code = "slo-too-tight"
	sloTooTightIdle reason.Code = "slo-too-tight-at-rest"
	noGPU           reason.Code = "no-gpu"
	noGPUOfModel    reason.Code = "no-gpu-of-model"
	gpuTooSmall     reason.Code = "gpu-too-small"
	nodeTooSmall                = online.NodeTooSmall
	weightsTooLarge reason.Code = "weights-too-large"
	gpusFull        reason.Code = "gpus-full"
	gpusFullBeside  reason.Code = "gpus-full-beside-running"
	noMemory        reason.Code = "no-memory"
	noSlot          reason.Code = "no-slot"
)

// Codes of starts and stops of a revision.
const (
	moreDemand     reason.Code = "more-demand"
	lessDemand     reason.Code = "less-demand"
	movedFrom      reason.Code = "moved-from"
	movedTo        reason.Code = "moved-to"
	notInDemand    reason.Code = "not-in-demand"
	notInInventory reason.Code = "gpu-not-in-inventory"
	otherSpan      reason.Code = "other-number-of-gpus"
	sloMissed      reason.Code = "slo-missed"
	notMeasured    reason.Code = "configuration-not-measured"
	noBatches      reason.Code = "no-batches"
	memoryTaken    reason.Code = "memory-taken"
	placeTaken     reason.Code = "place-taken"
)

// Reasons documents the codes of unplaced demand and of changes. Package online has further ones.
var Reasons = reason.Table{
	reason.Doc(notInProfile, "the profile has no row of the function"),
	reason.Doc(noThroughput, "the throughput of every configuration in the profile is 0"),
	reason.Doc(onlyBatches, "every configuration has a batch above 1, but instances of the function get one request at a time (it has neither `batcher` nor `inflight`)"),
	reason.Doc(sloTooTight, "no configuration meets the objective", configParams("slo_ms", "objective", "best_p95_ms", "p95 of the fastest configuration")...),
	reason.Doc(sloTooTightIdle, "no configuration answers even a request to an idle instance within the objective, usually because of the pauses of a small quota", configParams("slo_ms", "objective", "idle_ms", "latency of such a request with the fastest configuration, measured or an upper bound")...),
	reason.Doc(noGPU, "the inventory has no GPU"),
	reason.Doc(noGPUOfModel, "the inventory has no GPU of a model on which the function was measured", "measured", "those models", "inventory", "models of the inventory"),
	reason.Doc(gpuTooSmall, "no GPU has enough memory", "needed_mib", "memory of the smallest configuration", "free_mib", "largest free memory of a GPU"),
	reason.Doc(weightsTooLarge, "every configuration has larger weights than the current plan keeps for the model", "model", "name of the model"),
	reason.Doc(gpusFull, "no GPU has room even for the smallest configuration", limitParams(append([]string{"gpus", "GPUs in the inventory"}, tooSmallParams...)...)...),
	reason.Doc(gpusFullBeside, "no GPU has room even for the smallest configuration, next to the instances that keep their places", limitParams(append([]string{"gpus", "GPUs in the inventory"}, tooSmallParams...)...)...),
	reason.Doc(noMemory, "a GPU has enough SM time for a configuration, but not enough memory; with `max_per_gpu`, no GPU has SM time, memory and a place for one more instance", limitParams("gpus", "GPUs in the inventory", "mem_mib", "memory of the configuration")...),
	reason.Doc(noSlot, "a GPU has room for a configuration, but already has the largest permitted number of instances", limitParams("gpus", "GPUs in the inventory")...),

	reason.Doc(moreDemand, "starts because the running instances serve less than the function's demand", "rps", "the demand"),
	reason.Doc(lessDemand, "stops because the running instances serve more than the function's demand", "rps", "the demand"),
	reason.Doc(movedFrom, "starts in place of an equal instance, which stops to make room", "instance", "the instance that stops", "gpu", "the GPU where it stops"),
	reason.Doc(movedTo, "stops to make room; an equal instance starts elsewhere", "instance", "the instance that starts", "gpu", "the GPU where it starts"),
	reason.Doc(notInDemand, "stops because the function is no longer in the demand"),
	reason.Doc(notInInventory, "stops because its GPU is no longer in the inventory"),
	reason.Doc(otherSpan, "stops because instances of the function now span another number of GPUs", "gpus", "GPUs of this instance", "wanted", "GPUs of an instance now"),
	reason.Doc(sloMissed, "stops because its configuration does not meet the objective", configParams("p95_ms", "p95 of the configuration", "slo_ms", "objective")...),
	reason.Doc(notMeasured, "stops because the profile has no row with its configuration that fits its GPU", configParams()...),
	reason.Doc(noBatches, "stops because its configuration has a batch above 1, but instances of the function get one request at a time", configParams()...),
	reason.Doc(memoryTaken, "stops because its GPU does not have enough memory for it"),
	reason.Doc(placeTaken, "stops because its place on the GPU is not free"),
}

// configParams returns parameters followed by those of config.
func configParams(params ...string) []string {
	return append(params, "sm_pct", "SM share of the configuration", "quota", "its quota", "batch", "its batch size", "gpu_model", "GPU model on which it was measured")
}

// limitParams returns configParams followed by the parameter that AtMost adds.
func limitParams(params ...string) []string {
	return append(configParams(params...), "max_per_gpu", "limit on instances of a GPU")
}

// tooSmallParams documents the parameters that withTooSmall adds.
var tooSmallParams = []string{"too_small", "GPUs among them whose free memory is too small for any configuration of the function (omitted if 0)", "needed_mib", "least memory of a configuration on those GPUs"}

// config returns the parameters that describe a configuration.
func config(r profile.Row) []reason.Param {
	params := []reason.Param{reason.Number("sm_pct", r.SMPct), reason.Number("quota", r.Quota), reason.Number("batch", r.Batch)}
	if r.GPU != "" {
		params = append(params, reason.Text("gpu_model", r.GPU))
	}
	return params
}

// about returns a reason about a configuration.
func about(r profile.Row, code reason.Code, params ...reason.Param) reason.Reason {
	return reason.New(code, append(params, config(r)...)...)
}

// full returns the reason why no GPU has room even for the function's smallest configuration.
func (w *functionDemand) full(code reason.Code, gpus int, in Input) reason.Reason {
	return in.withTooSmall(about(w.smallest(), code, reason.Number("gpus", gpus)), w.rows)
}

// withTooSmall returns why with the number of GPUs of the inventory that have too little memory for each of the
// rows measured on their model, after the parameter gpus.
func (in Input) withTooSmall(why reason.Reason, rows []profile.Row) reason.Reason {
	count, needed := 0, math.Inf(1)
	for _, d := range in.Devices {
		suited := filter(rows, func(r profile.Row) bool { return matches(r, d) })
		if len(suited) == 0 {
			continue
		}
		if least := slices.MinFunc(suited, byMemory).GPUMemMiB; gpu.FromMiB(least) > freeMemory(d) {
			count, needed = count+1, min(needed, least)
		}
	}
	why.Params = slices.DeleteFunc(slices.Clone(why.Params), func(p reason.Param) bool { return p.Key == "too_small" || p.Key == "needed_mib" })
	if count > 0 {
		at := 1 + slices.IndexFunc(why.Params, func(p reason.Param) bool { return p.Key == "gpus" })
		why.Params = slices.Insert(why.Params, at, reason.Number("too_small", count), reason.Number("needed_mib", needed))
	}
	return why
}

// lacksMemory returns the reason why a configuration that would have room is not placed.
func lacksMemory(r profile.Row, gpus int) reason.Reason {
	return about(r, noMemory, reason.Number("gpus", gpus), memory(r))
}

func memory(r profile.Row) reason.Param { return reason.Number("mem_mib", r.GPUMemMiB) }

// restateReasons replaces padded memory by measured memory in the reasons of a plan for the padded
// input.
func (in Input) restateReasons(unplaced []plan.Unplaced, padded Input) {
	rows := map[string][]profile.Row{}
	if len(unplaced) > 0 {
		for _, w := range in.functionDemands() {
			rows[w.demand.Function] = w.rows
		}
	}
	for i := range unplaced {
		u := &unplaced[i]
		why, err := reason.Parse(u.Reason)
		if err == nil && (why.Code == gpusFull || why.Code == gpusFullBeside) {
			u.Reason = in.withTooSmall(why, rows[u.Function]).String()
		}
		if err != nil || why.Code != noMemory {
			continue
		}
		for k, r := range in.Profile {
			shown := lacksMemory(padded.Profile[k], 0)
			if r.Function == u.Function && !slices.ContainsFunc(shown.Params, func(p reason.Param) bool { return p.Key != "gpus" && why.Get(p.Key) != p.Value() }) {
				u.Reason = why.With(memory(r)).String()
				break
			}
		}
	}
}

// limitReason returns a reason of a plan with at most limit instances on a GPU. If limited is false,
// the plan expresses slots as memory.
func limitReason(text string, limit int, limited bool) string {
	why, err := reason.Parse(text)
	if err != nil {
		return text
	}
	if why.Code == noMemory && !limited {
		why.Code = noSlot
		why.Params = slices.DeleteFunc(slices.Clone(why.Params), func(p reason.Param) bool { return p.Key == "mem_mib" })
	}
	return why.With(reason.Number("max_per_gpu", limit)).String()
}
