package gfaas

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
)

// templates are functions to start from, a folder each, and what several of them
// have, in shared. Wherever a name is wanted they have placeholder.
//
//go:embed templates
var templates embed.FS

const placeholder = "my-function"

// template is a function that gfaas new can copy. To add one, add an entry to templateList
// and a folder of its name.
type template struct {
	name    string
	help    string   // what it needs, without a full stop
	shared  []string // files of templates/shared
	build   string   // what has to be done first, if anything
	run     string   // its program, from the folder that the function's is in
	request string
}

// templateList lists the templates. The first one is the default.
var templateList = []template{
	{name: "python", help: "Python, with its standard library alone", shared: []string{"gpu.py", "saxpy.ptx"}, run: "python3 my-function/server.py", request: "request.json"},
	{name: "c", help: "C; needs a compiler and make, but no CUDA toolkit", shared: []string{"saxpy.ptx"}, build: "make -C my-function", run: "my-function/server", request: "request.txt"},
	{
		name: "openai", help: "Python that answers POST /v1/chat/completions, whole or as a stream",
		shared: []string{"gpu.py", "saxpy.ptx"}, run: "python3 my-function/server.py", request: "request.json",
	},
}

func templateNames() (names []string) {
	for _, t := range templateList {
		names = append(names, t.name)
	}
	return names
}

func templateHelp() string {
	var all []cli.Entry
	for _, t := range templateList {
		all = append(all, cli.Entry{Name: t.name, Help: t.help})
	}
	return cli.Entries(all)
}

type newOptions struct{ template string }

func newNew(t *tool) *cobra.Command {
	var o newOptions
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Write a function to start from",
		Long: `Writes the folder NAME with a function that works: its program, function.yaml, and
a request to try it with. NAME is the function's name too. A folder of that name must
be empty, if it is there.

The templates are HTTP servers that compute on the device through the CUDA driver, on
a GPU or on the simulated one, with gfaas or without it:

` + templateHelp() + `
What was written is printed on standard output, and what may be done with it next on
standard error; -o json has both.`,
		Example: `  gfaas new hello
  gfaas apply -f hello/function.yaml
  gfaas serve &
  gfaas invoke hello <hello/request.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return o.run(t, args[0]) },
	}
	cli.Choice(cmd, &o.template, "template", "what to start from", templateNames()...)
	t.env.Outputs(cmd, "table", "json", "yaml")
	return cmd
}

// written is what new prints.
type written struct {
	Function string   `json:"function"`
	Template string   `json:"template"`
	Files    []string `json:"files"` // from the folder that the function's is in
	Next     []string `json:"next"`  // commands
}

func (o *newOptions) run(t *tool, name string) error {
	if err := function.CheckName(name); err != nil {
		return cli.Usagef("%w", err)
	}
	from := templateList[slices.IndexFunc(templateList, func(t template) bool { return t.name == o.template })]
	files, err := from.files(name)
	if err != nil {
		return err
	}
	if err := writeFolder(name, files); err != nil {
		return err
	}
	w := written{Function: name, Template: o.template, Next: from.next(name)}
	rows := [][]string{{"FILE"}}
	for _, f := range files {
		w.Files = append(w.Files, filepath.Join(name, f.name))
		rows = append(rows, []string{filepath.Join(name, f.name)})
	}
	if err := t.env.Show(w, func() [][]string { return rows }); err != nil {
		return err
	}
	if t.env.Output == "table" {
		for _, command := range w.Next {
			t.env.Notef("next: %s", command)
		}
	}
	return nil
}

// file is one of a folder that is to be written.
type file struct {
	name string
	text []byte
}

// files returns the files of the template, for a function of that name.
func (tm template) files(name string) ([]file, error) {
	var paths []string
	own, err := fs.ReadDir(templates, path.Join("templates", tm.name))
	if err != nil {
		return nil, err
	}
	for _, entry := range own {
		paths = append(paths, path.Join("templates", tm.name, entry.Name()))
	}
	for _, shared := range tm.shared {
		paths = append(paths, path.Join("templates/shared", shared))
	}
	var files []file
	for _, p := range paths {
		text, err := templates.ReadFile(p)
		if err != nil {
			return nil, err
		}
		files = append(files, file{path.Base(p), bytes.ReplaceAll(text, []byte(placeholder), []byte(name))})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return files, nil
}

// next are the commands that a function of that name is tried with.
func (tm template) next(name string) (commands []string) {
	if tm.build != "" {
		commands = append(commands, tm.build)
	}
	commands = append(commands,
		"gfaas apply -f my-function/function.yaml",
		"gfaas-profile run my-function/function.yaml --search fast --goodput=false --body my-function/"+tm.request+" -o table",
		"gfaas run --sm 24 --quota 0.5 -- "+tm.run,
		"gfaas serve &",
		"gfaas invoke my-function <my-function/"+tm.request,
	)
	for i, command := range commands {
		commands[i] = strings.ReplaceAll(command, placeholder, name)
	}
	return commands
}

// writeFolder makes a folder with these files, whole or not at all. Where there is one
// that has anything in it, the error is one of usage and nothing is touched.
func writeFolder(name string, files []file) (err error) {
	dir, err := os.MkdirTemp(".", ".gfaas-new-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	made := filepath.Join(dir, name)
	if err := os.Mkdir(made, 0o777); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(made, f.name), f.text, 0o666); err != nil {
			return err
		}
	}
	// Not os.Rename, which refuses every folder that is there.
	switch err := syscall.Rename(made, name); {
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST):
		return cli.Usagef("%s: the folder is not empty, expected an empty one or none", name)
	case errors.Is(err, syscall.ENOTDIR):
		return cli.Usagef("%s: there is a file of that name, expected an empty folder or none", name)
	case err != nil:
		return fmt.Errorf("make the folder %s: %w", name, err)
	}
	return nil
}
