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

// The defaults of keys.
const (
	DefaultPort     = 8080
	DefaultContract = "auto"
	DefaultKind     = "inference"
	Kernels         = "kernels" // the kind of functions that are kernel graphs

	// Training is the kind of functions that are jobs: their commands run to completion, answer no
	// calls, and are restarted only after a failure.
	Training       = "training"
	DefaultTenant  = "default"
	DefaultRestart = "no"

	// RestartOnFailure is the default of Function.Restart for training functions, and
	// DefaultMaxRestarts that of Function.MaxRestarts.
	RestartOnFailure   = "on-failure"
	DefaultMaxRestarts = 6

	// The values of Function.Unmanaged.
	DefaultUnmanaged = "report"
	StopUnmanaged    = "stop"

	DefaultInflight = 1
)

// DefaultScale has the defaults of Scale's fields.
var DefaultScale = Scale{Max: 8, Idle: 5 * time.Minute}

// DefaultBatcher has the defaults of Batcher's fields.
var DefaultBatcher = Batcher{Max: 8, Latency: 5 * time.Millisecond}

// The largest values of keys for gateways.
const (
	maxInstances = 4096
	maxPids      = 1 << 22 // Linux's largest number of process IDs
	maxInflight  = 4096
	maxQueue     = 1 << 20
	maxBatch     = 4096
	maxLatency   = time.Minute
	maxRestarts  = 1000
)

// maxGPUs is the most GPUs of one instance.
const maxGPUs = 1024

// contracts, kinds, restarts, unmanaged and websocket are the values of the keys with these names (in
// the singular).
var (
	contracts = []string{"auto", "http", "openfaas", "kserve-v2", "openai"}
	kinds     = []string{"inference", Training, Kernels}
	restarts  = []string{DefaultRestart, RestartOnFailure, "always"}
	unmanaged = []string{DefaultUnmanaged, StopUnmanaged}
	websocket = []string{"close", keepWebSocket}
)

const keepWebSocket = "keep"

// keepUpgraded is a bool that is written as the value of the key websocket. false is never written.
type keepUpgraded bool

func (keepUpgraded) MarshalYAML() (any, error) { return keepWebSocket, nil }

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// CheckName returns an error if a text is not a valid name of a function.
func CheckName(name string) error {
	if len(name) > 63 || !namePattern.MatchString(name) {
		return fmt.Errorf("%s is not a name, expected at most 63 lower-case letters, digits and dashes, with a letter or digit first and last, like resnet-50", csvfile.Quote(name))
	}
	return nil
}

// function parses one document. It also returns the lines of the keys.
func (p *parser) function(n *yaml.Node) (fn Function, lines map[string]int) {
	fn = Function{Port: DefaultPort, Contract: DefaultContract, Kind: DefaultKind, GPUs: 1, Weight: 1, Tenant: DefaultTenant, Restart: DefaultRestart,
		Scale: DefaultScale, Inflight: DefaultInflight, Unmanaged: DefaultUnmanaged}
	lines = p.mapping(n, "", map[string]setter{
		"name":     func(key string, v *yaml.Node) { fn.Name = p.name(v, key) },
		"image":    func(key string, v *yaml.Node) { fn.Image = p.word(v, key, "an image like registry/resnet:1") },
		"command":  func(key string, v *yaml.Node) { fn.Command = p.command(v, key) },
		"env":      func(key string, v *yaml.Node) { fn.Env = p.env(v, key) },
		"port":     func(key string, v *yaml.Node) { fn.Port = p.whole(v, key, 1, math.MaxUint16) },
		"contract": func(key string, v *yaml.Node) { fn.Contract = p.oneOf(v, key, contracts) },
		"ready":    func(key string, v *yaml.Node) { fn.Ready = p.ready(v, key) },
		"aliases":  func(key string, v *yaml.Node) { fn.Aliases = p.aliases(v, key) },
		"served":   func(key string, v *yaml.Node) { fn.Served = p.modelName(v, key) },
		"listed":   func(key string, v *yaml.Node) { fn.Unlisted = p.oneOf(v, key, []string{"true", "false"}) == "false" },
		"loading": func(key string, v *yaml.Node) {
			fn.LoadingComments = p.oneOf(v, key, []string{loadingNone, loadingComment}) == loadingComment
		},
		"kind":     func(key string, v *yaml.Node) { fn.Kind = p.oneOf(v, key, kinds) },
		"request":  func(key string, v *yaml.Node) { fn.Request = p.word(v, key, "a file, like request.json") },
		"slo":      func(key string, v *yaml.Node) { fn.SLO = p.duration(v, key) },
		"sm":       func(key string, v *yaml.Node) { fn.SM = p.share(v, key) },
		"quota":    func(key string, v *yaml.Node) { fn.Quota = p.quota(v, key) },
		"gpu_mem":  func(key string, v *yaml.Node) { fn.GPUMem = p.memory(v, key) },
		"gpus":     func(key string, v *yaml.Node) { fn.GPUs = p.whole(v, key, 1, maxGPUs) },
		"weight":   func(key string, v *yaml.Node) { fn.Weight = p.positive(v, key) },
		"tenant":   func(key string, v *yaml.Node) { fn.Tenant = p.word(v, key, "a tenant's name") },
		"model":    func(key string, v *yaml.Node) { fn.Model = p.model(v, key) },
		"scale":    func(key string, v *yaml.Node) { fn.Scale = p.scale(v, key) },
		"inflight": func(key string, v *yaml.Node) { fn.Inflight = p.whole(v, key, 1, maxInflight) },
		"batch_window": func(key string, v *yaml.Node) {
			fn.BatchWindow = new(p.durationFrom(v, key, "a duration like 500ms, or 0s", 0))
		},
		"batcher":      func(key string, v *yaml.Node) { fn.Batcher = p.batcher(v, key) },
		"timeout":      func(key string, v *yaml.Node) { fn.Timeout = p.duration(v, key) },
		"queue":        func(key string, v *yaml.Node) { fn.Queue = p.whole(v, key, 1, maxQueue) },
		"labels":       func(key string, v *yaml.Node) { fn.Labels = p.labels(v, key) },
		"annotations":  func(key string, v *yaml.Node) { fn.Annotations = p.labels(v, key) },
		"restart":      func(key string, v *yaml.Node) { fn.Restart = p.oneOf(v, key, restarts) },
		"limits":       func(key string, v *yaml.Node) { fn.Limits = p.limits(v, key) },
		"read_only":    func(key string, v *yaml.Node) { fn.ReadOnly = p.oneOf(v, key, []string{"true", "false"}) == "true" },
		"max_restarts": func(key string, v *yaml.Node) { fn.MaxRestarts = p.whole(v, key, 0, maxRestarts) },
		"deadline":     func(key string, v *yaml.Node) { fn.Deadline = p.duration(v, key) },
		"progress":     func(key string, v *yaml.Node) { fn.Progress = p.pattern(v, key) },
		"unmanaged":    func(key string, v *yaml.Node) { fn.Unmanaged = p.oneOf(v, key, unmanaged) },
		"probes":       func(key string, v *yaml.Node) { fn.Probes = p.probes(v, key) },
		"affinity":     func(key string, v *yaml.Node) { fn.Affinity = p.affinity(v, key) },
		"websocket":    func(key string, v *yaml.Node) { fn.KeepUpgraded = p.oneOf(v, key, websocket) == keepWebSocket },
	})
	if fn.Name == "" {
		p.fail(n, "name", "missing, expected a name like resnet-50")
	}
	if fn.Kind == Kernels || fn.Request != "" {
		p.kernels(n, &fn, lines)
	} else if fn.Image == "" && lines["command"] == 0 {
		p.fail(n, "image", "missing, expected an image or a command")
	}
	p.training(&fn, lines)
	if fn.Affinity != "" && fn.Batcher != nil {
		p.failAt(lines["affinity"], "affinity", "not allowed with batcher, because a batch has calls of several callers")
	}
	if fn.Image == "" {
		p.forbid(lines, []string{"limits", "read_only"}, "applies only to containers, expected the key image as well")
	}
	return fn, lines
}

// forbid fails at each of the keys that the document has.
func (p *parser) forbid(lines map[string]int, keys []string, format string, args ...any) {
	for _, key := range keys {
		if lines[key] > 0 {
			p.failAt(lines[key], key, format, args...)
		}
	}
}

// kernels checks that a kernel graph has a request and no program.
func (p *parser) kernels(n *yaml.Node, fn *Function, lines map[string]int) {
	switch {
	case fn.Kind != Kernels:
		p.failAt(lines["request"], "request", "not allowed with \"kind: %s\", expected \"kind: %s\"", fn.Kind, Kernels)
	case fn.Request == "":
		p.fail(n, "request", "missing, expected a file with a request for gfaas-kerneld")
	}
	p.forbid(lines, []string{"image", "command"},
		"not allowed with \"kind: kernels\", because gfaas-kerneld runs the kernels")
}

// training sets the defaults of a training function, and checks the keys that only such functions
// have.
func (p *parser) training(fn *Function, lines map[string]int) {
	if fn.Kind != Training {
		p.forbid(lines, []string{"max_restarts", "deadline", "progress"},
			"not allowed with \"kind: %s\", expected \"kind: %s\"", fn.Kind, Training)
		return
	}
	p.forbid(lines, []string{"batcher", "ready", "aliases", "served", "listed", "loading"},
		"not allowed with \"kind: %s\", because a job gets no calls", Training)
	if lines["restart"] == 0 {
		fn.Restart = RestartOnFailure
	}
	switch {
	case fn.Restart == RestartOnFailure && lines["max_restarts"] == 0:
		fn.MaxRestarts = DefaultMaxRestarts
	case fn.Restart == RestartOnFailure && fn.MaxRestarts == 0:
		fn.Restart = DefaultRestart // means the same
	}
	switch {
	case fn.Restart == "always":
		p.failAt(lines["restart"], "restart", "\"always\" is not allowed with \"kind: %s\", because the job would never be complete, expected no or %s", Training, RestartOnFailure)
	case fn.Restart == DefaultRestart && fn.MaxRestarts > 0:
		p.failAt(lines["max_restarts"], "max_restarts", "not allowed with \"restart: no\", expected \"restart: %s\"", RestartOnFailure)
	case fn.Image != "" && lines["deadline"] > 0:
		p.failAt(lines["deadline"], "deadline", "applies only to processes, expected no key image")
	}
}

func (p *parser) limits(n *yaml.Node, key string) (l Limits) {
	p.mapping(n, key+".", map[string]setter{
		"memory": func(key string, v *yaml.Node) { l.Memory = p.memory(v, key) },
		"pids":   func(key string, v *yaml.Node) { l.Pids = p.whole(v, key, 1, maxPids) },
		"cpus":   func(key string, v *yaml.Node) { l.CPUs = p.positive(v, key) },
	})
	return l
}

func (p *parser) scale(n *yaml.Node, key string) Scale {
	s := DefaultScale
	lines := p.mapping(n, key+".", map[string]setter{
		"min":  func(key string, v *yaml.Node) { s.Min = p.whole(v, key, 0, maxInstances) },
		"max":  func(key string, v *yaml.Node) { s.Max = p.whole(v, key, 1, maxInstances) },
		"idle": func(key string, v *yaml.Node) { s.Idle = p.duration(v, key) },
	})
	if s.Min > s.Max {
		if lines["max"] > 0 {
			p.fail(n, key+".max", "%d is less than min, expected at least %d", s.Max, s.Min)
		}
		s.Max = s.Min
	}
	return s
}

func (p *parser) batcher(n *yaml.Node, key string) *Batcher {
	b := DefaultBatcher
	p.mapping(n, key+".", map[string]setter{
		"max": func(key string, v *yaml.Node) { b.Max = p.whole(v, key, 1, maxBatch) },
		"latency": func(key string, v *yaml.Node) {
			if b.Latency = p.duration(v, key); b.Latency > maxLatency {
				p.fail(v, key, "%v, expected at most %v", b.Latency, maxLatency)
			}
		},
		"repeat": func(key string, v *yaml.Node) { b.Repeat = p.oneOf(v, key, []string{"true", "false"}) == "true" },
	})
	return &b
}

func (p *parser) model(n *yaml.Node, key string) *Model {
	var m Model
	lines := p.mapping(n, key+".", map[string]setter{
		"name": func(key string, v *yaml.Node) { m.Name = p.word(v, key, "a model's name") },
		"file": func(key string, v *yaml.Node) { m.File = p.path(v, key, "a safetensors file") },
		"size": func(key string, v *yaml.Node) { m.Size = p.size(v, key) },
	})
	const like = ", as in {name: resnet50, file: resnet50.safetensors}"
	if lines["name"] == 0 {
		p.fail(n, key+".name", "missing, expected the name of the model"+like)
	}
	if lines["file"] == 0 && lines["size"] == 0 {
		p.fail(n, key+".file", "missing, expected file or size"+like)
	}
	return &m
}

func (p *parser) name(n *yaml.Node, key string) string {
	return scalar(p, n, key, "a name like resnet-50", func(text string) (string, error) { return text, CheckName(text) })
}

// path returns a text that can be the name of a file.
func (p *parser) path(n *yaml.Node, key, expected string) string {
	return p.accept(n, key, expected, func(text string) bool {
		return text != "" && len(text) <= 4096 && !strings.ContainsFunc(text, unprintable)
	})
}

// pattern returns a regular expression.
func (p *parser) pattern(n *yaml.Node, key string) string {
	return scalar(p, n, key, "a regular expression, like ^step [0-9]+", func(text string) (string, error) {
		if text == "" {
			return "", errors.New("an empty pattern, expected a regular expression, like ^step [0-9]+")
		}
		if _, err := regexp.Compile(text); err != nil {
			return "", fmt.Errorf("%w, expected a regular expression (RE2), like ^step [0-9]+", err)
		}
		return text, nil
	})
}

// word returns a text without spaces: the name of an image, a tenant or a model.
func (p *parser) word(n *yaml.Node, key, expected string) string {
	return p.accept(n, key, expected, func(text string) bool {
		return text != "" && len(text) <= 1024 && !strings.ContainsFunc(text, unprintableOrSpace)
	})
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

func unprintableOrSpace(r rune) bool { return unicode.IsSpace(r) || unprintable(r) }

func (p *parser) command(n *yaml.Node, key string) []string {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		p.fail(n, key, `%s, expected a program and its arguments like ["./server", "--fast"]`, describe(n))
		return nil
	}
	var command []string
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", key, i)
		text, ok := p.text(item, at, "a string")
		switch {
		case ok && i == 0 && text == "":
			p.fail(item, at, "an empty string, expected a program")
		case strings.ContainsRune(text, 0):
			p.fail(item, at, "the value contains a zero byte, expected none")
		}
		command = append(command, text)
	}
	return command
}

func (p *parser) env(n *yaml.Node, key string) map[string]string {
	odd := func(r rune) bool { return r == '=' || unprintable(r) }
	return p.texts(n, key, "variables like {MODEL: resnet50}", "a variable's name, expected one like MODEL", odd)
}

func (p *parser) labels(n *yaml.Node, key string) map[string]string {
	return p.texts(n, key, "names and values like {team: vision}", "a label's name, expected one like team", unprintableOrSpace)
}

// texts returns a mapping of names, which have no odd characters, to texts; nil if it is empty.
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
		text, ok := p.text(v, at, "a string")
		if ok && strings.ContainsRune(text, 0) {
			p.fail(v, at, "the value contains a zero byte, expected none")
		}
		texts[k.Value] = text
	}
	if len(texts) == 0 {
		return nil
	}
	return texts
}

func (p *parser) oneOf(n *yaml.Node, key string, words []string) string {
	return p.accept(n, key, "one of "+strings.Join(words, ", "), func(text string) bool { return slices.Contains(words, text) })
}

func (p *parser) whole(n *yaml.Node, key string, least, most int) int {
	return scalar(p, n, key, fmt.Sprintf("a whole number from %d to %d", least, most), func(text string) (int, error) {
		v, err := strconv.Atoi(text)
		if err != nil || v < least || v > most {
			err = errUnexpected
		}
		return v, err
	})
}

func (p *parser) positive(n *yaml.Node, key string) float64 {
	return scalar(p, n, key, "a number above 0", csvfile.Positive)
}

func (p *parser) duration(n *yaml.Node, key string) time.Duration {
	return p.durationFrom(n, key, "a duration above 0 like 69ms or 1.5s", 1)
}

// durationFrom returns a duration that is at least as long as the given one.
func (p *parser) durationFrom(n *yaml.Node, key, expected string, least time.Duration) time.Duration {
	return scalar(p, n, key, expected, func(text string) (time.Duration, error) {
		d, err := time.ParseDuration(text)
		if err != nil || d < least {
			err = errUnexpected
		}
		return d, err
	})
}

// share returns a share of the SMs in percent.
func (p *parser) share(n *yaml.Node, key string) float64 {
	return scalar(p, n, key, "a share of the SMs in percent, above 0 and at most 100", func(text string) (float64, error) {
		v, err := csvfile.Positive(strings.TrimSuffix(text, "%"))
		if err != nil || v > 100 {
			err = errUnexpected
		}
		return v, err
	})
}

func (p *parser) quota(n *yaml.Node, key string) Quota {
	return scalar(p, n, key, "a quota above 0 and at most 1, like 0.3 or, with a limit, 0.3:0.6", func(text string) (q Quota, err error) {
		if q.Request, q.Limit, err = gpu.ParseQuota(text); err == nil {
			err = gpu.Slice{SMPct: 100, QuotaRequest: q.Request, QuotaLimit: q.Limit}.Validate()
		}
		if err != nil {
			err = errUnexpected
		}
		return q, err
	})
}

// memory returns a size of at least 1 MiB.
func (p *parser) memory(n *yaml.Node, key string) gpu.Bytes {
	size := p.size(n, key)
	if _, err := gpu.ParseMemory(size.String()); p.fault == nil && err != nil {
		p.fail(n, key, "%v", err)
	}
	return size
}

func (p *parser) size(n *yaml.Node, key string) gpu.Bytes {
	return scalar(p, n, key, "a size above 0 like 1427MiB or 16GiB", func(text string) (gpu.Bytes, error) {
		size, err := gpu.ParseBytes(text)
		if !errors.Is(err, gpu.ErrTooLarge) && (err != nil || size <= 0) {
			err = errUnexpected
		}
		return size, err
	})
}

// errUnexpected is the error of a text that is not as expected.
var errUnexpected = errors.New("unexpected text")

// scalar returns a scalar as parse converts it. It fails with the error of parse or, if that is
// errUnexpected, with the expectation.
func scalar[T any](p *parser, n *yaml.Node, key, expected string, parse func(text string) (T, error)) (v T) {
	text, ok := p.text(n, key, expected)
	if !ok {
		return v
	}
	v, err := parse(text)
	switch {
	case errors.Is(err, errUnexpected):
		p.fail(n, key, "%s, expected %s", csvfile.Quote(text), expected)
	case err != nil:
		p.fail(n, key, "%v", err)
	}
	return v
}

// accept returns a scalar that is as expected.
func (p *parser) accept(n *yaml.Node, key, expected string, is func(text string) bool) string {
	return scalar(p, n, key, expected, func(text string) (string, error) {
		if !is(text) {
			return text, errUnexpected
		}
		return text, nil
	})
}
