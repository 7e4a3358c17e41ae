package function

import (
	"errors"
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
	Kernels         = "kernels" // the kind of graphs of kernels
	DefaultTenant   = "default"
	DefaultRestart  = "no"

	// What a Function may say of unmanaged processes.
	DefaultUnmanaged = "report"
	StopUnmanaged    = "stop"

	DefaultInflight = 1
)

// DefaultScale is the scale of a function that gives none, and what is not
// given of one.
var DefaultScale = Scale{Max: 8, Idle: 5 * time.Minute}

// Bounds of what a gateway does for a function.
const (
	maxInstances = 4096
	maxPids      = 1 << 22 // as many as Linux can number
	maxInflight  = 4096
	maxQueue     = 1 << 20
)

// maxGPUs is the most GPUs one instance may span.
const maxGPUs = 1024

// contracts, kinds, restarts, unmanaged and websocket are the words the keys of these
// names (in the singular) know.
var (
	contracts = []string{"auto", "http", "openfaas", "kserve-v2", "openai"}
	kinds     = []string{"inference", "training", Kernels}
	restarts  = []string{"no", "on-failure", "always"}
	unmanaged = []string{DefaultUnmanaged, StopUnmanaged}
	websocket = []string{"close", keepWebSocket}
)

const keepWebSocket = "keep"

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// CheckName says what is wrong with a function's name, if anything: an error that
// names it and what was expected.
func CheckName(name string) error {
	if len(name) > 63 || !namePattern.MatchString(name) {
		return fmt.Errorf("%s is not a name, expected at most 63 lower-case letters, digits and inner dashes, like resnet-50", csvfile.Quote(name))
	}
	return nil
}

// function reads one document; line is where its name is.
func (p *parser) function(n *yaml.Node) (fn Function, line int) {
	fn = Function{Port: DefaultPort, Contract: DefaultContract, Kind: DefaultKind, GPUs: 1, Weight: 1, Tenant: DefaultTenant, Restart: DefaultRestart,
		Scale: DefaultScale, Inflight: DefaultInflight, Unmanaged: DefaultUnmanaged}
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
		"request":  func(p *parser, key string, v *yaml.Node) { fn.Request = p.word(v, key, "a file, like request.json") },
		"slo":      func(p *parser, key string, v *yaml.Node) { fn.SLO = p.duration(v, key) },
		"gpu_mem":  func(p *parser, key string, v *yaml.Node) { fn.GPUMem = p.memory(v, key) },
		"gpus":     func(p *parser, key string, v *yaml.Node) { fn.GPUs = p.whole(v, key, 1, maxGPUs) },
		"weight":   func(p *parser, key string, v *yaml.Node) { fn.Weight = p.positive(v, key) },
		"tenant":   func(p *parser, key string, v *yaml.Node) { fn.Tenant = p.word(v, key, "a tenant's name") },
		"model":    func(p *parser, key string, v *yaml.Node) { fn.Model = p.model(v, key) },
		"scale":    func(p *parser, key string, v *yaml.Node) { fn.Scale = p.scale(v, key) },
		"inflight": func(p *parser, key string, v *yaml.Node) { fn.Inflight = p.whole(v, key, 1, maxInflight) },
		"timeout":  func(p *parser, key string, v *yaml.Node) { fn.Timeout = p.duration(v, key) },
		"queue":    func(p *parser, key string, v *yaml.Node) { fn.Queue = p.whole(v, key, 1, maxQueue) },
		"labels":   func(p *parser, key string, v *yaml.Node) { fn.Labels = p.labels(v, key) },
		"annotations": func(p *parser, key string, v *yaml.Node) {
			fn.Annotations = p.labels(v, key)
		},
		"restart": func(p *parser, key string, v *yaml.Node) { fn.Restart = p.oneOf(v, key, restarts) },
		"limits":  func(p *parser, key string, v *yaml.Node) { fn.Limits = p.limits(v, key) },
		"read_only": func(p *parser, key string, v *yaml.Node) {
			fn.ReadOnly = p.oneOf(v, key, []string{"true", "false"}) == "true"
		},
		"unmanaged": func(p *parser, key string, v *yaml.Node) { fn.Unmanaged = p.oneOf(v, key, unmanaged) },
		"probes":    func(p *parser, key string, v *yaml.Node) { fn.Probes = p.probes(v, key) },
		"websocket": func(p *parser, key string, v *yaml.Node) {
			fn.KeepUpgraded = p.oneOf(v, key, websocket) == keepWebSocket
		},
	})
	if fn.Name == "" {
		p.fail(n, "name", "missing, expected a name like resnet-50")
	}
	if fn.Kind == Kernels || fn.Request != "" {
		p.kernels(n, &fn, lines)
	} else if fn.Image == "" && lines["command"] == 0 {
		p.fail(n, "image", "neither image nor command is given, expected one of them")
	}
	if fn.Image == "" {
		for _, key := range []string{"limits", "read_only"} {
			if lines[key] > 0 {
				p.failAt(lines[key], key, "of a container, expected an image too")
			}
		}
	}
	return fn, lines["name"]
}

// kernels checks what a graph of kernels has: a request, and no program.
func (p *parser) kernels(n *yaml.Node, fn *Function, lines map[string]int) {
	switch {
	case fn.Kind != Kernels:
		p.failAt(lines["request"], "request", "of the kind %s, expected \"kind: %s\" with it", fn.Kind, Kernels)
	case fn.Request == "":
		p.fail(n, "request", "missing, expected the file of a request for gfaas-kerneld")
	}
	for _, key := range []string{"image", "command"} {
		if lines[key] > 0 {
			p.failAt(lines[key], key, "of a graph of kernels, expected none: gfaas-kerneld runs it")
		}
	}
}

func (p *parser) limits(n *yaml.Node, key string) (l Limits) {
	p.mapping(n, key+".", map[string]setter{
		"memory": func(p *parser, key string, v *yaml.Node) { l.Memory = p.memory(v, key) },
		"pids":   func(p *parser, key string, v *yaml.Node) { l.Pids = p.whole(v, key, 1, maxPids) },
		"cpus":   func(p *parser, key string, v *yaml.Node) { l.CPUs = p.positive(v, key) },
	})
	return l
}

func (p *parser) scale(n *yaml.Node, key string) Scale {
	s := DefaultScale
	lines := p.mapping(n, key+".", map[string]setter{
		"min":  func(p *parser, key string, v *yaml.Node) { s.Min = p.whole(v, key, 0, maxInstances) },
		"max":  func(p *parser, key string, v *yaml.Node) { s.Max = p.whole(v, key, 1, maxInstances) },
		"idle": func(p *parser, key string, v *yaml.Node) { s.Idle = p.duration(v, key) },
	})
	if s.Min > s.Max {
		if lines["max"] > 0 {
			p.fail(n, key+".max", "%d, expected at least min, %d", s.Max, s.Min)
		}
		s.Max = s.Min
	}
	return s
}

func (p *parser) model(n *yaml.Node, key string) *Model {
	var m Model
	lines := p.mapping(n, key+".", map[string]setter{
		"name": func(p *parser, key string, v *yaml.Node) { m.Name = p.word(v, key, "a model's name") },
		"file": func(p *parser, key string, v *yaml.Node) { m.File = p.path(v, key, "a safetensors file") },
		"size": func(p *parser, key string, v *yaml.Node) { m.Size = p.size(v, key) },
	})
	const like = "missing, expected a model like {name: resnet50, file: resnet50.safetensors}"
	if lines["name"] == 0 {
		p.fail(n, key+".name", like)
	}
	if lines["file"] == 0 && lines["size"] == 0 {
		p.fail(n, key+".file", like)
	}
	return &m
}

func (p *parser) name(n *yaml.Node, key string) string {
	text, ok := p.text(n, key, "a name like resnet-50")
	if !ok {
		return ""
	}
	if err := CheckName(text); err != nil {
		p.fail(n, key, "%v", err)
	}
	return text
}

// path is a text that can be a file's.
func (p *parser) path(n *yaml.Node, key, expected string) string {
	text, ok := p.text(n, key, expected)
	if ok && (text == "" || len(text) > 4096 || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })) {
		p.fail(n, key, "%s, expected %s", csvfile.Quote(text), expected)
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
	odd := func(r rune) bool { return r == '=' || !unicode.IsPrint(r) }
	return p.texts(n, key, "variables like {MODEL: resnet50}", "a variable's name, expected one like MODEL", odd)
}

func (p *parser) labels(n *yaml.Node, key string) map[string]string {
	odd := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }
	return p.texts(n, key, "names and values like {team: vision}", "a label's name, expected one like team", odd)
}

// texts is a mapping of names, in which nothing is odd, to texts; nil if it is
// empty.
func (p *parser) texts(n *yaml.Node, key, expected, name string, odd func(rune) bool) map[string]string {
	if n.Kind != yaml.MappingNode {
		p.fail(n, key, "%s, expected %s", describe(n), expected)
		return nil
	}
	texts, lines := map[string]string{}, map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := follow(n.Content[i]), n.Content[i+1]
		at := key + "." + shorten(k.Value)
		if k.Kind != yaml.ScalarNode || k.Value == "" || k.Value == "<<" || strings.ContainsFunc(k.Value, odd) {
			p.fail(k, at, "not %s", name)
		}
		if first := lines[k.Value]; first > 0 {
			p.fail(k, at, "the key is on line %d already, expected once", first)
		}
		lines[k.Value] = k.Line
		text, ok := p.text(v, at, "a text")
		if ok && strings.ContainsRune(text, 0) {
			p.fail(v, at, "a text with a zero byte, expected one without")
		}
		texts[k.Value] = text
	}
	if len(texts) == 0 {
		return nil
	}
	return texts
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

// memory is a size of at least 1 MiB.
func (p *parser) memory(n *yaml.Node, key string) gpu.Bytes {
	size := p.size(n, key)
	if _, err := gpu.ParseMemory(size.String()); p.fault == nil && err != nil {
		p.fail(n, key, "%v", err)
	}
	return size
}

func (p *parser) size(n *yaml.Node, key string) gpu.Bytes {
	const expected = "a size above 0 like 1427MiB or 16GiB"
	text, ok := p.text(n, key, expected)
	if !ok {
		return 0
	}
	size, err := gpu.ParseBytes(text)
	if errors.Is(err, gpu.ErrTooLarge) {
		p.fail(n, key, "%v", err)
		return 0
	}
	if err != nil || size <= 0 {
		p.fail(n, key, "%s, expected %s", csvfile.Quote(text), expected)
	}
	return size
}
