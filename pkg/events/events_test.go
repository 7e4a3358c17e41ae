package events

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

const header = "time_s,action,instance,function,kind,gpus,sm_request,sm_limit,mem_mib\n"

func TestReadPutsEventsInOrder(t *testing.T) {
	log, err := Read(strings.NewReader("gpu,"+header+
		"V100 | A100,2.5,start,b,f,llm,2,0.4,0.6,2048\n,1,start,a,f,,1,0,0,0\n,2.5,stop,a,,,,,,\n,2.5,start,a,g,training,1,1,1,1.5\n"), "e.csv")
	if err != nil {
		t.Fatal(err)
	}
	want := []Event{
		{Time: 1, Start: true, Instance: "a", Function: "f", GPUs: 1, Line: 3},
		{Time: 2.5, Start: true, Instance: "b", Function: "f", Kind: LLM, GPUs: 2, SMRequest: 0.4, SMLimit: 0.6, MemMiB: 2048,
			Models: []string{"V100", "A100"}, Line: 2},
		{Time: 2.5, Instance: "a", Line: 4},
		{Time: 2.5, Start: true, Instance: "a", Function: "g", Kind: Training, GPUs: 1, SMRequest: 1, SMLimit: 1, MemMiB: 1.5, Line: 5},
	}
	if !log.Sorted || !reflect.DeepEqual(log.Events, want) {
		t.Errorf("got %+v, want sorted events %+v", log, want)
	}
}

func TestReadFaults(t *testing.T) {
	for what, c := range map[string]struct{ rows, want string }{
		"empty":       {"", "e.csv:1: the file is empty, expected the header time_s,action,instance,function,kind,gpus,sm_request,sm_limit,mem_mib"},
		"no column":   {"time_s,action,instance\n", "e.csv:1: function: the header has no such column"},
		"action":      {header + "0,begin,a,f,,1,0.1,0.2,1\n", `e.csv:2: action: "begin" is not an action, expected start or stop`},
		"time":        {header + "-1,start,a,f,,1,0.1,0.2,1\n", `e.csv:2: time_s: "-1" is negative, expected 0 or more`},
		"NaN":         {header + "0,start,a,f,,1,NaN,0.2,1\n", `e.csv:2: sm_request: "NaN" is not a number`},
		"percent":     {header + "0,start,a,f,,1,40,60,1\n", `e.csv:2: sm_request: "40" is out of range, expected 0 to 1`},
		"limit":       {header + "0,start,a,f,,1,0.4,0.3,1\n", `e.csv:2: sm_limit: 0.3 is below sm_request 0.4, expected at least as much`},
		"gpus":        {header + "0,start,a,f,,0,0.1,0.2,1\n", `e.csv:2: gpus: the cell is empty or 0, expected 1 or more for a start`},
		"many gpus":   {header + "0,start,a,f,,2000,0.1,0.2,1\n", `e.csv:2: gpus: "2000" is out of range, expected 1 to 1024`},
		"half a gpu":  {header + "0,start,a,f,,0.5,0.1,0.2,1\n", `e.csv:2: gpus: "0.5" is not a whole number`},
		"function":    {header + "0,start,a,,,1,0.1,0.2,1\n", `e.csv:2: function: the cell is empty, expected a value for a start`},
		"memory":      {header + "0,start,a,f,,1,0.1,0.2,16GiB\n", `e.csv:2: mem_mib: "16GiB" is not a number`},
		"instance":    {header + "0,start,,f,,1,0.1,0.2,1\n", `e.csv:2: instance: the cell is empty`},
		"start twice": {header + "0,start,a,f,,1,0.1,0.2,1\n1,start,a,f,,1,0.1,0.2,1\n", `e.csv:3: instance: "a" has been running since line 2, expected a stop before it starts again`},
		"stop twice":  {header + "0,start,a,f,,1,0.1,0.2,1\n1,stop,a,,,,,,\n2,stop,a,,,,,,\n", `e.csv:4: instance: "a" is not running at this time, expected a start before it stops`},
		"stop early":  {header + "5,start,a,f,,1,0.1,0.2,1\n1,stop,a,,,,,,\n", `e.csv:3: instance: "a" is not running at this time`},
		"models":      {"gpu," + header + "A100|,0,start,a,f,,1,0.1,0.2,1\n", `e.csv:2: gpu: "A100|" has an empty name`},
		"short":       {header + "0,start,a\n", "e.csv:2: function: missing: the line has 3 of 9 fields"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.rows), "e.csv")
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
}

// TestMix compares Mix with the paper's description of its cluster, and checks that its
// events are equal after Write and Read.
func TestMix(t *testing.T) {
	all := Mix(7, 3200)
	kinds, stops := map[string]int{}, 0
	for _, e := range all {
		if !e.Start {
			stops++
			continue
		}
		kinds[e.Kind]++
		gib, wide := e.MemMiB/1024, e.Kind == Training
		ranges := map[string][4]float64{Training: {25, 40, 0.4, 0.8}, LLM: {20, 30, 0.4, 0.6}, Inference: {3, 10, 0.2, 0.4}}[e.Kind]
		if gib < ranges[0] || gib > ranges[1] || e.SMRequest < ranges[2] || e.SMRequest > ranges[3] ||
			e.SMLimit < min(1, e.SMRequest+0.2)-1e-9 || wide != (e.GPUs == 2 || e.GPUs == 4) {
			t.Fatalf("got %+v, want the memory and SM shares of its kind, %v, and 2 or 4 GPUs only for training", e, ranges)
		}
	}
	if tr, llm, inf := kinds[Training], kinds[LLM], kinds[Inference]; tr+llm+inf != 3200 || tr < 560 || tr > 720 || llm < 560 || llm > 720 {
		t.Errorf("got %v, want 3200 starts, of which 560 to 720 each are training and LLMs", kinds)
	}
	if stops < 2140 || stops > 2340 {
		t.Errorf("%d of 3200 stop, expected about 70%%", stops)
	}
	var text bytes.Buffer
	if err := Write(&text, all); err != nil {
		t.Fatal(err)
	}
	log, err := Read(&text, "e.csv")
	for i := range log.Events {
		log.Events[i].Line = 0
	}
	if err != nil || log.Sorted || !reflect.DeepEqual(log.Events, all) {
		t.Errorf("read back: got %v, %d events; want the same %d, unsorted", err, len(log.Events), len(all))
	}
	if !reflect.DeepEqual(Mix(7, 3200), all) || reflect.DeepEqual(Mix(8, 3200), all) {
		t.Error("got different events for equal seeds, or equal events for different seeds")
	}
}

// FuzzRead: a file that Read accepts is equal after Write and Read.
func FuzzRead(f *testing.F) {
	f.Add([]byte(header + "0,start,a,f,llm,1,0.1,0.2,1\n1e3,stop,a,,,,,,\n"))
	f.Add([]byte("gpu," + header + "A|B,7,start,\"a,\"\"b\",f,,4,1,1,1e12\n,3,start,c,f,,1,0,.5,1e-9\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := Read(bytes.NewReader(data), "e.csv")
		if err != nil {
			return
		}
		var text bytes.Buffer
		if err := Write(&text, first.Events); err != nil {
			t.Fatal(err)
		}
		second, err := Read(&text, "e.csv")
		if err != nil {
			t.Fatal(err)
		}
		for i := range first.Events {
			first.Events[i].Line = i + 2
		}
		if second.Sorted || len(first.Events) != len(second.Events) || len(first.Events) > 0 && !reflect.DeepEqual(first.Events, second.Events) {
			t.Errorf("got %+v after writing and reading, want %+v", second, first)
		}
	})
}
