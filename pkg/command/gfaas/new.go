package gfaas

import (
	"bytes"
	"cmp"
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
	"github.com/gfaas/gfaas/pkg/lists"
)

// templates contains one folder per template, and the folder shared with files that several
// templates use. The word placeholder stands for the function's name.
//
//go:embed templates
var templates embed.FS

const placeholder = "my-function"

// template is a function that gfaas new can copy. To add a template, add an entry to templateList and a
// folder with its name.
type template struct {
	name    string
	help    string   // description and requirements, without a full stop
	shared  []string // files of templates/shared
	build   string   // command that builds the program; may be empty
	run     string   // command that starts the program, in the parent of the function's folder; empty: the program is not part of the template
	request string   // file with a request; empty if there is none
	try     string   // command that tries the function, in place of one that sends the request
}

// templateList lists the templates. The first one is the default.
var templateList = []template{
	{name: "python", help: "Python, with only its standard library", shared: []string{"gpu.py", "saxpy.ptx"}, run: "python3 my-function/server.py", request: "request.json"},
	{name: "c", help: "C; needs a compiler and make, but no CUDA toolkit", shared: []string{"saxpy.ptx"}, build: "make -C my-function", run: "my-function/server", request: "request.txt"},
	{
		name: "openai", help: "Python; answers POST /v1/chat/completions, whole or as a stream",
		shared: []string{"gpu.py", "saxpy.ptx"}, run: "python3 my-function/server.py", request: "request.json",
	},
	{name: "llama.cpp", help: "a language model on llama.cpp's server, which you install", request: "request.json"},
	{name: "vllm", help: "a language model on vLLM, which you install", request: "request.json"},
	{
		name: "whisper", help: "speech recognition on whisper.cpp's server, which you install",
		try: "curl localhost:8080/v1/audio/transcriptions -F model=my-function -F file=@speech.wav",
	},
	{name: "triton", help: "models on NVIDIA's Triton Inference Server, which you install", request: "request.json"},
	{name: "comfyui", help: "images on ComfyUI, which you install", try: "xdg-open http://localhost:8080/function/my-function/"},
}

func templateNames() []string {
	return lists.Map(templateList, func(t template) string { return t.name })
}

// Templates returns the names and descriptions of the templates.
func Templates() []cli.Entry {
	return lists.Map(templateList, func(t template) cli.Entry { return cli.Entry{Name: t.name, Help: t.help} })
}

type newOptions struct{ template string }

func newNew(t *tool) *cobra.Command {
	var o newOptions
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Create a function from a template",
		Long: `Create the folder NAME with a function: function.yaml, its program, and a request
to try it with. NAME is also the name of the function. If the folder
exists, it must be empty.

The templates python, c and openai contain HTTP servers that compute through the
CUDA driver, on a GPU or on the simulated one, with or without gfaas. The others
contain a function.yaml for a server that you install, with a comment on each line:

` + cli.Entries(Templates()) + `
The names of the files are printed on standard output, and commands to try next on
standard error. With -o json, both are in the document.`,
		Example: `  # Create a function, apply it and call it
  gfaas new hello
  gfaas apply -f hello/function.yaml
  gfaas serve &
  gfaas invoke hello <hello/request.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return o.run(t, args[0]) },
	}
	cli.Choice(cmd, &o.template, "template", "template to copy", templateNames()...)
	t.env.Outputs(cmd, "table", "json", "yaml")
	return cmd
}

// written is the result of gfaas new.
type written struct {
	Function string   `json:"function"`
	Template string   `json:"template"`
	Files    []string `json:"files"` // relative to the parent of the function's folder
	Next     []string `json:"next"`  // commands to run next
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

// file is a file to write into a new folder.
type file struct {
	name string
	text []byte
}

// files returns the template's files for a function with the given name.
func (tm template) files(name string) ([]file, error) {
	paths, err := fs.Glob(templates, path.Join("templates", tm.name, "*"))
	if err != nil {
		return nil, err
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

// next returns the commands that build, apply and invoke the function.
func (tm template) next(name string) (commands []string) {
	if tm.build != "" {
		commands = append(commands, tm.build)
	}
	commands = append(commands, "gfaas apply -f my-function/function.yaml")
	if tm.run != "" {
		commands = append(commands,
			"gfaas-profile run my-function/function.yaml --search fast --goodput=false --body my-function/"+tm.request+" -o table",
			"gfaas run --sm 24 --quota 0.5 -- "+tm.run)
	}
	commands = append(commands, "gfaas serve &", cmp.Or(tm.try, "gfaas invoke my-function <my-function/"+tm.request))
	for i, command := range commands {
		commands[i] = strings.ReplaceAll(command, placeholder, name)
	}
	return commands
}

// writeFolder creates a folder with the given files atomically. If the folder exists and is not empty,
// it returns a usage error and changes nothing.
func writeFolder(name string, files []file) (err error) {
	dir, err := os.MkdirTemp(".", ".gfaas-new-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	folder := filepath.Join(dir, name)
	if err := os.Mkdir(folder, 0o777); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(folder, f.name), f.text, 0o666); err != nil {
			return err
		}
	}
	// os.Rename fails for every existing folder, even an empty one.
	switch err := syscall.Rename(folder, name); {
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST):
		return cli.Usagef("cannot create the folder %s: it exists and is not empty", name)
	case errors.Is(err, syscall.ENOTDIR):
		return cli.Usagef("cannot create the folder %s: a file of that name exists", name)
	case err != nil:
		return fmt.Errorf("create the folder %s: %w", name, err)
	}
	return nil
}
