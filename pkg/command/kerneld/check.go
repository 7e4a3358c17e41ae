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
		Short: "Check a request for errors",
		Long: `Check a request for errors. A request is a JSON file that lists GPU kernels and their
buffers (docs/kernels.md). The command also checks the files that contain the code of the
kernels (modules). It uses neither a GPU nor the data that the daemon stores (objects), so
it cannot find errors that depend on them. Each error is printed on one line, with the file, the line
and the place in the JSON document (a JSON pointer). If there are errors, the exit status
is 1.`,
		Example: `  # check a request from another program before it is sent
  gfaas-kerneld import list ops.json | gfaas-kerneld check -`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
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

// readModules reads the modules that are in files. It returns a problem for each unreadable file.
func readModules(r *kgraph.Request, path string) (problems []*kgraph.Problem) {
	for i := range r.Modules {
		m := &r.Modules[i]
		if err := readModule(m, path); err != nil {
			problems = append(problems, &kgraph.Problem{Code: kgraph.BadRequest, Where: "/modules/" + kgraph.Pointer(m.Name) + "/file", Message: err.Error()})
		}
	}
	return problems
}

// faults converts the problems of a request to faults in its file, with line numbers.
func faults(name string, text []byte, problems []*kgraph.Problem) error {
	var errs []error
	for _, p := range problems {
		line, column := p.Place(text)
		message := p.Message
		if column > 0 {
			message = fmt.Sprintf("character %d: %s", column, message)
		}
		errs = append(errs, &textfile.Fault{File: name, Line: line, Where: p.Where, What: message})
	}
	return errors.Join(errs...)
}
