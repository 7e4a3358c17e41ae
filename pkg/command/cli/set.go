package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/policy"
)

// ParameterKeys returns the sorted keys of parameters.
func ParameterKeys[T any](parameters []policy.Parameter[T]) []string {
	return lists.Distinct(parameters, func(p policy.Parameter[T]) string { return p.Key })
}

// ParameterFlags adds a flag for each parameter of a policy. Each flag stores its value in to, which
// holds the defaults.
func ParameterFlags[T any](cmd *cobra.Command, parameters []policy.Parameter[T], to *T) {
	for _, p := range parameters {
		usage, text := p.Help, p.Default
		if len(p.Values) > 0 {
			usage, text = p.Help+": "+strings.Join(p.Values, ", "), p.Values[0]
		}
		cmd.Flags().Var(&parameter[T]{p, to, text}, p.Key, usage)
		if len(p.Values) > 0 {
			CompleteWords(cmd, p.Key, p.Values...)
		}
	}
}

// parameter is the value of a flag for a policy's parameter.
type parameter[T any] struct {
	policy.Parameter[T]
	to   *T
	text string
}

func (p *parameter[T]) String() string { return p.text }

// Type returns float64 if the default is a number, and string otherwise.
func (p *parameter[T]) Type() string {
	if _, err := strconv.ParseFloat(p.Default, 64); err != nil {
		return "string"
	}
	return "float64"
}

func (p *parameter[T]) Set(text string) error {
	if len(p.Values) > 0 && !slices.Contains(p.Values, text) {
		return fmt.Errorf("expected %s", strings.Join(p.Values, " or "))
	}
	if err := p.Parameter.Set(p.to, text); err != nil {
		return err
	}
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		text = csvfile.Format(v)
	}
	p.text = text
	return nil
}

// SetParameters parses texts of the form KEY=VALUE, the arguments of a flag such as set, and stores the values in
// to. It returns a usage error for an unknown key or an invalid value.
func SetParameters[T any](flag string, parameters []policy.Parameter[T], to *T, texts ...string) error {
	for _, text := range texts {
		key, value, pair := strings.Cut(text, "=")
		if !pair {
			return Usagef("--%s %s: expected KEY=VALUE", flag, csvfile.Quote(text))
		}
		p := policy.Find(parameters, key)
		if p == nil {
			return Usagef("--%s %s: there is no such parameter, expected one of %s", flag, csvfile.Quote(text), strings.Join(ParameterKeys(parameters), ", "))
		}
		if err := p.Set(to, value); err != nil {
			return Usagef("--%s %s: %v", flag, key, err)
		}
	}
	return nil
}
