package function

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// What a key that is not given means.
const (
	DefaultPort     = 8080
	DefaultContract = "auto"
	DefaultKind     = "inference"
	DefaultTenant   = "default"
)

// maxGPUs is the most GPUs one instance may span.
const maxGPUs = 1024

// contracts and kinds are the words the keys contract and kind know.
var (
	contracts = []string{"auto", "http", "openfaas", "kserve-v2", "openai"}
	kinds     = []string{"inference", "training"}
)

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// checkName says what is wrong with a function's name, if anything.
func checkName(name string) error {
	if len(name) > 63 || !namePattern.MatchString(name) {
		return fmt.Errorf("%s is not a name, expected at most 63 lower-case letters, digits and inner dashes, like resnet-50", csvfile.Quote(name))
	}
	return nil
}

// function reads one document; line is where its name is.
func (p *parser) function(n *yaml.Node) (fn Function, line int) {
	fn = Function{Port: DefaultPort, Contract: DefaultContract, Kind: DefaultKind, GPUs: 1, Weight: 1, Tenant: DefaultTenant}
	lines := p.mapping(n, "", map[string]setter{
		"name": func(p *parser, key string, v *yaml.Node) { fn.Name = p.name(v, key) },
		"image": func(p *parser, key string, v *yaml.Node) {
			fn.Image = p.word(v, key, "an image like registry/resnet:1")
		},
		"command":  func(p *parser, key string, v *yaml.Node) { fn.Command = p.command(v, key) },
		"env":      func(p *parser, key string, v *yaml.Node) { fn.Env = p.env(v, key) },
		"port":     func(p *parser, key string, v *yaml.Node) { fn.Port = p.whole(v, key, 1, math.MaxUint16) },
		"contract": func(p *parser, key string, v *yaml.Node) { fn.Contract = p.oneOf(v, key, contracts) },
		"kind":     func(p *parser, key string, v *yaml.Node) { fn.Kind = p.oneOf(v, key, kinds) },
		"slo":      func(p *parser, key string, v *yaml.Node) { fn.SLO = p.duration(v, key) },
		"gpu_mem":  func(p *parser, key string, v *yaml.Node) { fn.GPUMem = p.size(v, key) },
		"gpus":     func(p *parser, key string, v *yaml.Node) { fn.GPUs = p.whole(v, key, 1, maxGPUs) },
		"weight":   func(p *parser, key string, v *yaml.Node) { fn.Weight = p.positive(v, key) },
		"tenant":   func(p *parser, key string, v *yaml.Node) { fn.Tenant = p.word(v, key, "a tenant's name") },
		"model":    func(p *parser, key string, v *yaml.Node) { fn.Model = p.model(v, key) },
	})
	if fn.Name == "" {
		p.fail(n, "name", "missing, expected a name like resnet-50")
	}
	if fn.Image == "" && lines["command"] == 0 {
		p.fail(n, "image", "neither image nor command is given, expected one of them")
	}
	return fn, lines["name"]
}

func (p *parser) model(n *yaml.Node, key string) *Model {
	var m Model
	lines := p.mapping(n, key+".", map[string]setter{
		"name": func(p *parser, key string, v *yaml.Node) { m.Name = p.word(v, key, "a model's name") },
		"size": func(p *parser, key string, v *yaml.Node) { m.Size = p.size(v, key) },
	})
	for _, k := range []string{"name", "size"} {
		if lines[k] == 0 {
			p.fail(n, key+"."+k, "missing, expected a model like {name: resnet50, size: 98MiB}")
		}
	}
	return &m
}

func (p *parser) name(n *yaml.Node, key string) string {
	text, ok := p.text(n, key, "a name like resnet-50")
	if !ok {
		return ""
	}
	if err := checkName(text); err != nil {
		p.fail(n, key, "%v", err)
	}
	return text
}

// word is a text without spaces: names of images, tenants and models.
func (p *parser) word(n *yaml.Node, key, expected string) string {
	text, ok := p.text(n, key, expected)
	odd := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if ok && (text == "" || len(text) > 1024 || strings.ContainsFunc(text, odd)) {
		p.fail(n, key, "%s, expected %s", csvfile.Quote(text), expected)
	}
	return text
}

func (p *parser) command(n *yaml.Node, key string) []string {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		p.fail(n, key, `%s, expected a program and its arguments like ["./server", "--fast"]`, describe(n))
		return nil
	}
	var command []string
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", key, i)
		text, ok := p.text(item, at, "a text")
		if ok && (i == 0 && text == "" || strings.ContainsRune(text, 0)) {
			p.fail(item, at, "%s, expected a program", csvfile.Quote(text))
		}
		command = append(command, text)
	}
	return command
}

func (p *parser) env(n *yaml.Node, key string) map[string]string {
	if n.Kind != yaml.MappingNode {
		p.fail(n, key, "%s, expected variables like {MODEL: resnet50}", describe(n))
		return nil
	}
	env, lines := map[string]string{}, map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := follow(n.Content[i]), n.Content[i+1]
		at := key + "." + shorten(k.Value)
		odd := func(r rune) bool { return r == '=' || !unicode.IsPrint(r) }
		if k.Kind != yaml.ScalarNode || k.Value == "" || k.Value == "<<" || strings.ContainsFunc(k.Value, odd) {
			p.fail(k, at, "not a variable's name, expected one like MODEL")
		}
		if first := lines[k.Value]; first > 0 {
			p.fail(k, at, "the key is on line %d already, expected once", first)
		}
		lines[k.Value] = k.Line
		text, ok := p.text(v, at, "a text")
		if ok && strings.ContainsRune(text, 0) {
			p.fail(v, at, "a text with a zero byte, expected one without")
		}
		env[k.Value] = text
	}
	if len(env) == 0 {
		return nil
	}
	return env
}

func (p *parser) oneOf(n *yaml.Node, key string, words []string) string {
	expected := "one of " + strings.Join(words, ", ")
	text, ok := p.text(n, key, expected)
	if ok && !slices.Contains(words, text) {
		p.fail(n, key, "%s, expected %s", csvfile.Quote(text), expected)
	}
	return text
}

func (p *parser) whole(n *yaml.Node, key string, least, most int) int {
	expected := fmt.Sprintf("a whole number from %d to %d", least, most)
	text, ok := p.text(n, key, expected)
	if !ok {
		return 0
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < least || v > most {
		p.fail(n, key, "%s, expected %s", csvfile.Quote(text), expected)
	}
	return v
}

func (p *parser) positive(n *yaml.Node, key string) float64 {
	text, ok := p.text(n, key, "a number above 0")
	if !ok {
		return 0
	}
	v, err := csvfile.Positive(text)
	if err != nil {
		p.fail(n, key, "%v", err)
	}
	return v
}

func (p *parser) duration(n *yaml.Node, key string) time.Duration {
	const expected = "a duration above 0 like 69ms or 1.5s"
	text, ok := p.text(n, key, expected)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		p.fail(n, key, "%s, expected %s", csvfile.Quote(text), expected)
	}
	return d
}

func (p *parser) size(n *yaml.Node, key string) gpu.Bytes {
	const expected = "a size above 0 like 1427MiB or 16GiB"
	text, ok := p.text(n, key, expected)
	if !ok {
		return 0
	}
	size, err := gpu.ParseBytes(text)
	if err != nil || size <= 0 {
		p.fail(n, key, "%s, expected %s", csvfile.Quote(text), expected)
	}
	return size
}
