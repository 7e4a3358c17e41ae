package queue

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestTranscripts replays testdata/*.txt. `policy` selects the policy and the GPUs, `function`
// adds a function with its costs (model=N gives it the model of function N, counted from 1; window=DURATION with inflight=N makes its instances run batches),
// `class` sets its costs on the GPUs of a class, `change` changes its costs at a time, and `arrive` adds invocations at a time. `play` runs all
// invocations to their end and prints the policy's actions, indented.
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", replay)
}

// script holds the settings and events of a transcript.
type script struct {
	config    Config
	gpus      int
	gpu       GPUSet
	classes   int // GPU g has the class 1 + g mod classes
	functions []Function
	names     []string
	learned   []Event // durations by class
	events    []timed
	ids       int64
}

// timed is an event and its time. Completions are added when the policy dispatches an invocation.
type timed struct {
	at    time.Duration
	gpu   int32 // of a completion; the largest number for arrivals
	order int64
	Event
}

func replay(text string) (string, error) {
	s := &script{}
	return transcript.Lines(text, func(line string) ([]string, error) { return s.line(strings.Fields(line)) })
}

func (s *script) line(words []string) (decisions []string, err error) {
	switch words[0] {
	case "policy":
		*s = script{config: Config{Policy: words[1], Pool: residency.Unlimited, Options: Defaults()}, gpus: 1, gpu: GPUSet{Slots: 1}}
		return nil, s.settings(words[2:], map[string]func(int64){
			"gpus": func(v int64) { s.gpus = int(v) }, "classes": func(v int64) { s.classes = int(v) }, "concurrency": func(v int64) { s.gpu.Slots = int(v) },
			"pool": func(v int64) { s.config.Pool = int(v) }, "mem": func(v int64) { s.gpu.Mem = v },
			"t": func(v int64) { s.config.T = time.Duration(v) }, "limit": func(v int64) { s.config.Limit = int(v) },
			"prefetch": func(v int64) { s.config.Prefetch = v > 0 }, "swap": func(v int64) { s.config.Swap = v > 0 },
			"ttl":        func(v int64) { s.config.TTL, s.config.FixedTTL = time.Duration(v), true },
			"charge":     func(v int64) { s.config.Charge = time.Duration(v) },
			"tenant-mem": func(v int64) { s.config.Limits.Mem = v }, "tenant-processes": func(v int64) { s.config.Limits.Processes = int(v) },
			"starvation": func(v int64) { s.config.Starvation = float64(v) }, "penalty": func(v int64) { s.config.Penalty = float64(v) },
		})
	case "function":
		f, err := s.function(Function{Weight: 1, Cold: -1}, words[2:])
		s.names, s.functions = append(s.names, words[1]), append(s.functions, f)
		return nil, err
	case "class", "only": // "only" is followed by the number of a GPU
		class, err := strconv.Atoi(words[1])
		if err != nil {
			return nil, err
		}
		n := slices.Index(s.names, words[2])
		f, err := s.function(s.functions[n], words[3:])
		f.Cold = f.Warm + f.Load
		learned := &Learned{Function: int32(n), Spec: f, Class: int32(class)}
		if words[0] == "only" {
			learned.Class, learned.Only = 0, int32(class)+1
		}
		s.learned = append(s.learned, learned)
		return nil, err
	case "change":
		at, err := time.ParseDuration(words[1])
		if err != nil {
			return nil, err
		}
		n := slices.Index(s.names, words[2])
		f, err := s.function(s.functions[n], words[3:])
		s.events = append(s.events, timed{at, math.MaxInt32, s.ids, &FunctionSet{Function: int32(n), Spec: f}})
		return nil, err
	case "arrive":
		at, err := time.ParseDuration(words[1])
		for _, name := range words[2:] {
			s.events = append(s.events, timed{at, math.MaxInt32, s.ids, &Arrived{Function: int32(slices.Index(s.names, name)), ID: s.ids, At: at}})
			s.ids++
		}
		return nil, err
	case "play":
		return s.play()
	}
	return nil, fmt.Errorf("expected policy, function, class, only, change, arrive or play")
}

// function returns f with the given KEY=VALUE words applied.
func (s *script) function(f Function, words []string) (Function, error) {
	err := s.settings(words, map[string]func(int64){
		"warm": func(v int64) { f.Warm = time.Duration(v) }, "cold": func(v int64) { f.Cold = time.Duration(v) },
		"load": func(v int64) { f.Load = time.Duration(v) }, "mem": func(v int64) { f.Mem = v },
		"weight": func(v int64) { f.Weight = float64(v) }, "model": func(v int64) { f.Model = int32(v) },
		"tenant": func(v int64) { f.Tenant = int32(v) }, "max": func(v int64) { f.Max = int32(v) },
		"inflight": func(v int64) { f.Inflight = int32(v) }, "window": func(v int64) { f.Batches, f.BatchWindow = true, time.Duration(v) },
		"slice": func(v int64) { f.Slice = float64(v) / 100 },
	})
	if f.Cold < 0 {
		f.Cold = f.Warm + f.Load
	}
	return f, err
}

// settings reads KEY=VALUE words with durations or numbers as values.
func (s *script) settings(words []string, to map[string]func(int64)) error {
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		set := to[key]
		if set == nil {
			return fmt.Errorf("unknown setting %s", key)
		}
		if d, err := time.ParseDuration(value); err == nil {
			set(int64(d))
		} else if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			set(n)
		} else {
			return err
		}
	}
	return nil
}

// play runs all arrivals. Each invocation takes as long as the policy expects.
func (s *script) play() (decisions []string, err error) {
	p, err := New(s.config)
	if err != nil {
		return nil, err
	}
	var setUp []Event
	for g := range s.gpus {
		set := &GPUSet{GPU: int32(g), Slots: s.gpu.Slots, Mem: s.gpu.Mem}
		if s.classes > 0 {
			set.Class = int32(1 + g%s.classes)
		}
		setUp = append(setUp, set)
	}
	for i := range s.functions {
		setUp = append(setUp, &FunctionSet{Function: int32(i), Spec: s.functions[i]})
	}
	p.Step(0, append(setUp, s.learned...), nil)
	for starts := int64(0); len(s.events) > 0; {
		slices.SortStableFunc(s.events, func(a, b timed) int {
			if a.at != b.at {
				return int(min(max(a.at-b.at, -1), 1))
			}
			if a.gpu != b.gpu { // completions first
				return int(a.gpu - b.gpu)
			}
			return int(min(max(a.order-b.order, -1), 1))
		})
		now, n := s.events[0].at, 0
		var events []Event
		for ; n < len(s.events) && s.events[n].at == now; n++ {
			events = append(events, s.events[n].Event)
		}
		s.events = slices.Delete(s.events, 0, n)
		for len(events) > 0 {
			actions := p.Step(now, events, nil)
			events = nil
			for _, a := range actions {
				if event, needed := a.Confirmation(); needed {
					events = append(events, event)
				}
				if a.Kind == Wake {
					if s.events = slices.DeleteFunc(s.events, func(e timed) bool { return e.order < 0 }); a.At < Never {
						s.events = append(s.events, timed{a.At, math.MaxInt32, -1, &Woke{}})
					}
					continue
				}
				decisions = append(decisions, fmt.Sprintf("%v %s", now, s.describe(&a)))
				if a.Kind == Run {
					if f := &s.functions[a.Function]; f.Batches && a.Start == residency.Cold {
						s.events = append(s.events, timed{now + a.Expected - f.Warm, a.GPU, starts, &Started{Function: a.Function, Instance: a.Instance, ID: a.ID}})
						starts++
					}
					s.events = append(s.events, timed{now + a.Expected, a.GPU, starts, &Completed{Execution{Function: a.Function,
						Instance: a.Instance, ID: a.ID, Executed: min(a.Expected, s.warm(a.Function, a.GPU))}}})
					starts++
				}
			}
		}
	}
	return decisions, nil
}

// warm returns the duration of a gpu-warm invocation on a GPU.
func (s *script) warm(f, gpu int32) time.Duration {
	for _, ev := range s.learned {
		if l := ev.(*Learned); l.Function == f && s.classes > 0 && l.Class == 1+gpu%int32(s.classes) {
			return l.Spec.Warm
		}
	}
	return s.functions[f].Warm
}

func (s *script) describe(a *Action) string {
	name := s.names[a.Function]
	switch a.Kind {
	case Run:
		text := fmt.Sprintf("%s#%d on GPU %d, %v, %v", name, a.ID, a.GPU, a.Start, a.Expected)
		if a.FalseMiss {
			text += ", a false miss"
		}
		return fmt.Sprintf("%s: %v", text, a.Reason.Full())
	case Assign:
		return fmt.Sprintf("%s#%d waits for GPU %d: %v", name, a.ID, a.GPU, a.Reason.Full())
	case Reject:
		return fmt.Sprintf("%s#%d rejected: %v", name, a.ID, a.Reason.Full())
	}
	return fmt.Sprintf("%v %s of GPU %d: %v", a.Kind, name, a.GPU, a.Reason.Full())
}
