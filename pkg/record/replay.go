package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Reader reads a record line by line. A last line without its end was torn when its
// writer was killed, and is left out, which textfile.Notef tells.
type Reader struct {
	file io.Reader
	in   *bufio.Reader
	name string
	line int
	torn bool // the last line has no end, and that was told
	Header
}

// maxLine is the longest line of a record.
const maxLine = 16 << 20

// NewReader reads the first line; name is what messages call the file.
func NewReader(r io.Reader, name string) (*Reader, error) {
	in := &Reader{file: r, in: bufio.NewReaderSize(r, 1<<16), name: name}
	text, err := in.next()
	if errors.Is(err, io.EOF) {
		return nil, &textfile.Fault{File: name, Line: 1, What: `empty, expected a record, which begins with {"gfaas_record":1`}
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &in.Header); err != nil || in.Version == 0 {
		return nil, in.fault(`not a record, expected {"gfaas_record":1, "policy": …`)
	}
	if in.Version != Version {
		return nil, in.fault(fmt.Sprintf("a record of version %d, expected %d", in.Version, Version))
	}
	return in, nil
}

// next is the next line, without its end.
func (r *Reader) next() ([]byte, error) {
	var text []byte
	for {
		part, err := r.in.ReadSlice('\n')
		text = append(text, part...)
		switch {
		case len(text) > maxLine:
			r.line++
			return nil, r.fault(fmt.Sprintf("the line has more than %d bytes", maxLine))
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			if len(text) > 0 && !r.torn {
				r.torn = true
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

func (r *Reader) fault(what string) error {
	return &textfile.Fault{File: r.name, Line: r.line, What: what}
}

// either tells events from decisions.
type either struct {
	Event  string `json:"event"`
	Action string `json:"action"`
}

// Next is the next line: an event, or, with event nil, the text of a decision. At
// the end the error is io.EOF.
func (r *Reader) Next() (event *Event, decision []byte, err error) {
	text, err := r.next()
	if err != nil {
		return nil, nil, err
	}
	var kind either
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

// Difference is the first decision that is another than the recorded one.
type Difference struct {
	File               string
	Line               int    // of the recorded one, or where one more came
	Recorded, Replayed string // empty: there is none
}

func (d *Difference) Error() string {
	return fmt.Sprintf("%s:%d: recorded %s, decided now %s", d.File, d.Line, said(d.Recorded), said(d.Replayed))
}

func said(text string) string {
	if text == "" {
		return "nothing"
	}
	return text
}

// Replay gives a policy what was recorded and compares what it decides. The error
// is a *Difference where that is another.
func Replay(r *Reader, policy queue.Policy) error {
	p := player{in: r, policy: policy, step: -1}
	for {
		event, decision, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil // the last step may be torn
		case err != nil:
			return err
		case event != nil && event.Step != p.step:
			if err := p.close(); err != nil {
				return err
			}
			if event.Step < p.step || time.Duration(event.TimeMS) < p.now {
				return r.fault("a step that is earlier than the one before it")
			}
			p.open(event)
		}
		if event != nil {
			err = p.tell(event)
		} else {
			err = p.compare(decision)
		}
		if err != nil {
			return err
		}
	}
}

// player replays one step after the other.
type player struct {
	in      *Reader
	policy  queue.Policy
	numbers queue.Numbers
	step    int64
	now     time.Duration
	events  []queue.Event
	decided bool           // the events of the step have been told
	actions []queue.Action // what has not been compared yet
	done    int
	text    bytes.Buffer
}

func (p *player) open(e *Event) {
	p.step, p.now, p.decided = e.Step, time.Duration(e.TimeMS), false
	p.events, p.actions, p.done = p.events[:0], p.actions[:0], 0
}

func (p *player) tell(e *Event) error {
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

// decide has the policy make its decisions, when all events of a step are there.
func (p *player) decide() {
	if p.decided {
		return
	}
	p.decided = true
	p.actions = p.policy.Step(p.now, p.events, p.actions)
}

// close ends a step: nothing more may have been decided.
func (p *player) close() error {
	if p.step < 0 {
		return nil
	}
	p.decide()
	if p.done < len(p.actions) {
		return &Difference{File: p.in.name, Line: p.in.line, Replayed: p.line()}
	}
	return nil
}

// line is the next decision, as a record has it.
func (p *player) line() string {
	a := &p.actions[p.done]
	d := Decide(p.now, a, p.numbers.Name)
	d.Step = &p.step
	if a.Kind == queue.Forget {
		p.numbers.Forget(a.Function)
	}
	p.done++
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
	now := ""
	if p.done < len(p.actions) {
		now = p.line()
	}
	if now != string(recorded) {
		return &Difference{File: p.in.name, Line: p.in.line, Recorded: string(recorded), Replayed: now}
	}
	return nil
}
