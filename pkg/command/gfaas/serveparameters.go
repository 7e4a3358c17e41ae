package gfaas

import (
	"maps"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/policy/placement"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/scale"
)

// policyNames returns the names of the queueing policies, starting with the default, gfaas.
func policyNames() []string {
	others := slices.DeleteFunc(queue.Names(), func(name string) bool { return name == "gfaas" })
	return append([]string{"gfaas"}, others...)
}

// setPolicy parses the parameters of the queueing policy.
func (o *serveOptions) setPolicy(env *cli.Env) error {
	o.Policy.Options, o.Set = queue.Defaults(), map[string]string{}
	if err := cli.SetParameters("set", queue.Parameters(), &o.Policy.Options, o.set...); err != nil {
		return err
	}
	for _, text := range o.set {
		key, value, _ := strings.Cut(text, "=")
		o.Set[key] = value
	}
	o.followQueues(env)
	o.noteSideBySide(env)
	for _, key := range queue.Ignored(slices.Sorted(maps.Keys(o.Set)), o.Policy.Policy) {
		env.Notef("note: --set %s: the policy %s does not use this parameter", key, o.Policy.Policy)
	}
	return nil
}

// setScaler parses the parameters of the scaler and its estimator.
func (o *serveOptions) setScaler() error {
	options := scale.DefaultOptions()
	if err := cli.SetParameters("scaler-set", scale.RuleParameters(o.Scaler, o.Estimator), &options, o.scalerSet...); err != nil {
		return err
	}
	if err := options.Check(); err != nil {
		return cli.Usagef("--scaler-set %w", err)
	}
	if _, err := scale.NewEstimator(o.Estimator, options.Estimate); err != nil {
		return cli.Usagef("--scaler-set %w", err)
	}
	o.Scaling = &options
	return nil
}

// scalerKeys returns the keys of the parameters of all scalers and estimators, without bounds.
func scalerKeys() (keys []string) {
	for _, k := range scale.Kinds() {
		keys = append(keys, cli.ParameterKeys(k.Parameters)...)
	}
	for _, k := range scale.EstimatorKinds() {
		keys = append(keys, cli.ParameterKeys(k.Parameters)...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// setPlacement parses the parameters of the placement.
func (o *serveOptions) setPlacement() error {
	options := placement.DefaultOptions()
	kind, _ := placement.KindOf(o.Placement)
	if len(o.placementSet) > 0 && len(kind.Parameters) == 0 {
		return cli.Usagef("--placement-set has no effect with --placement %s", o.Placement)
	}
	if err := cli.SetParameters("placement-set", kind.Parameters, &options, o.placementSet...); err != nil {
		return err
	}
	if err := options.Check(); err != nil {
		return cli.Usagef("--placement-set %w", err)
	}
	o.Placing = &options
	return nil
}

// placementKeys returns the keys of the parameters of all placements.
func placementKeys() (keys []string) {
	for _, k := range placement.Kinds() {
		keys = append(keys, cli.ParameterKeys(k.Parameters)...)
	}
	return keys
}

// placementHelp returns the part of the help that lists the placements.
func placementHelp() string {
	return cli.Entries(lists.Map(placement.Kinds(), func(k placement.Kind) cli.Entry {
		return cli.Entry{Name: k.Name, Help: k.Help + "." + cli.Parameters(k.Parameters)}
	}))
}
