package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// notRun lists the blocks fenced console, which are shown but not run, by page and first
// command, with the reason.
var notRun = map[string]map[string]string{
	"docs/tutorial.md": {"make": "the test uses the built programs"},
	"docs/how-to/choose-a-policy.md": {
		"gfaas serve --record calls.jsonl":            "needs the reader's calls",
		"gfaas serve --policy mqfq-sticky --set t=5s": "a variant of a command that is run",
	},
	"docs/how-to/containers.md": {
		"gfaas run --quota 0.3 --mem 4GiB -- docker run --rm IMAGE python train.py": "needs an image",
		"gfaas register plan.json":      "needs an image",
		"gfaas apply -f functions.yaml": "needs an image and Compose",
	},
	"docs/how-to/gpu-faults.md": {"gfaas down": "needs root and a GPU"},
	"docs/how-to/model-servers.md": {
		"export OPENAI_BASE_URL=http://localhost:8080/v1 OPENAI_API_KEY=none": "sets variables for other programs",
		"export OLLAMA_HOST=http://localhost:8080":                            "sets variables for other programs",
		"docker run -d --network host -v open-webui:/app/backend/data -e PORT=3000 -e OLLAMA_BASE_URL=http://localhost:8080 -e OPENAI_API_BASE_URL=http://localhost:8080/v1 -e OPENAI_API_KEY=none ghcr.io/open-webui/open-webui:main": "needs an image of 4 GB",
	},
	"docs/how-to/serve-functions.md": {"sudo systemctl enable --now gfaas-gateway": "needs root and systemd"},
	"docs/how-to/upgrade.md": {
		"sudo apt install ./gfaas_NEW_amd64.deb": "needs root",
		"git pull && make && sudo make install":  "needs root",
		"sudo systemctl daemon-reload":           "needs root and systemd",
	},
}

var fenced = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

// TestPagesRun runs the blocks fenced sh of the README, the tutorial and the how-to guides,
// those of a page as one script.
func TestPagesRun(t *testing.T) {
	needPython(t)
	pages, err := filepath.Glob("../docs/how-to/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../docs/tutorial.md", "../README.md") {
		name := strings.TrimPrefix(page, "../")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			var script strings.Builder
			var shown []string
			for _, block := range fenced.FindAllStringSubmatch(string(text), -1) {
				switch block[1] {
				case "sh":
					script.WriteString(block[2])
				case "console":
					first, _, _ := strings.Cut(strings.TrimPrefix(block[2], "$ "), "\n")
					shown = append(shown, first)
					if notRun[name][first] == "" {
						t.Errorf("a console block begins with %q, which notRun does not list", first)
					}
				}
			}
			for first := range notRun[name] {
				if !slices.Contains(shown, first) {
					t.Errorf("no console block begins with %q, which notRun lists", first)
				}
			}
			if script.Len() > 0 {
				runPage(t, script.String())
			}
		})
	}
}

// runPage runs a script in an empty folder with links to build/ and testdata/, as if it
// were the folder of the source. localhost:8080 becomes a free port.
func runPage(t *testing.T, script string) {
	u := newUser(t)
	address := fmt.Sprintf("localhost:%d", reserve(t))
	for _, name := range []string{"build", "testdata"} {
		target, err := filepath.Abs(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(u.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	script = strings.NewReplacer("localhost:8080", address, "gfaas serve", "gfaas serve --listen "+address).Replace(script)
	cmd := exec.CommandContext(t.Context(), "sh", "-eux", "-c", script)
	cmd.Env = append(u.env, "HOME="+u.dir, "GFAAS_GPU=sim", "PYTHONDONTWRITEBYTECODE=1")
	cmd.Dir, cmd.WaitDelay = u.dir, time.Minute
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}
