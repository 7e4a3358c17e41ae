package gfaas

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// Outcomes of a check.
const (
	checkOK       = "ok"
	checkMissing  = "missing"  // not there
	checkBad      = "bad"      // there, and cannot be used
	checkUnneeded = "unneeded" // not there, and nothing here would use it
)

// check is one thing that was looked at.
type check struct {
	Name     string `json:"name"`
	Status   string `json:"status"`   // ok, missing, bad or unneeded
	Required bool   `json:"required"` // without it nothing runs
	Detail   string `json:"detail"`
	Hint     string `json:"hint,omitempty"`

	locked bool // another process holds it, for now
}

// rung is one mechanism of a ladder: the highest that is there is chosen.
type rung struct {
	Purpose   string `json:"purpose"` // what it enforces: sm share, gpu time or gpu memory
	Mechanism string `json:"mechanism"`
	Found     bool   `json:"found"`
	Chosen    bool   `json:"chosen"`
	Detail    string `json:"detail"`
}

// diagnosis is what doctor prints.
type diagnosis struct {
	OK        bool    `json:"ok"`        // functions can run here
	Simulated bool    `json:"simulated"` // on the simulated GPU, whose figures are not a GPU's
	Checks    []check `json:"checks"`
	Ladder    []rung  `json:"ladder"`
}

func newDoctor(t *tool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can do, and what is missing",
		Long: `Looks for everything gfaas relies on and says what it found, what is missing
and what to do about it; then which mechanism enforces each part of a slice
here, the best that was found. It changes nothing.

Exit 0 says that functions can run, exit 4 that something needed is missing,
exit 6 that only the state file, locked by another process, stands in the way.

JSON is {"ok", "simulated", "checks": [{"name", "status": "ok", "missing",
"bad" or "unneeded", "required", "detail", "hint"}], "ladder": [{"purpose",
"mechanism", "found", "chosen", "detail"}]}.`,
		Example: "  gfaas doctor\n  gfaas doctor -o json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runDoctor(cmd.Context(), t) },
	}
	t.env.Outputs(cmd, "table", "json", "yaml")
	return cmd
}

func runDoctor(ctx context.Context, t *tool) error {
	d := t.diagnose(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.env.Show(d, d.rows); err != nil {
		return err
	}
	if d.OK {
		return nil
	}
	var missing, hints []string
	exit := cli.ExitLocked
	for _, c := range d.Checks {
		if c.Required && c.Status != checkOK {
			missing = append(missing, c.Name)
			hints = append(hints, c.Hint)
			if !c.locked {
				exit = cli.ExitUnavailable
			}
		}
	}
	return cli.Fail(exit, strings.Join(hints, "; "),
		errors.New("functions cannot run here: "+strings.Join(missing, ", ")))
}

// rows is the form for people: the checks, then the ladder.
func (d diagnosis) rows() [][]string {
	out := [][]string{{"CHECK", "STATUS", "WHAT"}}
	for _, c := range d.Checks {
		what := c.Detail
		if c.Hint != "" {
			what += " (" + c.Hint + ")"
		}
		out = append(out, []string{c.Name, c.Status, what})
	}
	for _, r := range d.Ladder {
		status := "not here"
		switch {
		case r.Chosen:
			status = "chosen"
		case r.Found:
			status = "found"
		}
		out = append(out, []string{r.Purpose + " by " + r.Mechanism, status, r.Detail})
	}
	return out
}
