package scale

import "github.com/gfaas/gfaas/pkg/reason"

const (
	noLoadYet    reason.Code = "no-load-yet"
	noInstance   reason.Code = "no-instance"
	loadAbove    reason.Code = "load-above"
	loadBelow    reason.Code = "load-below"
	beyondLimits reason.Code = "beyond-limits"
	loadNeeds    reason.Code = "load-needs"
	loadMayNeed  reason.Code = "load-may-need"
	missingRPS   reason.Code = "throughput-missing"
	excessRPS    reason.Code = "throughput-excess"
	idle         reason.Code = "idle"
	belowMinimum reason.Code = "below-minimum"
	aboveMaximum reason.Code = "above-maximum"
)

// Reasons documents the codes of actions and snapshots. If the bounds change what a rule decided, the
// reason is that of the rule, with the bound as a further parameter.
var Reasons = reason.Table{
	reason.Doc(noLoadYet, "no load was reported yet"),
	reason.Doc(noInstance, "there is a load, and no instance", documented("rps", "load")...),
	reason.Doc(loadAbove, "`values` of the last `window` loads are above the throughput of the instances", documented("values", "number of loads above", "window", "number of last loads", "rps", "throughput of the instances")...),
	reason.Doc(loadBelow, "`values` of the last `window` loads are below the throughput of fewer instances", documented("values", "number of loads below", "window", "number of last loads", "rps", "throughput of fewer instances")...),
	reason.Doc(beyondLimits, "the load is above the throughput of the instances at their quota limits", documented("rps", "load", "instances", "number of instances")...),
	reason.Doc(loadNeeds, "the load needs `instances` instances", documented("rps", "load, possibly an estimate", "instances", "number of instances")...),
	reason.Doc(loadMayNeed, "the load needs `instances` instances, or needed them in the last `seconds` seconds", documented("rps", "load", "instances", "number of instances", "seconds", "time after which an instance is rarely needed again")...),
	reason.Doc(missingRPS, "the throughput of the instances is less than the load", documented("rps", "load, possibly an estimate", "missing_rps", "the difference")...),
	reason.Doc(excessRPS, "the throughput of the instances is at least the load", documented("rps", "load, possibly an estimate", "excess_rps", "the difference")...),
	reason.Doc(idle, "no request arrived during the idle time after which the instances stop", "idle_ms", "the idle time"),
	reason.Doc(belowMinimum, "there were fewer instances than the minimum", "min", "the minimum"),
	reason.Doc(aboveMaximum, "there were more instances than the maximum", "max", "the maximum"),
}

// documented appends the parameters that bounds add to the reason of a rule.
func documented(params ...string) []string {
	return append(params, "max", "maximum that prevents further starts", "min", "minimum that prevents further stops",
		"one_until_idle_ms", "the last instance stays until no request has arrived for this time")
}
