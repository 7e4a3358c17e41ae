package pack

import "github.com/gfaas/gfaas/pkg/reason"

const largerThanBin reason.Code = "larger-than-bin"

// Reasons documents the code of items that do not fit a bin.
var Reasons = reason.Table{
	reason.Doc(largerThanBin, "the item is larger than a bin; there are parameters only for the dimensions in which it is larger", "quota", "quota of the item", "bin_quota", "quota of the bin",
		"sm_pct", "SM share of the item", "bin_sm_pct", "SM share of the bin", "mem_mib", "memory of the item", "bin_mem_mib", "memory of the bin"),
}
