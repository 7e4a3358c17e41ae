package record_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/record"
	"github.com/gfaas/gfaas/pkg/textfile"
)

const header = `{"gfaas_record":2,"policy":"fcfs","gpus":1,"concurrency":1,"pool":-1,"gpu_mem_mib":0,"set":{},"functions":[]}
`

const body = `{"step":0,"time_ms":0,"event":"gpu","gpu":0,"machine":{"slots":1,"mem_bytes":0}}
{"step":1,"time_ms":0.5,"event":"function","function":"f","spec":{"warm_ms":10,"cold_ms":20,"load_ms":0,"mem_bytes":0,"weight":1,"model":0,"tenant":0}}
{"step":2,"time_ms":1.000001,"event":"arrived","function":"f","invocation":0,"arrived_ms":1.000001}
{"step":2,"time_ms":1.000001,"action":"run","function":"f","invocation":0,"gpu":0,"container":0,"start":"cold","waited_ms":0,"expected_ms":20,"reason":{"code":"oldest-invocation"},"waiting":1}
{"step":3,"time_ms":2,"event":"completed","function":"f","invocation":0,"executed_ms":0.9}
`

func replay(text string) error {
	r, err := record.NewReader(strings.NewReader(text), "r.jsonl")
	if err != nil {
		return err
	}
	policy, err := queue.New(queue.Config{Policy: r.Policy, Pool: r.Pool, Options: queue.Defaults()})
	if err != nil {
		return err
	}
	return record.Replay(r, policy)
}

func TestReplay(t *testing.T) {
	if err := replay(header + body); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ old, new, want string }{
		"another decision":  {`"expected_ms":20`, `"expected_ms":21`, `r.jsonl:5: recorded {"step":2,`},
		"another reason":    {`"code":"oldest-invocation"`, `"code":"shortest-duration"`, `r.jsonl:5: recorded {"step":2,`},
		"one less":          {"\n{\"step\":2,\"time_ms\":1.000001,\"action\"", "\n{\"step\":3,\"time_ms\":1.000001,\"event\":\"woke\"}\n{\"step\":3,\"time_ms\":1.000001,\"action\"", "recorded nothing, decided now {"},
		"no record":         {`"gfaas_record":2`, `"x":2`, "r.jsonl:1: not a record, expected"},
		"another version":   {`"gfaas_record":2`, `"gfaas_record":3`, "r.jsonl:1: a record of version 3, expected 1 to 2"},
		"an unknown event":  {`"event":"arrived"`, `"event":"came"`, `r.jsonl:4: there is no event "came"`},
		"no function":       {`"event":"arrived","function":"f"`, `"event":"arrived"`, "r.jsonl:4: function: missing"},
		"no invocation":     {`"invocation":0,"arrived_ms"`, `"arrived_ms"`, "r.jsonl:4: invocation: missing"},
		"no GPU":            {`"gpu":0,"machine"`, `"machine"`, "r.jsonl:2: gpu: expected a number"},
		"no machine":        {`"slots":1`, `"slots":0`, "r.jsonl:2: machine: expected"},
		"no spec":           {`"weight":1`, `"weight":0`, "r.jsonl:3: spec: expected"},
		"memory below none": {`"slots":1,"mem_bytes":0}`, `"slots":1,"mem_bytes":0},"mem_bytes":-1`, "r.jsonl:2: mem_bytes: expected"},
		"a time":            {`"time_ms":0.5`, `"time_ms":"x"`, "r.jsonl:3: "},
		"finer than exact":  {`"time_ms":0.5`, `"time_ms":0.5000001`, "r.jsonl:3: "},
		"back in time":      {`"step":3,"time_ms":2`, `"step":3,"time_ms":1`, "r.jsonl:6: a step that is earlier"},
		"neither":           {`"event":"completed"`, `"x":"completed"`, "r.jsonl:6: neither an event nor a decision"},
		"not JSON":          {`{"step":3`, `"step":3`, "r.jsonl:6: "},
	} {
		text := strings.Replace(header+body, c.old, c.new, 1)
		if err := replay(text); text == header+body || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %s", what, err, c.want)
		}
	}
	if err := replay(""); err == nil || !strings.Contains(err.Error(), "r.jsonl:1: empty") {
		t.Errorf("replay of an empty file: got error %v, want one that starts with r.jsonl:1: empty", err)
	}
	for torn := len(header); torn < len(header+body); torn++ { // at any point where the writer is killed
		if err := replay((header + body)[:torn]); err != nil {
			t.Fatalf("replay of a record torn after %d bytes: got %v, want no error", torn, err)
		}
	}
}

// TestReplayVersion1 checks that a record of version 1, in which reasons are sentences, replays. Its
// decisions are compared without their reasons.
func TestReplayVersion1(t *testing.T) {
	text := strings.Replace(header, `"gfaas_record":2`, `"gfaas_record":1`, 1) +
		strings.Replace(body, `"reason":{"code":"oldest-invocation"}`, `"reason":"oldest invocation","value":1.5`, 1)
	if err := replay(text); err != nil {
		t.Error(err)
	}
	text = strings.Replace(text, `"expected_ms":20`, `"expected_ms":21`, 1)
	if err := replay(text); err == nil || !strings.Contains(err.Error(), `r.jsonl:5: recorded {"step":2,`) {
		t.Errorf("another decision: %v, want a difference", err)
	}
}

// TestTornRecordGivesNote checks that a note reports that the replay is incomplete.
func TestTornRecordGivesNote(t *testing.T) {
	for text, want := range map[string]string{
		header + body:                                  "",
		(header + body)[:len(header+body)-30]:          "r.jsonl:6: the line has no end, as where a writer was killed: it is left out",
		strings.TrimSuffix(header+body, "\n"):          "r.jsonl:6: the line has no end, as where a writer was killed: it is left out",
		header + body[:strings.Index(body, "\n")+1]:    "",
		header + body[:strings.Index(body, "\n")+1+20]: "r.jsonl:3: the line has no end, as where a writer was killed: it is left out",
	} {
		var notes []string
		note := func(text string) { notes = append(notes, text) }
		r, err := record.NewReader(textfile.Noting(strings.NewReader(text), note, note), "r.jsonl")
		for err == nil {
			_, _, err = r.Next()
		}
		_, _, again := r.Next()
		if !errors.Is(err, io.EOF) || !errors.Is(again, io.EOF) || strings.Join(notes, "\n") != want {
			t.Errorf("%d bytes: got notes %q, %v; want %q", len(text), notes, err, want)
		}
	}
}

func TestMillis(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := record.Millis(rapid.Int64Range(-1<<62, 1<<62).Draw(t, "ns"))
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got record.Millis
		if err := json.Unmarshal(text, &got); err != nil || got != want {
			t.Fatalf("%d became %s, and that %d, %v", want, text, got, err)
		}
	})
}

// FuzzReader checks that an event that was read is written in a form that is read as the same event.
func FuzzReader(f *testing.F) {
	for line := range strings.Lines(body) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		r, err := record.NewReader(strings.NewReader(header+line+"\n"), "r.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		event, _, err := r.Next()
		if err != nil || event == nil {
			return
		}
		var text bytes.Buffer
		if err := record.Append(&text, event); err != nil {
			t.Fatal(err)
		}
		again, err := record.NewReader(io.MultiReader(strings.NewReader(header), &text), "r.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		if second, _, err := again.Next(); err != nil || second == nil || second.TimeMS != event.TimeMS || second.Event != event.Event {
			t.Fatalf("%+v became %+v, %v", event, second, err)
		}
	})
}
