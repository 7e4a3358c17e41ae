package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Reader reads a record line by line. It ignores an incomplete last line, which a killed
// writer leaves, and reports it with textfile.Notef.
type Reader struct {
	file       io.Reader
	in         *bufio.Reader
	name       string
	line       int
	incomplete bool // the last line is incomplete, and that was reported
	Header
}

// maxLine is the size limit of a line, in bytes.
const maxLine = 16 << 20

// NewReader reads the header; name is the file's name in messages.
func NewReader(r io.Reader, name string) (*Reader, error) {
	in := &Reader{file: r, in: bufio.NewReaderSize(r, 1<<16), name: name}
	text, err := in.next()
	if errors.Is(err, io.EOF) {
		return nil, &textfile.Fault{File: name, Line: 1, What: `empty, expected a record, which begins with {"gfaas_record":2`}
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &in.Header); err != nil || in.Version == 0 {
		return nil, in.fault(`not a record, expected {"gfaas_record":2, "policy": …`)
	}
	if in.Version < 1 || in.Version > Version {
		return nil, in.fault(fmt.Sprintf("a record of version %d, expected 1 to %d", in.Version, Version))
	}
	return in, nil
}

// next returns the next line without its line end.
func (r *Reader) next() ([]byte, error) {
	var text []byte
	for {
		chunk, err := r.in.ReadSlice('\n')
		text = append(text, chunk...)
		switch {
		case len(text) > maxLine:
			r.line++
			return nil, r.fault(fmt.Sprintf("the line has more than %d bytes", maxLine))
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			if len(text) > 0 && !r.incomplete {
				r.incomplete = true
				textfile.Notef(r.file, "%s:%d: the line has no end, as where a writer was killed: it is left out", r.name, r.line+1)
			}
			return nil, io.EOF
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", r.name, err)
		}
		r.line++
		return bytes.TrimRight(text, "\r\n"), nil
	}
}

func (r *Reader) fault(problem string) error {
	return &textfile.Fault{File: r.name, Line: r.line, What: problem}
}

// Next returns the next line: an event, or the text of a decision if event is nil. It
// returns io.EOF at the end.
func (r *Reader) Next() (event *Event, decision []byte, err error) {
	text, err := r.next()
	if err != nil {
		return nil, nil, err
	}
	var kind struct{ Event, Action string }
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, nil, r.fault(err.Error())
	}
	switch {
	case kind.Event != "":
		event = &Event{}
		if err := json.Unmarshal(text, event); err != nil {
			return nil, nil, r.fault(err.Error())
		}
		return event, nil, nil
	case kind.Action != "":
		return nil, text, nil
	}
	return nil, nil, r.fault("neither an event nor a decision")
}

// Difference reports the first decision that differs from the recorded one.
type Difference struct {
	File               string
	Line               int    // line of the recorded decision, or of the next step if the replay made an additional one
	Recorded, Replayed string // empty: no decision
}

func (d *Difference) Error() string {
	return fmt.Sprintf("%s:%d: recorded %s, decided now %s", d.File, d.Line, orNothing(d.Recorded), orNothing(d.Replayed))
}

func orNothing(text string) string {
	if text == "" {
		return "nothing"
	}
	return text
}

// Replay passes the recorded events to a policy and compares its decisions with the
// recorded ones. It returns a *Difference at the first mismatch. In a record of version 1, it ignores
// the reasons.
func Replay(r *Reader, policy queue.Policy) error {
	p := player{in: r, policy: policy, step: -1}
	for {
		event, decision, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil // the last step may be incomplete
		case err != nil:
			return err
		case event != nil && event.Event == Load:
			continue
		case event != nil && event.Step != p.step:
			if err := p.closeStep(); err != nil {
				return err
			}
			if event.Step < p.step || time.Duration(event.TimeMS) < p.now {
				return r.fault("a step that is earlier than the one before it")
			}
			p.openStep(event)
		}
		if event != nil {
			err = p.addEvent(event)
		} else {
			err = p.compare(decision)
		}
		if err != nil {
			return err
		}
	}
}

// player replays one step at a time.
type player struct {
	in       *Reader
	policy   queue.Policy
	numbers  queue.Numbers
	step     int64
	now      time.Duration
	events   []queue.Event
	decided  bool           // the policy has received the step's events
	actions  []queue.Action // the policy's decisions in this step
	compared int
	text     bytes.Buffer
}

func (p *player) openStep(e *Event) {
	p.step, p.now, p.decided = e.Step, time.Duration(e.TimeMS), false
	p.events, p.actions, p.compared = p.events[:0], p.actions[:0], 0
}

func (p *player) addEvent(e *Event) error {
	if p.decided || time.Duration(e.TimeMS) != p.now {
		return p.in.fault("an event of a step that is over")
	}
	ev, err := e.event(p.numbers.Of)
	if err != nil {
		return p.in.fault(err.Error())
	}
	p.events = append(p.events, ev)
	return nil
}

// decide passes the events of the step to the policy, once.
func (p *player) decide() {
	if p.decided {
		return
	}
	p.decided = true
	p.actions = p.policy.Step(p.now, p.events, p.actions)
}

// closeStep ends a step. It returns a *Difference if the policy made more decisions than
// recorded.
func (p *player) closeStep() error {
	if p.step < 0 {
		return nil
	}
	p.decide()
	if p.compared < len(p.actions) {
		return &Difference{File: p.in.name, Line: p.in.line, Replayed: p.nextDecision()}
	}
	return nil
}

// nextDecision returns the policy's next decision in the format of a record.
func (p *player) nextDecision() string {
	a := &p.actions[p.compared]
	d := NewDecision(p.now, a, p.numbers.Name)
	d.Step = &p.step
	if a.Kind == queue.Forget {
		p.numbers.Forget(a.Function)
	}
	p.compared++
	p.text.Reset()
	if err := Append(&p.text, d); err != nil {
		return err.Error()
	}
	return string(bytes.TrimRight(p.text.Bytes(), "\n"))
}

func (p *player) compare(recorded []byte) error {
	if p.step < 0 {
		return p.in.fault("a decision before any event")
	}
	p.decide()
	replayed := ""
	if p.compared < len(p.actions) {
		replayed = p.nextDecision()
	}
	if replayed != string(recorded) && !(p.in.Version == 1 && equalExceptReason([]byte(replayed), recorded)) {
		return &Difference{File: p.in.name, Line: p.in.line, Recorded: string(recorded), Replayed: replayed}
	}
	return nil
}

// equalExceptReason reports whether two decisions differ at most in their reasons.
func equalExceptReason(a, b []byte) bool {
	var keys [2]map[string]json.RawMessage
	for i, line := range [][]byte{a, b} {
		if json.Unmarshal(line, &keys[i]) != nil {
			return false
		}
		delete(keys[i], "reason")
		delete(keys[i], "value")
	}
	return maps.EqualFunc(keys[0], keys[1], func(x, y json.RawMessage) bool { return bytes.Equal(x, y) })
}
