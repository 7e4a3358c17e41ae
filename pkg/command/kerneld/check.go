package kerneld

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/textfile"
)

func newCheck(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "check REQUEST.json|-",
		Short: "Say what is wrong with a request",
		Long: `Says what is wrong with a request and the files of its modules, as far as that needs
neither objects nor a GPU: one line a fault, with its line in the file and its place
as a JSON pointer. The exit status is 1 then.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("json"),
		RunE:              func(_ *cobra.Command, args []string) error { return check(env, args[0]) },
	}
}

func check(env *cli.Env, path string) error {
	_, err := cli.Load(env, path, func(r io.Reader, name string) (*kgraph.Request, error) {
		text, err := io.ReadAll(io.LimitReader(r, kgraph.MaxRequest+1))
		if err != nil {
			return nil, err
		}
		graph, problems := kgraph.Parse(text)
		if graph != nil {
			problems = readModules(graph, path)
			problems = append(problems, graph.Check(kgraph.World{Files: true})...)
		}
		return graph, faults(name, text, problems)
	})
	return err
}

// readModules reads the modules that are in files, and says of which it cannot.
func readModules(r *kgraph.Request, path string) (problems []*kgraph.Problem) {
	for i := range r.Modules {
		m := &r.Modules[i]
		if err := readModule(m, path); err != nil {
			problems = append(problems, &kgraph.Problem{Code: kgraph.BadRequest, Where: "/modules/" + kgraph.Pointer(m.Name) + "/file", Message: err.Error()})
		}
	}
	return problems
}

// faults are problems as those of a file; nil when there are none.
func faults(name string, text []byte, problems []*kgraph.Problem) error {
	var out []error
	for _, p := range problems {
		line, column := p.Place(text)
		what := p.Message
		if column > 0 {
			what = fmt.Sprintf("character %d: %s", column, what)
		}
		out = append(out, &textfile.Fault{File: name, Line: line, Where: p.Where, What: what})
	}
	return errors.Join(out...)
}
