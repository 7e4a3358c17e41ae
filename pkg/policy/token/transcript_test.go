package token

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestTranscripts replays testdata/*.txt. A line is a time and an event (see parseEvent); the indented
// lines below it are the scheduler's actions. After a line that ends with a question mark, the state of
// all clients follows.
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", func(text string) (string, error) { return play(Config{}, text) })
}

// TestPaperTranscripts replays testdata/paper/*.txt, in the published order.
func TestPaperTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/paper/*.txt", func(text string) (string, error) {
		return play(Config{Settings: Settings{GrantOrder: OrderPaper}}, text)
	})
}

// play runs a transcript and prints it with the actual actions.
func play(c Config, text string) (string, error) {
	s := newMultiToken(c, 0)
	return transcript.Lines(text, func(line string) (did []string, err error) {
		at, ev, err := parseEvent(line)
		if err != nil {
			return nil, err
		}
		for _, a := range s.Step(at, []Event{ev}, nil) {
			did = append(did, describe(a))
		}
		if strings.HasSuffix(line, "?") {
			all := s.Snapshot()
			for _, c := range all.Clients {
				of := all.Instance(c.Instance)
				owed := ""
				if of.Owed > 0 {
					owed = fmt.Sprintf(" owed %v", of.Owed)
				}
				did = append(did, fmt.Sprintf("= client %v of %s %v used %.3f debt %v%s: %s",
					c.Client, c.Instance, c.State, c.Used, of.Debt, owed, c.Reason))
			}
		}
		return did, nil
	})
}

func describe(a Action) string {
	switch a := a.(type) {
	case Grant:
		return fmt.Sprintf("grant %v lease %d: %s", a.Client, a.Lease, a.Reason)
	case Revoke:
		return fmt.Sprintf("revoke %v lease %d: %s", a.Client, a.Lease, a.Reason)
	case WakeAt:
		return fmt.Sprintf("wake at %v: %s", a.At, a.Reason)
	}
	return fmt.Sprintf("%+v", a)
}

// parseEvent parses a line such as `10ms request 1`.
func parseEvent(line string) (at time.Duration, ev Event, err error) {
	when, event, _ := strings.Cut(strings.TrimSpace(strings.TrimSuffix(line, "?")), " ")
	verb, rest, _ := strings.Cut(event, " ")
	if at, err = time.ParseDuration(when); err != nil {
		return 0, nil, err
	}
	var id ClientID
	var name string
	switch verb {
	case "instance":
		ev, err := parseInstance(rest)
		return at, ev, err
	case "client":
		_, err = fmt.Sscanf(rest, "%d of %s", &id, &name)
		return at, AddClient{id, name}, err
	case "request":
		_, err = fmt.Sscanf(rest, "%d", &id)
		return at, Request{id}, err
	case "return":
		var lease uint32
		var used, next string // next is "more" if the client requests the GPU again at once, or else "idle"
		if _, err = fmt.Sscanf(rest, "%d lease %d used %s %s", &id, &lease, &used, &next); err != nil {
			return 0, nil, err
		}
		d, err := time.ParseDuration(used)
		return at, Return{id, lease, d, next == "more"}, err
	case "ending":
		var lease uint32
		var remaining string
		if _, err = fmt.Sscanf(rest, "%d lease %d left %s", &id, &lease, &remaining); err != nil {
			return 0, nil, err
		}
		d, err := time.ParseDuration(remaining)
		return at, Ending{id, lease, d}, err
	case "unleased":
		var used string
		if _, err = fmt.Sscanf(rest, "%d used %s", &id, &used); err != nil {
			return 0, nil, err
		}
		d, err := time.ParseDuration(used)
		return at, Unleased{id, d}, err
	case "suspend":
		number, why, _ := strings.Cut(rest, " ")
		_, err = fmt.Sscanf(number, "%d", &id)
		return at, Suspend{id, why == "stopped"}, err
	case "gone":
		_, err = fmt.Sscanf(rest, "%d", &id)
		return at, RemoveClient{id}, err
	case "forget":
		return at, RemoveInstance{rest}, nil
	case "wake":
		return at, Wake{}, nil
	case "configure":
		c := Configure{}
		var window, round string
		if _, err = fmt.Sscanf(rest, "%s round %s sm %g", &window, &round, &c.SMLimit); err == nil {
			c.Window, err = time.ParseDuration(window)
		}
		if err == nil {
			c.Round, err = time.ParseDuration(round)
		}
		return at, c, err
	}
	return 0, nil, fmt.Errorf("unknown event %q", verb)
}

// parseInstance parses a slice such as `a sm 50 quota 0.3 0.8 turns 0-0.3`, or `a sm 25:50 quota 0.3 0.8`
// with an SM limit.
func parseInstance(text string) (a AddInstance, err error) {
	slice, turns, _ := strings.Cut(text, " turns ")
	var sm string
	if _, err := fmt.Sscanf(slice, "%s sm %s quota %g %g", &a.Instance, &sm, &a.Slice.QuotaRequest, &a.Slice.QuotaLimit); err != nil {
		return a, err
	}
	if n, err := fmt.Sscanf(sm, "%g:%g", &a.Slice.SMPct, &a.Slice.SMLimitPct); n == 0 {
		return a, err
	}
	for turn := range strings.FieldsSeq(turns) {
		var t gpu.Turn
		if _, err := fmt.Sscanf(turn, "%g-%g", &t.From, &t.To); err != nil {
			return a, err
		}
		a.Turns = append(a.Turns, t)
	}
	return a, nil
}

// TestIntrospectiveTranscripts replays testdata/introspective/*.txt, which have the same format as
// the multi-token transcripts. In addition, an instance may have `kind training`, `slo 50ms` and `llm`,
// in this order. The line `40ms..100ms 1 +2 +80, 2 +5 +500` stands for periods of 5 ms, in each of
// which client 1 launches 2 kernels with 80 blocks, and client 2 launches 5 kernels with 500 blocks. Of
// the budgets in such periods, only those of the last one are printed, and of the phases only changes.
func TestIntrospectiveTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/introspective/*.txt", func(text string) (string, error) {
		s := &script{s: newIntrospective(Config{}, published, 0), phase: map[string]string{}, counts: map[ClientID]*Sample{}}
		return s.play(text)
	})
}

// script is a transcript in replay.
type script struct {
	s      *introspective
	output []string             // output for the current line
	phase  map[string]string    // the last printed phase of each instance
	counts map[ClientID]*Sample // launches and blocks of each client so far
}

func (s *script) play(text string) (string, error) {
	return transcript.Lines(text, func(line string) ([]string, error) {
		s.output = nil
		if err := s.line(strings.TrimSuffix(line, "?")); err != nil {
			return nil, err
		}
		if strings.HasSuffix(line, "?") {
			for _, c := range s.s.Snapshot().Clients {
				s.printf("= client %v of %s %v used %.3f: %s", c.Client, c.Instance, c.State, c.Used, c.Reason)
			}
		}
		return s.output, nil
	})
}

func (s *script) printf(format string, args ...any) {
	s.output = append(s.output, fmt.Sprintf(format, args...))
}

// line plays one line.
func (s *script) line(line string) error {
	when, rest, _ := strings.Cut(line, " ")
	if from, to, span := strings.Cut(when, ".."); span {
		return s.periods(from, to, rest)
	}
	slo := time.Duration(0)
	line, llm := strings.CutSuffix(line, " llm")
	if before, objective, ok := strings.Cut(line, " slo "); ok {
		var err error
		if slo, err = time.ParseDuration(objective); err != nil {
			return err
		}
		line = before
	}
	line, training := strings.CutSuffix(line, " kind training")
	at, ev, err := parseEvent(line)
	if err != nil {
		return err
	}
	if a, ok := ev.(AddInstance); ok {
		a.SLO, a.Training, a.LLM = slo, training, llm
		ev = a
	}
	s.step(at, ev, true)
	return nil
}

// periods plays a line that stands for several periods.
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

// phases prints the instances' phases that have changed.
func (s *script) phases(at time.Duration) {
	for _, a := range s.s.instances {
		if now := a.phase.String(); now != s.phase[a.id] {
			s.printf("at %v %s: %v, issued %.3f", at, a.id, now, a.issued)
			s.phase[a.id] = now
		}
	}
}

// step sends an event and prints the actions: the budgets only if printBudgets is true, and no wake-ups
// at the end of a period.
func (s *script) step(at time.Duration, ev Event, printBudgets bool) {
	for _, a := range s.s.Step(at, []Event{ev}, nil) {
		switch a := a.(type) {
		case Budget:
			switch {
			case !printBudgets:
			case a.Blocks == Unlimited:
				s.printf("budget %v unlimited", a.Client)
			default:
				s.printf("budget %v %d: %+d", a.Client, a.Blocks, int64(a.Blocks-s.s.find(a.Client).blocks))
			}
		case WakeAt:
			if a.Reason.Code != periodEnd {
				s.output = append(s.output, describe(a))
			}
		default:
			s.output = append(s.output, describe(a))
		}
	}
}
