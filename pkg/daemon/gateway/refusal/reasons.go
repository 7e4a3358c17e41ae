package refusal

import "github.com/gfaas/gfaas/pkg/reason"

// Codes of Gfaas-Reason in answers that are no errors, in addition to the codes of policies.
const (
	Probe  reason.Code = "probe"
	Models reason.Code = "models"
)

// Reasons documents the reasons that the gateway itself gives, apart from the codes of errors.
var Reasons = reason.Table{
	reason.Doc(Probe, "the request is a probe: the gateway sent it to an instance with its memory on the GPU, without a decision of the policy"),
	reason.Doc(Models, "the answer is the list of functions at `/v1/models`"),
	reason.Doc(reason.Code(StartFailed), "the function has no instance, and its last starts failed", "error", "error of the last start"),
}
