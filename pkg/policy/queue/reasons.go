package queue

import "github.com/gfaas/gfaas/pkg/reason"

// Reason explains an action: the code of the rule that decided, and the numbers that it compared. It
// holds no text to format, so that building one costs nothing if it is never printed.
type Reason struct {
	Code     reason.Code
	Waiting  int32   // waiting invocations of the function, including this one
	InFlight int32   // invocations of the function in flight, excluding this one
	Value    float64 // the value of the code's parameter, if it has one
}

// Full returns the code with its parameter.
func (r Reason) Full() reason.Reason { return r.full(nil) }

// Append appends the text form of Full. It allocates nothing else.
func (r Reason) Append(to []byte) []byte {
	var params [1]reason.Param
	return r.full(params[:0]).Append(to)
}

func (r Reason) full(params []reason.Param) reason.Reason {
	if key := valueKeys[r.Code]; key != "" {
		params = append(params, reason.Number(key, r.Value))
	}
	return reason.Reason{Code: r.Code, Params: params}
}

// valueKeys maps codes of actions to their parameters.
var valueKeys = func() map[reason.Code]string {
	keys := map[reason.Code]string{}
	for _, e := range Reasons {
		if len(e.Params) > 0 {
			keys[e.Code] = e.Params[0].Key
		}
	}
	return keys
}()

// Codes of Reject. The gateway answers such a call with the same code.
const (
	TooLarge    reason.Code = "too-large-for-gpu"
	QueueFull   reason.Code = "queue-full"
	TooLate     reason.Code = "queue-timeout"
	NoFunction  reason.Code = "no-function"
	StartFailed reason.Code = "start-failed"
)

// Codes of Run and Assign.
const (
	oldestInvocation reason.Code = "oldest-invocation"
	shortestDuration reason.Code = "shortest-duration"
	largestDeficit   reason.Code = "largest-deficit"
	earliestDeadline reason.Code = "earliest-deadline"
	leastVirtualTime reason.Code = "least-virtual-time"
	fewestInFlight   reason.Code = "fewest-in-flight"
	shortestExpected reason.Code = "shortest-expected-time"
	bookedGPUFree    reason.Code = "booked-gpu-free"
	leastGPUTime     reason.Code = "least-gpu-time"
	leastGPUTimeAway reason.Code = "least-gpu-time-elsewhere"
	ownGPUFree       reason.Code = "own-gpu-free"
	gpuReassigned    reason.Code = "gpu-reassigned"
	firstInGPUQueue  reason.Code = "first-in-gpu-queue"
	modelCached      reason.Code = "model-cached"
	modelCachedIdle  reason.Code = "model-cached-on-idle-gpu"
	modelCachedBusy  reason.Code = "model-cached-on-busy-gpu"
	modelNotCached   reason.Code = "model-not-cached"
	loadIsFaster     reason.Code = "load-is-faster"
	joinsInstance    reason.Code = "joins-instance"
	needsNoSlot      reason.Code = "needs-no-slot"
	plannedFirst     reason.Code = "planned-instance"
	nextInBatch      reason.Code = "next-in-batch"
)

// Codes of the other actions.
const (
	queueActive       reason.Code = "queue-active"
	queueNotActive    reason.Code = "queue-not-active"
	evictionOrder     reason.Code = "eviction-order"
	leastRecentlyUsed reason.Code = "least-recently-used"
	roomForTenant     reason.Code = "room-for-tenant"
	functionChanged   reason.Code = "function-changed"
	belowMinimum      reason.Code = "below-minimum"
	placed            reason.Code = "placed"
	retired           reason.Code = "retired"
	idleTimeout       reason.Code = "idle-timeout"
	gpuRemoved        reason.Code = "gpu-removed"
	timer             reason.Code = "timer"
	tenantPeriodEnd   reason.Code = "tenant-period-end"
)

// Codes of waits.
const (
	waitingForModel    reason.Code = "waiting-for-gpu-with-model"
	waitingForMemory   reason.Code = "waiting-for-gpu-with-memory"
	waitingForPromised reason.Code = "waiting-for-promised-gpu"
	waitingForRoom     reason.Code = "waiting-for-room"
	waitingForBatch    reason.Code = "waiting-for-batch"
	waitingForPlanned  reason.Code = "waiting-for-planned-instance"
	waitingForBound    reason.Code = "waiting-for-bound-instance"
	waitingForPlace    reason.Code = "waiting-for-placement"
	throttled          reason.Code = "throttled"
	noGPU              reason.Code = "no-gpu"
	startsPaused       reason.Code = "starts-paused"
	instanceStarting   reason.Code = "instance-starting"
	instanceLimit      reason.Code = "instance-limit"
	batchClosed        reason.Code = "batch-closed"
	gpusBusy           reason.Code = "gpus-busy"
	noGPUWithRoom      reason.Code = "no-gpu-with-room"
	othersFirst        reason.Code = "others-first"
	tenantLimit        reason.Code = "tenant-limit"
)

// AheadOfNeed reports whether memory moves to the host although no invocation needs the room.
func (r *Reason) AheadOfNeed() bool { return r.Code == queueNotActive }

// Reasons documents the codes of actions, of which each has at most one parameter, and of waits.
var Reasons = reason.Table{
	reason.Doc(oldestInvocation, "the invocation is the oldest"),
	reason.Doc(shortestDuration, "the function has the shortest invocations", "warm_ms", "expected duration of an invocation"),
	reason.Doc(largestDeficit, "other functions were dispatched too often before the function", "deficit", "how many dispatches the function is behind an equal share; at least the limit `starvation`"),
	reason.Doc(earliestDeadline, "the deadline, arrival plus expected duration, is the earliest", "in_ms", "time until the deadline; negative if it has passed"),
	reason.Doc(leastVirtualTime, "the function has the least virtual time", "lead_ms", "its virtual time minus Global_VT"),
	reason.Doc(fewestInFlight, "among the functions whose virtual time is at most T ahead of Global_VT, the function has the fewest invocations in flight, then the longest queue", "lead_ms", "its virtual time minus Global_VT"),
	reason.Doc(shortestExpected, "among the functions whose virtual time is at most T ahead of Global_VT, an invocation of the function is expected to take the least time, including its share of a start", "vt_ms", "virtual time of the function"),
	reason.Doc(bookedGPUFree, "the GPU with the function's memory is free; the invocation waited for it"),
	reason.Doc(leastGPUTime, "the function has the least GPU time; the GPU is the one of its last invocation, or this is its first invocation", "gpu_time_ms", "its GPU time divided by its weight"),
	reason.Doc(leastGPUTimeAway, "the function has the least GPU time, even with the penalty for a GPU that is not the one of its last invocation", "gpu_time_ms", "its GPU time divided by its weight, including the penalty"),
	reason.Doc(ownGPUFree, "a GPU that the function owns is free", "gpus", "GPUs that the function owns"),
	reason.Doc(gpuReassigned, "the function became the owner of the GPU", "gpus", "GPUs that the function owns"),
	reason.Doc(firstInGPUQueue, "the invocation is the first in the queue of the GPU"),
	reason.Doc(modelCached, "the GPU has the model"),
	reason.Doc(modelCachedIdle, "another idle GPU has the model"),
	reason.Doc(modelCachedBusy, "the invocation waits for a busy GPU that has the model; this GPU is expected to be free before another GPU could load the model", "wait_ms", "expected wait"),
	reason.Doc(modelNotCached, "no GPU has the model"),
	reason.Doc(loadIsFaster, "loading the model takes less time than waiting for a GPU that has it"),
	reason.Doc(needsNoSlot, "the function's instance needs no slot: its memory is on the GPU, or fits there in addition to that of all others"),
	reason.Doc(joinsInstance, "a running instance of the function can take one more invocation"),
	reason.Doc(plannedFirst, "an instance of a plan is expected to answer first"),
	reason.Doc(nextInBatch, "the invocation is the next of the batch that the instance runs"),

	reason.Doc(TooLarge, "no GPU can hold the function"),
	reason.Doc(QueueFull, "the function's queue is full"),
	reason.Doc(TooLate, "the invocation waited for the longest permitted time"),
	reason.Doc(NoFunction, "the function does not exist, or was removed"),
	reason.Doc(StartFailed, "the function failed to start several times in a row"),

	reason.Doc(queueActive, "the memory of an instance is on the host, and its function has waiting invocations again"),
	reason.Doc(queueNotActive, "the function's queue is throttled or inactive, so the memory of its idle instances moves to the host ahead of need"),
	reason.Doc(evictionOrder, "the instance comes first in the order in which the policy evicts instances"),
	reason.Doc(leastRecentlyUsed, "the instance's model is the least recently used one"),
	reason.Doc(roomForTenant, "the instance is the least recently used one of its tenant, whose limits leave no room for another instance"),
	reason.Doc(functionChanged, "the function changed while the instance was starting"),
	reason.Doc(placed, "the gateway has chosen the GPU"),
	reason.Doc(retired, "the function's autoscaler no longer needs the instance"),
	reason.Doc(belowMinimum, "the function has fewer instances than `scale.min`"),
	reason.Doc(idleTimeout, "the instance was idle for `scale.idle`"),
	reason.Doc(gpuRemoved, "the GPU was removed"),
	reason.Doc(timer, "the policy decides again at this time, because a deadline, an idle time or a pause ends"),
	reason.Doc(tenantPeriodEnd, "the policy decides again at this time, because the accounting period ends in which a tenant has used its share of the GPU time"),

	reason.Doc(waitingForModel, "waits for a busy GPU that has the model"),
	reason.Doc(waitingForMemory, "waits for a busy GPU that has the function's memory"),
	reason.Doc(waitingForPromised, "waits for a busy GPU that is promised to the function: when the GPU is idle, the function becomes its owner"),
	reason.Doc(waitingForRoom, "waits until memory on the GPU has been freed"),
	reason.Doc(waitingForBatch, "waits for the earlier invocations of its batch"),
	reason.Doc(batchClosed, "waits for the end of the batch that the function's instance runs: an invocation has waited for another instance for longer than `batch_window`"),
	reason.Doc(waitingForBound, "waits until the instance to which it is bound (`affinity` in function.yaml) can take one more invocation"),
	reason.Doc(waitingForPlanned, "waits for an instance of a plan, which is expected to be free before another instance is started"),
	reason.Doc(throttled, "the function's virtual time is ahead of Global_VT by more than T", "lead_ms", "its virtual time minus Global_VT", "limit_ms", "largest permitted lead"),
	reason.Doc(noGPU, "there is no GPU"),
	reason.Doc(startsPaused, "the function failed to start several times in a row, and the next start is tried later", "failures", "failed starts in a row", "in_ms", "time until the next start"),
	reason.Doc(instanceStarting, "an instance of the function is starting"),
	reason.Doc(waitingForPlace, "all instances of the function are busy or starting, and the gateway has placed no further one: its autoscaler wants none, or no GPU has room"),
	reason.Doc(instanceLimit, "all instances that the function may have are busy", "max", "largest number of instances of the function, `scale.max`"),
	reason.Doc(gpusBusy, "every GPU runs the largest permitted number of invocations"),
	reason.Doc(noGPUWithRoom, "no GPU has room for the function in addition to the running invocations"),
	reason.Doc(othersFirst, "invocations of other functions go first"),
	reason.Doc(tenantLimit, "the tenant has reached its limit on invocations, instances, memory or GPU time"),
}
