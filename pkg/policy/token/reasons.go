package token

import "github.com/gfaas/gfaas/pkg/reason"

// Codes of Grant, Revoke and waiting clients under multi-token.
const (
	belowRequest   reason.Code = "below-request"
	owesTime       reason.Code = "owes-time"
	aboveRequest   reason.Code = "above-request"
	usesLittle     reason.Code = "uses-little"
	handoverLimit  reason.Code = "hand-over-limit"
	budgetUsedUp   reason.Code = "budget-used-up"
	turnOfOther    reason.Code = "turn-of-other"
	smsNeeded      reason.Code = "sms-needed"
	waitingForSMs  reason.Code = "waiting-for-sms"
	afterOther     reason.Code = "after-other"
	leaseReturning reason.Code = "lease-returning"

	// Overlaps is the code of a draining client whose work continues well beyond its announced end.
	// Other clients may already have been granted its SMs.
	Overlaps reason.Code = "overlaps"
)

// Codes of both policies.
const (
	justRequested reason.Code = "just-requested"
	notDraining   reason.Code = "not-draining"
)

// Codes of Grant, Revoke, Budget and waiting clients under introspective.
const (
	byTokens           reason.Code = "by-tokens"
	metered            reason.Code = "metered"
	unmetered          reason.Code = "unmetered"
	tokensIssued       reason.Code = "tokens-issued"
	tokensUsedUp       reason.Code = "tokens-used-up"
	notMeasured        reason.Code = "not-measured"
	waitingForTrial    reason.Code = "waiting-for-trial"
	waitingForDrain    reason.Code = "waiting-for-drain"
	measuredAlone      reason.Code = "measured-alone"
	measured           reason.Code = "measured"
	otherMeasuredAlone reason.Code = "other-measured-alone"
)

// Codes of WakeAt.
const (
	windowEnd  reason.Code = "window-end"
	plannedEnd reason.Code = "planned-end"
	turnBegin  reason.Code = "turn-begin"
	periodEnd  reason.Code = "period-end"
	trialEnd   reason.Code = "trial-end"
)

// Reasons documents the codes of actions and clients. Times in the future count from the decision.
var Reasons = reason.Table{
	reason.Doc(belowRequest, "holds a lease: the instance has used less GPU time than its request in this window", leaseParams("missing_ms", "remaining part of the request")...),
	reason.Doc(owesTime, "holds a lease: the instance has used its request, and owes time to other instances", leaseParams("owed_ms", "time owed", "left_ms", "remaining budget up to the limit")...),
	reason.Doc(aboveRequest, "holds a lease: the instance has used its request, and the SMs are free", leaseParams("left_ms", "remaining budget up to the limit")...),
	reason.Doc(usesLittle, "holds a lease before its turn: the instance has used much less GPU time than its request in the last ten windows", leaseParams("missing_ms", "remaining part of the request")...),
	reason.Doc(handoverLimit, "uses little, but waits for its turn: a tenth of this window was spent on hand-overs to instances that use little", "in_ms", "time until the window ends"),
	reason.Doc(budgetUsedUp, "the instance has used its budget of this window", "left_ms", "remaining budget; negative if the instance used more"),
	reason.Doc(turnOfOther, "a lease would extend into the turn of another instance", "instance", "that instance", "in_ms", "time until its turn"),
	reason.Doc(smsNeeded, "another process needs the SMs", "client", "number of that process", "instance", "its instance", "missing_ms", "remaining part of its request", "owed_ms", "time that it owes", "left_ms", "its remaining budget up to its limit"),
	reason.Doc(waitingForSMs, "comes first in order, and waits until enough SMs are free", "sm_pct", "SM share of the instance", "in_ms", "time until enough leases have ended"),
	reason.Doc(afterOther, "waits for SMs, and another process comes first in order", "client", "number of that process", "instance", "its instance", "occupied_pct", "SMs that leases hold, in percent"),
	reason.Doc(Overlaps, "the work in flight continues beyond its announced end: other processes may already have the SMs"),
	reason.Doc(leaseReturning, "has requested the GPU again, and its previous lease is not returned yet"),

	reason.Doc(justRequested, "has requested the GPU, and the policy has not decided yet"),
	reason.Doc(notDraining, "has not returned its revoked lease for a long time; other processes no longer wait for its return"),

	reason.Doc(byTokens, "runs at the same time as the other processes, limited by tokens"),
	reason.Doc(metered, "runs, limited by tokens", "issued", "fraction of the GPU for which the instance is issued tokens", "phase", "phase of the instance or the GPU",
		"request", "its request, as a fraction of the GPU", "limit", "its limit, as a fraction of the GPU", "stretch", "its launch cycle divided by its shortest launch cycle"),
	reason.Doc(unmetered, "runs without tokens, because its share covers all that it could use alone"),
	reason.Doc(tokensIssued, "tokens were issued", "phase", "phase of the instance or the GPU"),
	reason.Doc(tokensUsedUp, "has used its tokens, and waits for new ones"),
	reason.Doc(notMeasured, "runs without tokens, because its speed is not measured yet"),
	reason.Doc(waitingForTrial, "waits to be measured alone on the GPU"),
	reason.Doc(waitingForDrain, "waits until all other processes have returned their leases, and is then measured alone on the GPU"),
	reason.Doc(measuredAlone, "is measured alone on the GPU"),
	reason.Doc(measured, "the measurement is complete"),
	reason.Doc(otherMeasuredAlone, "another process is measured alone on the GPU", "client", "number of that process", "instance", "its instance"),

	reason.Doc(windowEnd, "the window ends"),
	reason.Doc(plannedEnd, "a lease is planned to end", "client", "number of its process"),
	reason.Doc(turnBegin, "a turn begins", "instance", "its instance"),
	reason.Doc(periodEnd, "the period for which tokens were issued ends"),
	reason.Doc(trialEnd, "a measurement ends"),
}

// leaseParams appends the parameters that explain why the lease did not go to the next waiting process.
func leaseParams(params ...string) []string {
	return append(params, "beside", "number of the waiting process that is next in order, if there are enough SMs for both at the same time",
		"passes", "number of the waiting process that is next in order, if the lease ends before enough SMs are free for it", "fits_in_ms", "time until enough SMs are free for the process in `passes`")
}
