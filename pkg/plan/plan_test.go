package plan

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

const example = `{"version":1,"algorithm":"joint","model":"rect",
 "gpus_used":1,"bound":1,"bound_method":"joint-lp",
 "gpus":[{"node":"node0","index":0,"mem_mib":16384,
   "instances":[{"id":"resnet-0","function":"resnet","sm_pct":12,"quota_request":0.4,"quota_limit":0.4,
                 "batch":1,"rps":30.5,"mem_mib":1427,"x":0,"y":0}]}],
 "demand":[{"function":"resnet","rps":30,"served_rps":30.5}],
 "unplaced":[{"function":"bert","rps":12,"reason":"no configuration has p95_ms <= 5: the best is 11.3"}]}
`

const tokens = `{"version":1,"algorithm":"joint","model":"tokens","gpus_used":1,"bound":1,"bound_method":"area",
 "gpus":[{"node":"n","index":1,"mem_mib":0,"instances":[
   {"id":"a-0","function":"a","sm_pct":12,"quota_request":0.4,"quota_limit":1,"batch":1,"rps":1,"mem_mib":0}],
  "models":[{"name":"m","mem_mib":98}],"schedule":[{"duration":0.4,"instances":["a-0"]}]}],
 "demand":[],"unplaced":[]}`

func TestRead(t *testing.T) {
	p, err := Read(strings.NewReader(example), "p.json")
	if err != nil {
		t.Fatal(err)
	}
	in := p.GPUs[0].Instances[0]
	if in.ID != "resnet-0" || in.X == nil || *in.X != 0 || in.QuotaLimit != 0.4 || p.Unplaced[0].RPS != 12 {
		t.Errorf("got %+v", p)
	}
}

func TestWrittenPlansReadBack(t *testing.T) {
	for _, text := range []string{example, tokens} {
		first, err := Read(strings.NewReader(text), "p.json")
		if err != nil {
			t.Fatal(err)
		}
		checkRoundTrip(t, first)
	}
}

func checkRoundTrip(t *testing.T, first Plan) {
	t.Helper()
	var once, twice bytes.Buffer
	if err := first.WriteJSON(&once); err != nil {
		t.Fatal(err)
	}
	text := once.String()
	second, err := Read(&once, "p.json")
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := second.WriteJSON(&twice); err != nil {
		t.Fatal(err)
	}
	if text != twice.String() {
		t.Errorf("%s\nbecame\n%s", text, twice.String())
	}
}

func TestReadFaults(t *testing.T) {
	for what, c := range map[string]struct{ old, new, want string }{
		"version":         {`"version":1`, `"version":2`, "p.json:1: version: 2, expected 1"},
		"later version":   {`"version":1,`, `"version":2,"colours":[],`, "p.json:1: version: 2, expected 1"},
		"model":           {`"rect"`, `"grid"`, `p.json:1: model: "grid", expected rect, tokens or none`},
		"unknown key":     {`"sm_pct":12`, `"sm_pct":12,"colour":1`, "p.json:4: gpus[0].instances[0].colour: unknown key"},
		"misspelt key":    {`"x":0,`, `"x":0,"quota_limits":1,`, "x, y (did you mean quota_limit?)"},
		"no model":        {`"rect"`, `""`, `p.json:1: model: "", expected rect, tokens or none`},
		"missing version": {`"version":1,`, ``, "p.json:1: version: the key is missing"},
		"missing GPUs":    {`"gpus"`, `"models"`, "p.json:3: models: unknown key"},
		"missing key":     {`"function":"resnet","sm_pct":12,`, ``, "p.json:4: gpus[0].instances[0].function: the key is missing"},
		"missing id":      {`"id":"resnet-0",`, ``, "p.json:4: gpus[0].instances[0].id: the key is missing"},
		"missing index":   {`"index":0,`, ``, "p.json:3: gpus[0].index: the key is missing"},
		"half a corner":   {`"model":"rect",`, `"model":"none",`, "p.json:5: gpus[0].instances[0].x: some instances have x and y"},
		"no x":            {`"x":0,`, ``, "p.json:4: gpus[0].instances[0].x: the key is missing"},
		"batch":           {`"batch":1`, `"batch":0`, "p.json:5: gpus[0].instances[0].batch: 0, expected 1 or more"},
		"SM limit below":  {`"batch":1`, `"sm_limit_pct":11.5,"batch":1`, "p.json:5: gpus[0].instances[0].sm_limit_pct: 11.5, expected at least the sm_pct of the instance, 12, and at most 100"},
		"SM limit above":  {`"batch":1`, `"sm_limit_pct":101,"batch":1`, "p.json:5: gpus[0].instances[0].sm_limit_pct: 101, expected"},
		"no id":           {`"id":"resnet-0"`, `"id":""`, "p.json:4: gpus[0].instances[0].id: empty"},
		"no node":         {`"node":"node0"`, `"node":""`, "p.json:3: gpus[0].node: empty"},
		"negative index":  {`"index":0`, `"index":-1`, "p.json:3: gpus[0].index: -1"},
		"negative memory": {`"mem_mib":16384`, `"mem_mib":-1`, "p.json:3: gpus[0].mem_mib: negative"},
		"models memory":   {`"x":0,"y":0}]`, `"x":0,"y":0}],"models":[{"name":"m","mem_mib":-1}]`, "p.json:5: gpus[0].models[0].mem_mib: negative"},
		"text as number":  {`"rps":30.5`, `"rps":"30.5"`, `p.json:5: gpus[0].instances[0].rps: "30.5", expected a number`},
		"not a number":    {`"rps":30.5`, `"rps":NaN`, "p.json:5: invalid character 'N'"},
		"escape in node":  {`"node0"`, `"a b\n\u001b[31m"`, `p.json:3: gpus[0].node: "a b\n\x1b[31m" has non-printable characters`},
		"escape in id":    {`"resnet-0"`, `"resnet\u009b0"`, "p.json:4: gpus[0].instances[0].id: "},
		"escape in name":  {`"id":"resnet-0","function":"resnet"`, `"id":"resnet-0","function":"\u202e"`, "p.json:4: gpus[0].instances[0].function: "},
		"escape in word":  {`"joint"`, `"\u001b"`, "p.json:1: algorithm: "},
		"escape in why":   {`"reason":"`, `"reason":"\u001b`, "unplaced[0].reason: "},
		"demand":          {`"function":"resnet","rps":30`, `"function":"","rps":30`, "p.json:6: demand[0].function: empty"},
	} {
		t.Run(what, func(t *testing.T) {
			text := strings.Replace(example, c.old, c.new, 1)
			_, err := Read(strings.NewReader(text), "p.json")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestReadMinimal: a hand-written plan needs only the keys that gfaas up uses. Missing
// keys have the defaults in `whole`; a missing model follows from the other keys.
func TestReadMinimal(t *testing.T) {
	one := func(in string) string {
		return `{"version":1,"gpus":[{"index":2,"instances":[{"id":"f-0","function":"f"` + in + `}]}]}`
	}
	zero := 0.0
	whole := Instance{ID: "f-0", Function: "f", SMPct: 100, QuotaRequest: 1, QuotaLimit: 1, Batch: 1}
	with := func(change func(*Instance)) Instance {
		in := whole
		change(&in)
		return in
	}
	for what, c := range map[string]struct {
		text, model string
		want        Instance
	}{
		"minimal":         {one(""), ModelNone, whole},
		"request":         {one(`,"quota_request":0.3`), ModelNone, with(func(in *Instance) { in.QuotaRequest, in.QuotaLimit = 0.3, 0.3 })},
		"limit":           {one(`,"quota_limit":0.8`), ModelNone, with(func(in *Instance) { in.QuotaRequest, in.QuotaLimit = 0.8, 0.8 })},
		"both":            {one(`,"quota_limit":0.8,"quota_request":0.3`), ModelNone, with(func(in *Instance) { in.QuotaRequest, in.QuotaLimit = 0.3, 0.8 })},
		"zero stays":      {one(`,"sm_pct":0,"quota_request":0,"quota_limit":0`), ModelNone, with(func(in *Instance) { in.SMPct, in.QuotaRequest, in.QuotaLimit = 0, 0, 0 })},
		"the rest":        {one(`,"sm_pct":12,"batch":4,"rps":30,"mem_mib":100`), ModelNone, with(func(in *Instance) { in.SMPct, in.Batch, in.RPS, in.MemMiB = 12, 4, 30, 100 })},
		"with a corner":   {one(`,"x":0,"y":0`), ModelRect, with(func(in *Instance) { in.X, in.Y = &zero, &zero })},
		"with a schedule": {strings.Replace(one(""), `"index":2,`, `"index":2,"schedule":[{"duration":1,"instances":["f-0"]}],`, 1), ModelTokens, whole},
	} {
		p, err := Read(strings.NewReader(c.text), "p.json")
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if g := p.GPUs[0]; p.Model != c.model || !reflect.DeepEqual(g.Instances[0], c.want) || g.Node != "node0" || g.Index != 2 || g.MemMiB != 0 || p.GPUsUsed != 1 || p.Bound != 0 {
			t.Errorf("%s: got %+v\nwant model %s and %+v", what, p, c.model, c.want)
		}
		checkRoundTrip(t, p)
	}
}

// TestReadSizes: a memory size that is negative, less than a byte or too large is an error. It is
// not read as 0, which is valid and means that the size is not known or not limited.
func TestReadSizes(t *testing.T) {
	text := strings.Replace(example, `"y":0}]`, `"y":0}],"models":[{"name":"m","mem_mib":98}]`, 1)
	for path, old := range map[string]string{"gpus[0].mem_mib": `"mem_mib":16384`, "gpus[0].instances[0].mem_mib": `"mem_mib":1427`, "gpus[0].models[0].mem_mib": `"mem_mib":98`} {
		for _, size := range []string{"0", "0.5", "64", "1e12"} {
			if _, err := Read(strings.NewReader(strings.Replace(text, old, `"mem_mib":`+size, 1)), "p.json"); err != nil {
				t.Errorf("%s of %s: %v", path, size, err)
			}
		}
		for _, size := range []string{"-5", "-1e-9", "1e-9", "1e-400", "1e13", "8796093022208", "1e300", "1e999"} {
			_, err := Read(strings.NewReader(strings.Replace(text, old, `"mem_mib":`+size, 1)), "p.json")
			if err == nil || !strings.Contains(err.Error(), path+": ") {
				t.Errorf("%s of %s: %v", path, size, err)
			}
		}
	}
}

// TestReadIDs: two instances cannot have the same ID. An instance that spans several GPUs has one
// entry on each of them; its entries must be equal except for mem_mib.
func TestReadIDs(t *testing.T) {
	const head, tail = `{"version":1,"algorithm":"joint","model":"tokens","gpus_used":1,"bound":1,"bound_method":"area","gpus":[`, `],"demand":[],"unplaced":[]}`
	gpu := func(index int, instances ...string) string {
		return fmt.Sprintf("\n{\"node\":\"n\",\"index\":%d,\"mem_mib\":0,\"instances\":[%s]}", index, strings.Join(instances, ",\n"))
	}
	in := func(function string, sm, mem int) string {
		return fmt.Sprintf(`{"id":"a-0","function":%q,"sm_pct":%d,"quota_request":1,"quota_limit":1,"batch":1,"rps":1,"mem_mib":%d}`, function, sm, mem)
	}
	for what, c := range map[string]struct {
		gpus []string
		want string
	}{
		"spanning":         {[]string{gpu(0, in("a", 10, 1)), gpu(1, in("a", 10, 2))}, ""},
		"twice on one":     {[]string{gpu(0, in("a", 10, 1), in("a", 10, 1))}, `p.json:3: gpus[0].instances[1].id: "a-0" is already the ID of gpus[0].instances[0]`},
		"twice on another": {[]string{gpu(0, in("a", 10, 1)), gpu(1, in("a", 10, 1), in("a", 10, 1))}, "gpus[1].instances[1].id: "},
		"other function":   {[]string{gpu(0, in("a", 10, 1)), gpu(1, in("b", 10, 1))}, "p.json:3: gpus[1].instances[0].id: "},
		"other share":      {[]string{gpu(0, in("a", 10, 1)), gpu(1, in("a", 20, 1))}, "p.json:3: gpus[1].instances[0].id: "},
	} {
		_, err := Read(strings.NewReader(head+strings.Join(c.gpus, ",")+tail), "p.json")
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
		}
	}
}

func TestDemand(t *testing.T) {
	got, err := ReadDemand(strings.NewReader("rps,function,slo_ms\n30,resnet,69\n1.5,bert,\n"), "d.csv")
	want := []Demand{{"resnet", 30, 69, 2}, {"bert", 1.5, 0, 3}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	inline, err := ParseDemand("resnet=250, bert=40.5")
	if err != nil || !reflect.DeepEqual(inline, []Demand{{Function: "resnet", RPS: 250}, {Function: "bert", RPS: 40.5}}) {
		t.Errorf("got %v, %v", inline, err)
	}
}

func TestDemandFaults(t *testing.T) {
	for text, want := range map[string]string{
		"function,rps\na,1\nb,2\na,3\n":    `d.csv:4: function: "a" is on line 2 already`,
		"function,rps\na,0\n":              "d.csv:2: rps: ",
		"function,rps\na,-1\n":             "d.csv:2: rps: ",
		"function,rps\na,NaN\n":            "d.csv:2: rps: ",
		"function,rps,slo_ms\na,1,0\n":     "d.csv:2: slo_ms: ",
		"function,rps,slo_ms\na,1\n":       "d.csv:2: slo_ms: missing",
		"function\na\n":                    "d.csv:1: rps: the header has no such column",
		"a,1\n":                            "d.csv:1: function: the header has no such column",
		"function,rps\n\"a\nb\",1\nb,-1\n": "d.csv:2: function: ",
	} {
		if _, err := ReadDemand(strings.NewReader(text), "d.csv"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"resnet":     "expected a list of FUNCTION=RPS like resnet=250,bert=40",
		"=3":         "expected a list of FUNCTION=RPS",
		"a=x":        `demand of "a": "x" is not a number`,
		"a=0":        "expected more than 0",
		"a=1,a=2":    `the demand of "a" appears twice`,
		"a=1,":       "expected a list of FUNCTION=RPS",
		"a\x01b=1":   "do not print",
		"a=1,b=1e99": "out of range",
	} {
		if _, err := ParseDemand(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestInventory(t *testing.T) {
	got, err := ReadInventory(strings.NewReader("node,gpu,mem_mib,uuid,model,sms,used_mem_mib\nn0,0,16384,GPU-1,V100,80,512\nn0,1,16384,,,,\n"), "i.csv")
	want := []Device{{"n0", 0, 16384, "GPU-1", "V100", 80, 512, 2}, {"n0", 1, 16384, "", "", 0, 0, 3}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for text, want := range map[string]string{
		"node,gpu,mem_mib\nn,0,1\nn,0,1\n":            `i.csv:3: gpu: "n gpu 0" is on line 2 already`,
		"node,gpu,mem_mib,uuid\nn,0,1,u\nn,1,1,u\n":   `i.csv:3: uuid: "u" is on line 2 already`,
		"node,gpu,mem_mib,used_mem_mib\nn,0,10,11\n":  "i.csv:2: used_mem_mib: 11 MiB are used, expected at most mem_mib, which is 10",
		"node,gpu,mem_mib\nn,-1,1\n":                  "i.csv:2: gpu: ",
		"node,gpu,mem_mib\nn,x,1\n":                   "i.csv:2: gpu: ",
		"node,gpu,mem_mib\nn,0,0\n":                   "i.csv:2: mem_mib: ",
		"node,gpu,mem_mib,sms\nn,0,1,0\n":             "i.csv:2: sms: ",
		"node,gpu\nn,0\n":                             "i.csv:1: mem_mib: the header has no such column",
		"node,gpu,mem_mib,used_mem_mib\nn,0,10,-11\n": "i.csv:2: used_mem_mib: ",
	} {
		if _, err := ReadInventory(strings.NewReader(text), "i.csv"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(tokens))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := Read(bytes.NewReader(data), "p.json"); err == nil {
			checkRoundTrip(t, p)
		}
	})
}

func FuzzReadDemand(f *testing.F) {
	f.Add([]byte("function,rps,slo_ms\na,1,2\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := ReadDemand(bytes.NewReader(data), "d.csv")
		if err != nil {
			return
		}
		rows := [][]string{{"function", "rps", "slo_ms"}}
		for i, d := range first {
			rows = append(rows, []string{d.Function, csvfile.Format(d.RPS), optional(d.SLOMS)})
			first[i].Line = i + 2
		}
		second, err := ReadDemand(print(t, rows), "d.csv")
		if err != nil || !slices.Equal(first, second) {
			t.Errorf("%+v became %+v, %v", first, second, err)
		}
	})
}

func FuzzReadInventory(f *testing.F) {
	f.Add([]byte("node,gpu,mem_mib,uuid,model,sms,used_mem_mib\nn0,0,16384,GPU-1,V100,80,512\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := ReadInventory(bytes.NewReader(data), "i.csv")
		if err != nil {
			return
		}
		rows := [][]string{{"node", "gpu", "mem_mib", "uuid", "model", "sms", "used_mem_mib"}}
		for i, d := range first {
			rows = append(rows, []string{d.Node, strconv.Itoa(d.Index), csvfile.Format(d.MemMiB), d.UUID, d.Model,
				optional(float64(d.SMs)), csvfile.Format(d.UsedMemMiB)})
			first[i].Line = i + 2
		}
		second, err := ReadInventory(print(t, rows), "i.csv")
		if err != nil || !slices.Equal(first, second) {
			t.Errorf("%+v became %+v, %v", first, second, err)
		}
	})
}

func optional(v float64) string {
	if v == 0 {
		return ""
	}
	return csvfile.Format(v)
}

func print(t *testing.T, rows [][]string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(rows); err != nil {
		t.Fatal(err)
	}
	return &b
}

func FuzzParseDemand(f *testing.F) {
	f.Add("a=1,b=2.5")
	f.Fuzz(func(t *testing.T, text string) {
		demand, err := ParseDemand(text)
		for _, d := range demand {
			if err == nil && (d.Function == "" || !(d.RPS > 0)) {
				t.Errorf("got %+v", d)
			}
		}
	})
}

// TestUnknownColumns: each unknown column of a hand-written file is ignored with a note.
func TestUnknownColumns(t *testing.T) {
	read := map[string]func(io.Reader) error{
		"function,rps,%s\na,1,2\n":          func(r io.Reader) error { _, err := ReadDemand(r, "f.csv"); return err },
		"node,gpu,mem_mib,%s\nn,0,1024,2\n": func(r io.Reader) error { _, err := ReadInventory(r, "f.csv"); return err },
		"id,quota,sm_pct,%s\na,1,1,2\n":     func(r io.Reader) error { _, err := ReadItems(r, "f.csv"); return err },
	}
	for text, of := range read {
		for _, column := range []string{"rate", "owner", "qps"} {
			var notes []string
			note := func(text string) { notes = append(notes, text) }
			file := textfile.Noting(strings.NewReader(fmt.Sprintf(text, column)), note, note)
			want := fmt.Sprintf("f.csv:1: %q: not a column of this file, so it is ignored", column)
			if err := of(file); err != nil || !slices.Equal(notes, []string{want}) {
				t.Errorf("%q: %q, %v; want %q", fmt.Sprintf(text, column), notes, err, want)
			}
		}
	}
}
