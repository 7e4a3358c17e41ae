package refusal

import "github.com/gfaas/gfaas/pkg/reason"

// Codes of Gfaas-Reason in answers that are no errors, in addition to the codes of policies.
const (
	Probe  reason.Code = "probe"
	Models reason.Code = "models"

	Redirect  reason.Code = "redirect"
	Preflight reason.Code = "preflight"
	Loading   reason.Code = "loading"
)

// Reasons documents the reasons that the gateway itself gives, apart from the codes of errors.
var Reasons = reason.Table{
	reason.Doc(Probe, "the request is a probe: the gateway sent it to an instance with its memory on the GPU, without a decision of the policy"),
	reason.Doc(Models, "the gateway answered about its models itself, at `/v1/models` or in [Ollama's API](gateway.md#ollama-clients)"),
	reason.Doc(Redirect, "the answer redirects a browser from `/function/NAME` to `/function/NAME/`"),
	reason.Doc(Preflight, "the gateway answered the preflight request of a browser itself"),
	reason.Doc(Loading, "the answer began, with comments, while the call waited (`loading: comment`)"),
	reason.Doc(reason.Code(StartFailed), "the function has no instance, and its last starts failed", "error", "error of the last start"),
}
