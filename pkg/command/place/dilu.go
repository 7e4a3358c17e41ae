package place

import (
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// diluFlags are the parameters of --algorithm dilu.
func (o *planOptions) diluFlags(f *pflag.FlagSet) {
	d := &o.diluted
	f.Float64Var(&d.Omega, "omega", d.Omega, "dilu: most that SM requests on a GPU sum to, at most 1")
	f.Float64Var(&d.Gamma, "gamma", d.Gamma, "dilu: most that SM limits on a GPU sum to")
	f.Float64Var(&d.Alpha, "alpha", d.Alpha, "dilu: weight of SMs left over, 0 to 1")
	f.Float64Var(&d.Beta, "beta", d.Beta, "dilu: weight of memory left over, 0 to 1")
}

func (o *planOptions) checkDilu() error {
	if o.diluted.Omega > 1 {
		return cli.Usagef("--omega %v: expected at most 1, since the rectangles of a plan do not overlap", o.diluted.Omega)
	}
	if err := o.diluted.Validate(); err != nil {
		return cli.Usagef("--%w", err)
	}
	return nil
}
