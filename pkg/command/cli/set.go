package cli

import (
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/policy"
)

// ParameterKeys returns the keys of parameters, in order.
func ParameterKeys[T any](all []policy.Parameter[T]) (keys []string) {
	for _, p := range all {
		keys = append(keys, p.Key)
	}
	slices.Sort(keys)
	return keys
}

// SetParameter parses KEY=VALUE, as the flag --set has it, and stores the value in to. It
// returns a usage error for an unknown key or a value that does not parse.
func SetParameter[T any](all []policy.Parameter[T], to *T, text string) error {
	key, value, pair := strings.Cut(text, "=")
	if !pair {
		return Usagef("--set %s: expected KEY=VALUE", csvfile.Quote(text))
	}
	p := policy.Find(all, key)
	if p == nil {
		return Usagef("--set %s: there is no such parameter, expected one of %s", csvfile.Quote(text), strings.Join(ParameterKeys(all), ", "))
	}
	if err := p.Set(to, value); err != nil {
		return Usagef("--set %s: %v", key, err)
	}
	return nil
}
