package token

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestIntrospectiveTranscripts replays testdata/introspective/*.txt, which are
// like those of the multi-token scheduler. `40ms..100ms 1 +2 +80, 2 +5 +500` is
// periods of 5 ms in which clients launch so many kernels and blocks each; of
// them only the last actions and the changes of a phase are printed.
func TestIntrospectiveTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/introspective/*.txt", func(text string) (string, error) {
		s := &script{s: NewIntrospective(Config{}, Published, 0), phase: map[string]string{}, counts: map[ClientID]*Sample{}}
		return s.play(text)
	})
}

// script is a transcript that is played.
type script struct {
	s      *Introspective
	did    []string          // by the line that is played
	phase  map[string]string // of each instance, as printed last
	counts map[ClientID]*Sample
}

func (s *script) play(text string) (string, error) {
	return transcript.Lines(text, func(line string) ([]string, error) {
		s.did = nil
		if err := s.line(strings.TrimSuffix(line, "?")); err != nil {
			return nil, err
		}
		if strings.HasSuffix(line, "?") {
			for _, c := range s.s.Snapshot().Clients {
				s.say("= client %v of %s %v used %.3f: %s", c.Client, c.Instance, c.State, c.Used, c.Why)
			}
		}
		return s.did, nil
	})
}

func (s *script) say(format string, args ...any) { s.did = append(s.did, fmt.Sprintf(format, args...)) }

func (s *script) line(line string) error {
	when, rest, _ := strings.Cut(line, " ")
	if from, to, span := strings.Cut(when, ".."); span {
		return s.periods(from, to, rest)
	}
	slo := time.Duration(0)
	if before, objective, ok := strings.Cut(line, " slo "); ok {
		var err error
		if slo, err = time.ParseDuration(objective); err != nil {
			return err
		}
		line = before
	}
	at, ev, err := parseEvent(line)
	if err != nil {
		return err
	}
	if a, ok := ev.(AddInstance); ok {
		a.SLO = slo
		ev = a
	}
	s.step(at, ev, true)
	return nil
}

// periods plays a line of periods.
func (s *script) periods(from, to, work string) error {
	at, err := time.ParseDuration(from)
	if err != nil {
		return err
	}
	end, err := time.ParseDuration(to)
	if err != nil {
		return err
	}
	for ; at < end; at += 5 * ms {
		for _, each := range strings.Split(work, ",") {
			var id ClientID
			var launches, blocks uint64
			if _, err := fmt.Sscanf(strings.TrimSpace(each), "%d +%d +%d", &id, &launches, &blocks); err != nil {
				return err
			}
			c := s.counts[id]
			if c == nil {
				c = &Sample{Client: id}
				s.counts[id] = c
			}
			c.Launches += launches
			c.Blocks += blocks
			s.step(at+5*ms, *c, true)
		}
		s.step(at+5*ms, Wake{}, at+5*ms >= end)
		s.phases(at + 5*ms)
	}
	return nil
}

// phases prints what has changed of the instances' phases.
func (s *script) phases(at time.Duration) {
	for _, a := range s.s.accounts {
		if now := a.phase.String(); now != s.phase[a.id] {
			s.say("at %v %s: %v, issued %.3f", at, a.id, now, a.issue)
			s.phase[a.id] = now
		}
	}
}

func (s *script) step(at time.Duration, ev Event, print bool) {
	for _, a := range s.s.Step(at, []Event{ev}, nil) {
		switch a := a.(type) {
		case Budget:
			if print && a.Blocks == Unlimited {
				s.say("budget %v unlimited", a.Client)
			} else if print {
				s.say("budget %v %d: %+d", a.Client, a.Blocks, int64(a.Blocks-s.s.find(a.Client).blocks))
			}
		case WakeAt:
			if a.Reason != "end of the period" {
				s.did = append(s.did, describe(a))
			}
		default:
			s.did = append(s.did, describe(a))
		}
	}
}
