package model

import "github.com/gfaas/gfaas/pkg/reason"

// Codes of waits.
const (
	noRoom        reason.Code = "no-room"
	noHostRoom    reason.Code = "no-host-room"
	noTenantRoom  reason.Code = "no-tenant-room"
	storedByOther reason.Code = "stored-by-other"
	loading       reason.Code = "loading"
	openingFile   reason.Code = "opening-file"
	ending        reason.Code = "ending"
)

// Codes of Free.
const (
	noRequest          reason.Code = "no-request"
	tooLarge           reason.Code = "too-large"
	sameContent        reason.Code = "same-content"
	gpuFull            reason.Code = "gpu-full"
	replaced           reason.Code = "replaced"
	notHeld            reason.Code = "not-held"
	removed            reason.Code = "removed"
	beyondCapacity     reason.Code = "beyond-capacity"
	beyondTenantBound  reason.Code = "beyond-tenant-bound"
	leastRecentlyUsed  reason.Code = "least-recently-used"
	storeWithoutAnswer reason.Code = "store-silent"
)

// Reasons documents the codes of waits and of Free.
var Reasons = reason.Table{
	reason.Doc(noRoom, "waits for GPU memory: models that requests hold, or that are being loaded, occupy too much of the capacity", shortageParams("held", "models that requests hold", "loading", "models that are being loaded")...),
	reason.Doc(noHostRoom, "waits for host memory: the headers and manifests of models that requests hold, or that are being loaded, occupy too much of it", shortageParams("held", "models that requests hold", "loading", "models that are being loaded")...),
	reason.Doc(noTenantRoom, "waits for GPU memory: the tenant's models that requests hold, or that are being loaded, occupy too much of its bound", shortageParams()...),
	reason.Doc(storedByOther, "waits until another client has stored the model"),
	reason.Doc(loading, "the model is being loaded"),
	reason.Doc(openingFile, "the size of the model's file is being determined"),
	reason.Doc(ending, "the loading of the model is being cancelled, because no request waits for the model any more"),

	reason.Doc(noRequest, "no request waits for the model any more"),
	reason.Doc(tooLarge, "the model is larger than the capacity or the tenant's bound"),
	reason.Doc(sameContent, "another copy with the same content is already on the GPU"),
	reason.Doc(gpuFull, "the GPU has no free memory", "for", "the model that needs it"),
	reason.Doc(replaced, "the model has a new generation, or was removed"),
	reason.Doc(notHeld, "the model was replaced or removed earlier, and now the last request that held it has ended"),
	reason.Doc(removed, "the model was removed"),
	reason.Doc(beyondCapacity, "all models together exceed the capacity, which became smaller", "limit_mib", "the capacity"),
	reason.Doc(beyondTenantBound, "the models of the tenant exceed its bound, which became smaller", "tenant", "the tenant", "limit_mib", "the bound"),
	reason.Doc(leastRecentlyUsed, "the model was used least recently, and another one needs its memory", "for", "the model that needs it"),
	reason.Doc(storeWithoutAnswer, "the client that stores the model sent no request for too long", "pause_ms", "longest permitted time between its requests"),
}

// shortageParams returns the parameters of shortage, with further ones.
func shortageParams(more ...string) []string {
	return append([]string{"limit_mib", "limit", "used_mib", "memory in use", "needed_mib", "memory that the model needs"}, more...)
}
