package gfaas

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// completes is a shell program that completes the command line in its arguments, whose last word is incomplete. It
// does so like a shell with the file from make docs, and replaces the one function of bash-completion that the
// file needs.
const completes = `source "$SCRIPT"
_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=${words[cword]}; prev=${words[cword-1]}; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
__start_gfaas 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"`

// TestCompletionInBash completes command lines in a real shell with the installed file.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	t.Parallel()
	p := newEnvironment(t)
	for _, name := range []string{"resnet", "bert"} {
		p.write(name+".yaml", "name: "+name+"\ncommand: [sleep, '600']\n")
		p.output("apply", "-f", name+".yaml")
	}
	for _, c := range []struct {
		line string // the last word is incomplete; _ is an empty word
		want []string
		lone bool // no other suggestions
	}{
		{"gfaas pla", []string{"place"}, true},
		{"gfaas completio", []string{"completion"}, true},
		{"gfaas place _", []string{"plan", "pack", "verify", "export"}, false},
		{"gfaas place ver", []string{"verify"}, true},
		{"gfaas -q place plan --algo", []string{"--algorithm"}, true},
		{"gfaas place plan --algorithm jo", []string{"joint"}, true},
		{"gfaas sim compare --policy fcfs,sj", []string{"fcfs,sjf"}, true},
		{"gfaas show re", []string{"resnet"}, true},
		{"gfaas profile load _", []string{"bert", "resnet"}, true},
		{"gfaas run --det", []string{"--detach-on-kill"}, true},
		{"gfaas run -- gfaas-toke", []string{"gfaas-tokend"}, true},
		{"gfaas run --sm 24 -- sh -c _", nil, true}, // the shell itself completes files
	} {
		words := strings.Fields(strings.ReplaceAll(c.line, "_", "''"))
		for i, w := range words {
			if w == "''" {
				words[i] = ""
			}
		}
		cmd := p.command()
		cmd.Path, cmd.Args = bash, append([]string{"bash", "-c", completes, "bash"}, words...)
		cmd.Env = append(cmd.Env, "SCRIPT="+built("..", "completions", "gfaas.bash"))
		text, err := cmd.Output()
		if err != nil {
			t.Errorf("complete %q: %v", c.line, err)
		}
		var got []string
		for line := range strings.Lines(string(text)) {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word != "" { // without the description
				got = append(got, strings.ReplaceAll(word, `\`, "")) // unquoted, as the shell does
			}
		}
		for _, w := range c.want {
			if !slices.Contains(got, w) {
				t.Errorf("completions of %q: got %q, want %q among them", c.line, got, w)
			}
		}
		if c.lone && len(got) != len(c.want) {
			t.Errorf("completions of %q: got %q, want only %q", c.line, got, c.want)
		}
	}
}
