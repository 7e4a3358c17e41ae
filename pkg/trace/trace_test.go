package trace

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

func names(list ...string) *Names {
	functions := make([]Function, len(list))
	for i, name := range list {
		functions[i].Name = name
	}
	return NamesOf(functions, "costs.csv")
}

func readAll(t testing.TB, text string, n *Names) ([]Row, error) {
	t.Helper()
	in, err := open(strings.NewReader(text), "t.csv", n, 1)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for {
		row, err := in.Next()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
}

func TestRead(t *testing.T) {
	want := []Row{{0, 0}, {1500 * time.Microsecond, 1}, {1500 * time.Microsecond, 0}, {12 * ms, 1}}
	for what, text := range map[string]string{
		"plain":         "function,invoke_time_ms\na,0\nb,1.5\na,1.500\nb,12\n",
		"other name":    "func_name,invoke_time_ms\na,0\nb,1.5\na,1.5\nb,12",
		"other order":   "x,invoke_time_ms,function\n,0,a\n,1.5,b\n,1.5,a\n9,12,b\n",
		"CRLF and BOM":  "\uFEFFfunction,invoke_time_ms\r\na,0\r\n\r\nb,1.5\r\na,1.5\r\nb,12\r\n",
		"quotes":        "function,\"invoke_time_ms\",note\n\"a\",0,\nb,\"1.5\",\"x,\ny\"\na,1.5,\"\"\"\"\nb,12,\n",
		"spaces":        " function , invoke_time_ms\na , 0\n b,1.5\na, 1.5 \nb,12\n",
		"powers of ten": "function,invoke_time_ms\na,0e3\nb,15e-1\na,+1.5\nb,1.2e1\n",
	} {
		t.Run(what, func(t *testing.T) {
			got, err := readAll(t, text, names("a", "b"))
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, %v; want %v", got, err, want)
			}
		})
	}
}

func TestReadFaults(t *testing.T) {
	const head = "function,invoke_time_ms\n"
	for what, c := range map[string]struct{ text, want string }{
		"empty":        {"", "t.csv:1: the file is empty, expected the header function,invoke_time_ms"},
		"JSON lines":   {"{\"function\":\"a\",\"invoke_time_ms\":1}\n", "t.csv:1: the file is JSON, expected CSV"},
		"old Mac":      {"function,invoke_time_ms,note\ra,1,x\r", "t.csv:1: lines end in a carriage return alone"},
		"no column":    {"function,time\na,1\n", "t.csv:1: invoke_time_ms: the header has no such column"},
		"column twice": {"function,invoke_time_ms,function\n", "t.csv:1: function: the header has this column twice"},
		"no costs":     {head + "a,1\nc,2\n", `t.csv:3: function: "c" has no costs, expected a function in costs.csv`},
		"negative":     {head + "a,-1\n", `t.csv:2: invoke_time_ms: "-1" is negative, expected 0 or more`},
		"NaN":          {head + "a,NaN\n", `t.csv:2: invoke_time_ms: "NaN" is not a number`},
		"infinite":     {head + "a,Inf\n", `t.csv:2: invoke_time_ms: "Inf" is not a number`},
		"huge":         {head + "a,1e30\n", `t.csv:2: invoke_time_ms: "1e30" is out of range`},
		"two points":   {head + "a,1.2.3\n", `"1.2.3" is not a number`},
		"no digits":    {head + "a,1.\nb,.\n", `t.csv:3: invoke_time_ms: "." is not a number`},
		"short":        {head + "a\n", "t.csv:2: invoke_time_ms: missing: the line has 1 of 2 fields"},
		"long":         {head + "a,1,2\n", "t.csv:2: the line has 3 fields, expected 2"},
		"no name":      {head + ",1\n", "t.csv:2: function: the cell is empty"},
		"no time":      {head + "a,\n", "t.csv:2: invoke_time_ms: the cell is empty"},
		"unsorted":     {head + "a,2\na,1\n", "t.csv:3: invoke_time_ms: earlier than on the previous line"},
		"binary":       {head + "a,1\n\x00,2\n", "t.csv:1: not a text file"},
		"not UTF-8":    {head + "a,1\n\xff,2\n", "t.csv:1: not a text file"},
		"open quote":   {head + "a,1\n\"a,2\nb,3\n", "t.csv:3: a quoted field without an end"},
		"bare quote":   {head + "a\"b,1\n", "t.csv:2: a quote inside an unquoted field"},
		"after quote":  {head + "\"a\"b,1\n", "t.csv:2: a quoted field without an end"},
		"long line":    {head + strings.Repeat("a", 20<<20), "t.csv:2: the line is longer than 16777216 bytes"},
		"long quote":   {head + "\"a\n" + strings.Repeat("a\n", 9<<20) + "\",1\n", "t.csv:2: the record, which continues on further lines because of its quotes, is longer than"},
		"no minutes":   {"HashFunction,Trigger\na,x\n", "t.csv:1: 1: the header has no such column"},
		"lost minute":  {"HashFunction,1,3\na,1,1\n", "t.csv:1: 2: the header has no such column"},
		"minute twice": {"HashFunction,1,2,1\na,1,2,50\n", "t.csv:1: 1: the header has this column twice"},
		"name twice":   {"HashFunction,1,HashFunction\na,1,b\n", "t.csv:1: HashFunction: the header has this column twice"},
		"late minute":  {"HashFunction,1,999999999999\na,1,1\n", "t.csv:1: 2: the header has no such column"},
		"bad count":    {"HashFunction,1\na,1.5\n", `t.csv:2: 1: "1.5" is not a whole number`},
		"much":         {"HashFunction,1,2\na,1,10000001\n", "t.csv:2: 2: 10000001 invocations in a minute, expected at most 10000000"},
		"far too much": {"HashFunction,1,2\na,1,1000000000000\n", "t.csv:2: 2: 1000000000000 invocations in a minute, expected at most 10000000"},
		"in all":       {"HashFunction,1,2\n" + strings.Repeat("a,10000000,10000000\n", 51), "t.csv:52: 1: 1010000000 invocations up to this cell, expected at most 1000000000"},
		"minus count":  {"HashFunction,1,2\na,1,-5\n", `t.csv:2: 2: "-5" is out of range`},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := readAll(t, c.text, names("a", "b"))
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 300 {
				t.Errorf("got %.300v\nwant %s", err, c.want)
			}
		})
	}
}

func TestReadAllSortsStably(t *testing.T) {
	rows, sorted, err := ReadAll(strings.NewReader("function,invoke_time_ms\nb,2\na,1\nb,1\na,2\n"), "t.csv", names("a", "b"), 1)
	want := []Row{{1 * ms, 0}, {1 * ms, 1}, {2 * ms, 1}, {2 * ms, 0}}
	if err != nil || sorted || !reflect.DeepEqual(rows, want) {
		t.Errorf("got %v, sorted %v, %v; want %v, sorted false", rows, sorted, err, want)
	}
}

func TestMinutes(t *testing.T) {
	const text = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\no,p,a,http,2,0,100\no,p,b,timer,0,,1\no,q,a,queue,1,0,0\n"
	got, err := readAll(t, text, names("a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	counts := map[[2]int]int{}
	for i, row := range got {
		if i > 0 && row.At < got[i-1].At {
			t.Errorf("row %d is at %v, before the previous one at %v; want ascending times", i, row.At, got[i-1].At)
		}
		counts[[2]int{int(row.Function), int(row.At / time.Minute)}]++
	}
	if want := map[[2]int]int{{0, 0}: 3, {0, 2}: 100, {1, 2}: 1}; !reflect.DeepEqual(counts, want) {
		t.Errorf("invocations by function and minute: got %v, want %v", counts, want)
	}
	const moved = "3,2,HashOwner,HashApp,HashFunction,1,Trigger\n100,0,o,p,a,2,http\n1,,o,p,b,0,timer\n0,0,o,q,a,1,queue\n"
	if again, err := readAll(t, moved, names("a", "b")); err != nil || !reflect.DeepEqual(got, again) {
		t.Errorf("columns in another order: got %v, %v; want %v", again, err, got)
	}
	again, _ := readAll(t, text, names("a", "b"))
	if !reflect.DeepEqual(got, again) {
		t.Errorf("same seed: got %v, want %v", again, got)
	}
}

// Two lines of a function are added, and Note reports that.
func TestRepeatedFunctions(t *testing.T) {
	const head, first = "HashApp,HashFunction,1\np,a,2\n", `t.csv:4: HashFunction: "a" is already on line 2: the counts of both lines are added`
	for text, want := range map[string]string{
		head + "p,b,1\n":                     "",
		head + "p,b,1\nq,a,3\n":              first,
		head + "p,b,1\np,a,3\np,a,\nq,b,1\n": first + ", and also of 2 more lines",
	} {
		in, err := open(strings.NewReader(text), "t.csv", names("a", "b"), 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := in.Note(); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestMinutesSpreadEvenly(t *testing.T) {
	rows, err := readAll(t, "HashFunction,1\na,60000\n", names("a"))
	if err != nil {
		t.Fatal(err)
	}
	tenths := [10]int{}
	for _, row := range rows {
		tenths[row.At/(6*time.Second)]++
	}
	for i, n := range tenths {
		if n < 5500 || n > 6500 {
			t.Errorf("invocations in tenth %d: got %d of 60000, want 5500 to 6500", i, n)
		}
	}
}

func TestFunctions(t *testing.T) {
	want := []Function{
		{Name: "a", Warm: 10 * ms, Cold: 100 * ms, Load: 5 * ms, MemMiB: 12.5, Weight: 2, Tenant: "x", Model: "m", Line: 2},
		{Name: "b", Warm: 20 * ms, Cold: 20 * ms, Weight: 1, Model: "b", Line: 3},
	}
	got, err := readFunctions(strings.NewReader("function,warm_ms,cold_ms,load_ms,mem_mib,weight,tenant,model\na,10,100,5,12.5,2,x,m\nb,20,,,,,,\n"), "c.csv", "")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %v", got, err, want)
	}
	got, err = readFunctions(strings.NewReader("func_name,cold_dur_ms,warm_dur_ms,mem_mb,mean_iat\na,100.25,10,7,3\n"), "c.csv", "")
	want = []Function{{Name: "a", Warm: 10 * ms, Cold: 100250 * time.Microsecond, MemMiB: 7, Weight: 1, Model: "a", Line: 2}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("other names: got %+v, %v; want %v", got, err, want)
	}
	got, err = readFunctions(strings.NewReader("function,warm_ms,load_ms\na,10,7\n"), "c.csv", "")
	if err != nil || got[0].Cold != 17*ms {
		t.Errorf("without cold_ms: got %+v, %v; want a cold time of warm_ms + load_ms = 17 ms", got, err)
	}
}

// TestFunctionsOfAProfile checks that the costs of a function are taken from its
// profile row with the largest part of the GPU.
func TestFunctionsOfAProfile(t *testing.T) {
	const head = "function,sm_pct,quota,batch,throughput_rps,p95_ms,gpu_mem_mib,warm_ms,cold_ms,load_ms,gpu\n"
	got, err := readFunctions(strings.NewReader(head+
		"b,50,1,1,9,9,30,20,,,\n"+
		"a,50,1,1,9,9,12.5,11,101,5,\n"+
		"a,100,0.4,1,9,9,12.5,14,104,5,\n"+
		"a,100,1,2,9,9,13,12,102,5,\n"+
		"a,100,1,1,9,9,12.5,10.25,100,5,\n"+
		"b,100,1,1,9,9,30,,,,\n"), "p.csv", "")
	want := []Function{
		{Name: "b", Warm: 20 * ms, Cold: 20 * ms, MemMiB: 30, Weight: 1, Model: "b", Line: 2},
		{Name: "a", Warm: 10250 * time.Microsecond, Cold: 100 * ms, Load: 5 * ms, MemMiB: 12.5, Weight: 1, Model: "a", BatchSlope: 1.75 / 10.25, Line: 6},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %v", got, err, want)
	}
	for text, fault := range map[string]string{
		"": "p.csv:1: the file has no functions",
		"a,50,1,1,9,9,,1,,,V100\na,100,1,1,9,9,,1,,,T4\n": `p.csv:3: gpu: "T4" for function "a", but line 2 has "V100": expected one GPU model`,
		"a,50,1,1,9,9,,,,,\n":                             `p.csv:2: warm_ms: empty in all configurations of function "a"`,
		"a,50,2,1,9,9,,1,,,\n":                            "p.csv:2: quota: ",
	} {
		if _, err := readFunctions(strings.NewReader(head+text), "p.csv", ""); err == nil || !strings.HasPrefix(err.Error(), fault) {
			t.Errorf("%q: got error %v, want %s", text, err, fault)
		}
	}
}

func TestFunctionFaults(t *testing.T) {
	for what, c := range map[string]struct{ text, want string }{
		"empty":     {"", "c.csv:1: the file is empty, expected the header function,warm_ms"},
		"no rows":   {"function,warm_ms\n", "c.csv:1: the file has no functions"},
		"no column": {"function,cold_ms\na,1\n", "c.csv:1: warm_ms: the header has no such column"},
		"negative":  {"function,warm_ms\na,-1\n", `c.csv:2: warm_ms: "-1" is negative`},
		"NaN":       {"function,warm_ms,cold_ms\na,1,nan\n", `c.csv:2: cold_ms: "nan" is not a number`},
		"weight":    {"function,warm_ms,weight\na,1,0\n", `c.csv:2: weight: "0" is out of range, expected more than 0`},
		"twice":     {"function,warm_ms\na,1\na,2\n", `c.csv:3: function: "a" is on line 2 already`},
		"memory":    {"func_name,warm_dur_ms,mem_mb\na,1,x\n", `c.csv:2: mem_mb: "x" is not a number`},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := readFunctions(strings.NewReader(c.text), "c.csv", "")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestMillisReadsBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, 1e18).Draw(rt, "nanoseconds"))
		text := Millis(d)
		if got, err := millis(text); err != nil || got != d {
			rt.Errorf("%d ns are printed as %s: read as %d, %v; want the same duration", d, text, got, err)
		}
	})
	for text, want := range map[string]time.Duration{"0.0000004": 0, "0.0000005": 1, "1.0000009": 1000001, "1.": ms, "007": 7 * ms} {
		if got, err := millis(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", text, got, err, want)
		}
	}
}

// FuzzRead checks that a trace that is read and written is read back the same.
func FuzzRead(f *testing.F) {
	f.Add([]byte("function,invoke_time_ms\na,1\nb,2.000001\n"))
	f.Add([]byte("func_name,x,invoke_time_ms\n\"a,\"\"b\",\"\n\",1e3\n"))
	f.Add([]byte("HashFunction,1,2\na,3,1\nb,,2\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<12 || bytes.Contains(data, []byte("HashFunction")) && len(data) > 64 {
			return // a count may require any number of rows
		}
		n := NewNames()
		in, err := open(bytes.NewReader(data), "t.csv", n, 1)
		if err != nil {
			return
		}
		var text bytes.Buffer
		out := NewWriter(&text)
		var rows []Row
		for range 1000 {
			row, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return
			}
			rows = append(rows, row)
			if err := out.Write(n.list[row.Function], row.At); err != nil {
				t.Fatal(err)
			}
		}
		if err := out.Flush(); err != nil {
			t.Fatal(err)
		}
		again := NewNames()
		second, _, err := ReadAll(&text, "t.csv", again, 1)
		if err != nil || len(second) != len(rows) {
			t.Fatalf("rows after writing and reading: got %d, %v; want %d", len(second), err, len(rows))
		}
		for i, row := range rows {
			if second[i].At != row.At || again.list[second[i].Function] != n.list[row.Function] {
				t.Errorf("row %d after writing and reading: got %v, want %v", i, second[i], row)
			}
		}
	})
}

// FuzzReadFunctions checks that function costs that are read and written are read back
// the same.
func FuzzReadFunctions(f *testing.F) {
	f.Add([]byte("function,warm_ms,cold_ms,load_ms,mem_mib,weight,tenant,model\na,10,100,5,12.5,2,x,m\nb,20,,,,,,\n"))
	f.Add([]byte("func_name,cold_dur_ms,warm_dur_ms,mem_mb\n\"a\"\"\",1e2,1,0\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := readFunctions(bytes.NewReader(data), "c.csv", "")
		if err != nil {
			return
		}
		var text bytes.Buffer
		if err := WriteFunctions(&text, first); err != nil {
			t.Fatal(err)
		}
		second, err := readFunctions(&text, "c.csv", "")
		if err != nil {
			t.Fatal(err)
		}
		for i := range first {
			first[i].Line = i + 2
		}
		if !reflect.DeepEqual(first, second) {
			t.Errorf("functions after writing and reading: got %+v, want %+v", second, first)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	var text bytes.Buffer
	out := NewWriter(&text)
	list := make([]string, 10000)
	for i := range list {
		list[i] = "function-" + string(rune('a'+i%26)) + Millis(time.Duration(i)*ms)
	}
	const rows = 100000
	for i := range rows {
		_ = out.Write(list[i*7919%len(list)], time.Duration(i)*1234567)
	}
	_ = out.Flush()
	n := names(list...)
	b.SetBytes(int64(text.Len() / rows))
	b.ResetTimer()
	for i := 0; i < b.N; {
		in, _ := open(bytes.NewReader(text.Bytes()), "t.csv", n, 1)
		for ; i < b.N; i++ {
			if _, err := in.Next(); err != nil {
				break
			}
		}
	}
}

// TestOpenSourceRefusesEndlessInput checks that an endless input is refused early,
// and no copy of it remains.
func TestOpenSourceRefusesEndlessInput(t *testing.T) {
	if _, err := OpenSource("/dev/zero"); err == nil || err.Error() != "/dev/zero:1: not a text file, expected CSV in UTF-8" {
		t.Errorf("OpenSource of /dev/zero: got error %v, want /dev/zero:1: not a text file, expected CSV in UTF-8", err)
	}
}
