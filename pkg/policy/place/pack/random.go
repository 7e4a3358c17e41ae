package pack

import "github.com/gfaas/gfaas/pkg/splitmix"

// random is a Source whose numbers below a bound cost no division.
type random struct{ splitmix.Source }

// below draws from 0 to n-1, for n far below 2^32.
func (r *random) below(n int) int { return int(r.Uint64() >> 32 * uint64(n) >> 32) }
