package function

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

const whole = `name: resnet
image: registry/resnet:1
command: ["./server", "--fast"]
env: {MODEL: resnet50, BATCH: 8, EMPTY: ""}
port: 9000
contract: kserve-v2
kind: training
slo: 69ms
sm: 24%
quota: 0.3:60%
gpu_mem: 1427MiB
gpus: 2
weight: 1.5
tenant: team_a
model: {name: resnet50, file: resnet50 v2.safetensors, size: 98MiB}
scale: {min: 1, max: 3, idle: 90s}
inflight: 4
timeout: 10m
queue: 64
restart: on-failure
max_restarts: 3
progress: '^step [0-9]+'
limits: {memory: 4GiB, pids: 512, cpus: 1.5}
read_only: true
unmanaged: stop
probes: {paths: [/live, "/a%20b"], methods: []}
websocket: keep
labels: {team: vision}
annotations: {topic: "a: b"}
`

func parse(t *testing.T, text string) []Function {
	t.Helper()
	functions, err := Parse(strings.NewReader(text), "dir/f.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return functions
}

func TestParseAllKeys(t *testing.T) {
	fn := parse(t, whole)[0]
	switch {
	case fn.Name != "resnet", fn.Image != "registry/resnet:1", len(fn.Command) != 2, fn.Command[1] != "--fast":
	case fn.Env["MODEL"] != "resnet50", fn.Env["BATCH"] != "8", fn.Port != 9000, fn.Contract != "kserve-v2":
	case fn.Kind != "training", fn.SLO != 69*time.Millisecond, fn.GPUMem != 1427*gpu.MiB, fn.GPUs != 2:
	case fn.Weight != 1.5, fn.Tenant != "team_a", *fn.Model != Model{"resnet50", "resnet50 v2.safetensors", 98 * gpu.MiB}, fn.Dir != "dir":
	case fn.Scale != Scale{1, 3, 90 * time.Second}, fn.Inflight != 4, fn.Timeout != 10*time.Minute, fn.Queue != 64:
	case fn.SM != 24, fn.Quota != Quota{0.3, 0.6}, fn.Quota.String() != "0.3:0.6", Quota{0.5, 0.5}.String() != "0.5":
	case fn.MaxRestarts != 3, fn.Progress != "^step [0-9]+":
	case fn.Restart != "on-failure", fn.Limits != Limits{4 * gpu.GiB, 512, 1.5}, !fn.ReadOnly, fn.Unmanaged != "stop":
	case !slices.Equal(fn.Probes.Paths, []string{"/live", "/a%20b"}), fn.Probes.Methods == nil, len(fn.Probes.Methods) != 0, !bool(fn.KeepUpgraded):
	case fn.Labels["team"] != "vision", fn.Annotations["topic"] != "a: b":
	default:
		if v, set := fn.Env["EMPTY"]; set && v == "" {
			return
		}
	}
	t.Errorf("got %+v", fn)
}

func TestParseDefaultsAndDocuments(t *testing.T) {
	functions := parse(t, "---\nname: a\ncommand: [./a]\n---\n# nothing\n---\nname: 7b\nimage: x\n---\n")
	if len(functions) != 2 {
		t.Fatalf("got %d functions, want 2", len(functions))
	}
	a, b := functions[0], functions[1]
	if a.Port != 8080 || a.Contract != "auto" || a.Kind != "inference" || a.GPUs != 1 || a.Weight != 1 || a.Tenant != "default" || a.Model != nil ||
		a.Scale != DefaultScale || a.Inflight != 1 || a.Timeout != 0 || a.Queue != 0 || a.Batcher != nil || a.MaxBatch() != 1 ||
		a.SM != 0 || a.Quota != (Quota{}) || a.Restart != "no" || a.Limits != (Limits{}) || a.ReadOnly || a.Unmanaged != "report" ||
		a.Probes.Paths != nil || a.Probes.Methods != nil || bool(a.KeepUpgraded) {
		t.Errorf("defaults: %+v", a)
	}
	if b.Name != "7b" {
		t.Errorf("second name %q, want 7b", b.Name)
	}
}

// TestParseTraining checks the restarts of a training function, and that Format writes what differs from the
// defaults of its kind.
func TestParseTraining(t *testing.T) {
	const job = "name: a\ncommand: [x]\nkind: training\n"
	for keys, want := range map[string]struct {
		restart string
		most    int
		written string
	}{
		"":                  {"on-failure", 6, ""},
		"max_restarts: 2\n": {"on-failure", 2, "max_restarts: 2\n"},
		"max_restarts: 0\n": {"no", 0, "restart: \"no\"\n"},
		"restart: no\n":     {"no", 0, "restart: \"no\"\n"},
		"deadline: 90m\n":   {"on-failure", 6, "deadline: 1h30m0s\n"},
	} {
		fn := parse(t, job+keys)[0]
		if fn.Restart != want.restart || fn.MaxRestarts != want.most {
			t.Errorf("%q: restart %s, max_restarts %d; want %s, %d", keys, fn.Restart, fn.MaxRestarts, want.restart, want.most)
		}
		text, err := Format([]Function{fn})
		if wanted := "name: a\ncommand: [x]\nkind: training\n" + want.written; err != nil || string(text) != wanted {
			t.Errorf("%q: Format: got %q, %v; want %q", keys, text, err, wanted)
		}
		if again := parse(t, string(text))[0]; again.Restart != fn.Restart || again.MaxRestarts != fn.MaxRestarts || again.Deadline != fn.Deadline {
			t.Errorf("%q: Parse of what Format wrote: got %+v, want %+v", keys, again, fn)
		}
	}
}

func TestParseAlias(t *testing.T) {
	fn := parse(t, "name: a\ncommand: [&c ./a, *c]\nenv: {A: &v x, B: *v}\n")[0]
	if fn.Command[1] != "./a" || fn.Env["B"] != "x" {
		t.Errorf("got %+v", fn)
	}
}

// TestParseModelServer checks the keys for model servers, and that Format writes them.
func TestParseModelServer(t *testing.T) {
	const keys = "contract: openai\nready: {path: '/ping?full=1', status: 204}\n" +
		"aliases: [Qwen/Qwen3-8B, 'a b', \"\\u00e4:7b\"]\nserved: /models/Qwen3.gguf\nlisted: false\nloading: comment\n"
	fn := parse(t, "name: a\nimage: x\n"+keys)[0]
	if fn.Ready != (Ready{"/ping?full=1", 204}) || !slices.Equal(fn.Names(), []string{"a", "Qwen/Qwen3-8B", "a b", "ä:7b"}) ||
		fn.Served != "/models/Qwen3.gguf" || !bool(fn.Unlisted) || !bool(fn.LoadingComments) {
		t.Errorf("got %+v, want the values in %q", fn, keys)
	}
	text, err := Format([]Function{fn})
	if err != nil {
		t.Fatal(err)
	}
	if again := parse(t, string(text))[0]; !reflect.DeepEqual(again, fn) {
		t.Errorf("after Format: got %+v, want %+v", again, fn)
	}
}

// TestNames checks that names differ by case, but not by Unicode normal form.
func TestNames(t *testing.T) {
	a, b := Function{Name: "a", Aliases: []string{"Qwen", "qwen", "é"}}, Function{Name: "b", Aliases: []string{"A", "B", "e"}}
	if err := CheckNames([]Function{a, b}); err != nil {
		t.Errorf("aliases %q and %q: got %v, want no error", a.Aliases, b.Aliases, err)
	}
	if composed, apart := CanonicalName("\u00e9"), CanonicalName("e\u0301"); composed != apart {
		t.Errorf("canonical names of one letter in two forms: got %q and %q, want the same", composed, apart)
	}
}

func TestParseAffinity(t *testing.T) {
	for value, header := range map[string]string{"cookie": "", "header:x-session-id": "x-session-id", "header:Authorization": "Authorization"} {
		fn := parse(t, "name: a\nimage: x\naffinity: "+value+"\n")[0]
		if fn.Affinity != Affinity(value) || fn.Affinity.Header() != header || fn.Versioned().Affinity != "" {
			t.Errorf("affinity %s: got %q with the header %q, want the header %q", value, fn.Affinity, fn.Affinity.Header(), header)
		}
		text, err := Format([]Function{fn})
		if err != nil {
			t.Fatal(err)
		}
		if again := parse(t, string(text))[0]; again.Affinity != fn.Affinity {
			t.Errorf("affinity after Format: got %q, want %q", again.Affinity, fn.Affinity)
		}
	}
}

// TestBatchWindow checks that batch_window may be 0, is written again, and makes no new version.
func TestBatchWindow(t *testing.T) {
	for text, want := range map[string]time.Duration{"0s": 0, "1.5s": 1500 * time.Millisecond} {
		fn := parse(t, "name: a\ncommand: [x]\ninflight: 2\nbatch_window: "+text+"\n")[0]
		if fn.BatchWindow == nil || *fn.BatchWindow != want || fn.Versioned().BatchWindow != nil {
			t.Errorf("%s: got %v, want %v and no part of the version", text, fn.BatchWindow, want)
		}
		if written, err := Format([]Function{fn}); err != nil || !strings.Contains(string(written), "batch_window: "+want.String()+"\n") {
			t.Errorf("%s: written as %s, %v, want it to contain batch_window: %v", text, written, err, want)
		}
	}
}

func TestParseBatcher(t *testing.T) {
	fn := parse(t, "name: a\nimage: x\nbatcher: {max: 16, latency: 2ms, repeat: true}\n")[0]
	if fn.Batcher == nil || *fn.Batcher != (Batcher{16, 2 * time.Millisecond, true}) || fn.MaxBatch() != 16 {
		t.Errorf("batcher: got %+v, want max 16, latency 2ms, repeat", fn.Batcher)
	}
	text, err := Format([]Function{fn})
	if err != nil {
		t.Fatal(err)
	}
	if again := parse(t, string(text))[0]; !reflect.DeepEqual(again.Batcher, fn.Batcher) {
		t.Errorf("batcher after Format: got %+v, want %+v", again.Batcher, fn.Batcher)
	}
}

func TestParseFaults(t *testing.T) {
	const ok = "name: a\nimage: x\n"
	const job = "name: a\nkind: training\ncommand: [x]\n"
	for what, c := range map[string]struct{ text, want string }{
		"batches of a job":           {job + "batcher: {max: 8}\n", "f.yaml:4: batcher: not allowed with \"kind: training\""},
		"ready of a job":             {job + "ready: {path: /}\n", "f.yaml:4: ready: not allowed with \"kind: training\""},
		"ready without a path":       {ok + "ready: {status: 200}\n", "f.yaml:3: ready.path: missing, expected a path like /ping"},
		"ready with a relative path": {ok + "ready: {path: ping}\n", `f.yaml:3: ready.path: "ping", expected a path like /ping`},
		"ready with a space":         {ok + "ready: {path: '/ping?a= b'}\n", "f.yaml:3: ready.path: "},
		"ready with a fragment":      {ok + "ready: {path: '/ping?a#b'}\n", "f.yaml:3: ready.path: "},
		"ready with a low status":    {ok + "ready: {path: /, status: 100}\n", `f.yaml:3: ready.status: "100", expected a whole number from 200 to 599`},
		"alias twice":                {ok + "aliases: [x/Y, x/Y]\n", `f.yaml:3: aliases: "x/Y" is in the list already`},
		"alias in two forms":         {ok + "aliases: [\"\\u00e4\", \"a\\u0308\"]\n", "twice (in another Unicode normal form)"},
		"own name as alias":          {ok + "aliases: [a]\n", `f.yaml:3: aliases: function a has the name "a" twice`},
		"alias of two functions":     {ok + "aliases: [X]\n---\nname: b\nimage: x\naliases: [X]\n", `f.yaml:7: aliases: alias "X" of function b is already an alias of function a`},
		"name as another's alias":    {ok + "aliases: [b]\n---\nimage: x\nname: b\n", "f.yaml:6: name: name of function b is already an alias of function a"},
		"alias as another's name":    {ok + "---\nimage: x\nname: b\naliases: [a]\n", `f.yaml:6: aliases: alias "a" of function b is already the name of function a`},
		"empty alias":                {ok + "aliases: ['']\n", `f.yaml:3: aliases: "", expected at most 256 bytes`},
		"alias with a space":         {ok + "aliases: [' a']\n", "f.yaml:3: aliases: "},
		"alias with a line":          {ok + "aliases: [\"b\\nc\"]\n", "f.yaml:3: aliases: "},
		"long alias":                 {ok + "aliases: [" + strings.Repeat("b", 257) + "]\n", "expected at most 256 bytes"},
		"alias, not a list":          {ok + "aliases: b\n", `f.yaml:3: aliases: "b", expected a list of names`},
		"aliases of a job":           {job + "aliases: [b]\n", "f.yaml:4: aliases: not allowed"},
		"served list":                {ok + "served: [b]\n", "f.yaml:3: served: a list, expected at most 256 bytes"},
		"listed":                     {ok + "listed: no\n", `f.yaml:3: listed: "no", expected one of true, false`},
		"loading":                    {ok + "loading: events\n", `f.yaml:3: loading: "events", expected one of none, comment`},
		"unknown key":                {ok + "gpumem: 3\n", "f.yaml:3: gpumem: unknown key, expected one of affinity, aliases, annotations, batch_window, batcher, command, "},
		"affinity":                   {ok + "affinity: session\n", `f.yaml:3: affinity: "session", expected cookie, or the name of a header`},
		"affinity header":            {ok + "affinity: 'header:a b'\n", `f.yaml:3: affinity: `},
		"affinity no header":         {ok + "affinity: 'header:'\n", `f.yaml:3: affinity: "header:", expected cookie`},
		"affinity and batcher":       {ok + "batcher: {max: 8}\naffinity: cookie\n", "f.yaml:4: affinity: not allowed with batcher"},
		"near key":                   {ok + "gpumem: 3\n", ", weight (did you mean gpu_mem?)"},
		"far key":                    {ok + "colour: 3\n", "tenant, timeout, unmanaged, websocket, weight"},
		"unknown model key":          {ok + "model: {name: m, size: 1MiB, shape: 3}\n", "f.yaml:3: model.shape: unknown key, expected one of file, name, size"},
		"repeated key":               {ok + "name: b\n", "f.yaml:3: name: the key is on line 1 already"},
		"repeated variable":          {ok + "env:\n  A: 1\n  A: 2\n", "f.yaml:5: env.A: the key is on line 4 already"},
		"repeated function":          {ok + "---\nimage: y\nname: a\n", `f.yaml:5: name: function "a" is on line 1 already`},
		"no name":                    {"image: x\n", "f.yaml:1: name: missing, expected"},
		"neither":                    {"name: a\n", "f.yaml:1: image: missing, expected an image or a command"},
		"bad name":                   {"image: x\nname: Res_net\n", `f.yaml:2: name: "Res_net" is not a name, expected`},
		"long name":                  {"image: x\nname: " + strings.Repeat("a", 64), "is not a name, expected at most 63"},
		"dash at the end":            {"image: x\nname: a-\n", "is not a name"},
		"command text":               {"name: a\ncommand: ./a\n", `f.yaml:2: command: "./a", expected a program and its arguments`},
		"command empty":              {"name: a\ncommand: []\n", "f.yaml:2: command: an empty list, expected a program"},
		"command nested":             {"name: a\ncommand:\n- a\n- [b]\n", "f.yaml:4: command[1]: a list, expected a string"},
		"env list":                   {ok + "env: [A=1]\n", "f.yaml:3: env: a list, expected variables"},
		"env null":                   {ok + "env:\n  A:\n", "f.yaml:4: env.A: no value, expected a string"},
		"env name":                   {ok + "env: {A=B: 1}\n", "f.yaml:3: env.A=B: not a variable's name"},
		"port 0":                     {ok + "port: 0\n", `f.yaml:3: port: "0", expected a whole number from 1 to 65535`},
		"port 65536":                 {ok + "port: 65536\n", "expected a whole number from 1 to 65535"},
		"contract":                   {ok + "contract: grpc\n", `f.yaml:3: contract: "grpc", expected one of auto, http`},
		"kind":                       {ok + "kind: batch\n", `"batch", expected one of inference, training`},
		"slo number":                 {ok + "slo: 69\n", `f.yaml:3: slo: "69", expected a duration above 0 like 69ms`},
		"slo negative":               {ok + "slo: -1s\n", "expected a duration above 0"},
		"size unit":                  {ok + "gpu_mem: 5XB\n", `f.yaml:3: gpu_mem: "5XB", expected a size above 0`},
		"size in bytes":              {ok + "gpu_mem: 5\n", `f.yaml:3: gpu_mem: "5" is below 1MiB: a number without a unit is bytes`},
		"size of nearly nothing":     {ok + "gpu_mem: 1e-9GiB\n", "f.yaml:3: gpu_mem: "},
		"limit in bytes":             {"name: a\nimage: b\nlimits: {memory: 512}\n", `f.yaml:3: limits.memory: "512" is below 1MiB`},
		"model of nearly nothing":    {ok + "model: {name: m, size: 0.1}\n", "f.yaml:3: model.size: "},
		"size 0":                     {ok + "gpu_mem: 0\n", "expected a size above 0"},
		"size too large":             {ok + "gpu_mem: 99999999TiB\n", `f.yaml:3: gpu_mem: "99999999TiB" is too large: expected less than 8388608TiB`},
		"sm share":                   {ok + "sm: 101\n", `f.yaml:3: sm: "101", expected a share of the SMs in percent, above 0 and at most 100`},
		"sm share 0":                 {ok + "sm: 0\n", `f.yaml:3: sm: "0", expected a share`},
		"quota":                      {ok + "quota: 30\n", `f.yaml:3: quota: "30", expected a quota above 0 and at most 1`},
		"quota limit":                {ok + "quota: 0.5:0.2\n", `f.yaml:3: quota: "0.5:0.2", expected a quota`},
		"quota list":                 {ok + "quota: [0.5]\n", "f.yaml:3: quota: a list, expected a quota"},
		"gpus":                       {ok + "gpus: 0\n", "expected a whole number from 1"},
		"weight NaN":                 {ok + "weight: .nan\n", `f.yaml:3: weight: ".nan" is not a number`},
		"weight 0":                   {ok + "weight: 0\n", "expected more than 0"},
		"null":                       {ok + "slo:\n", "f.yaml:3: slo: no value, expected a duration"},
		"model text":                 {ok + "model: resnet50\n", `f.yaml:3: model: "resnet50", expected a mapping with some of the keys file, name, size`},
		"model size":                 {ok + "model: {name: m}\n", "f.yaml:3: model.file: missing"},
		"scale key":                  {ok + "scale: {most: 3}\n", "f.yaml:3: scale.most: unknown key, expected one of idle, max, min"},
		"scale bounds":               {ok + "scale: {min: 3, max: 2}\n", "f.yaml:3: scale.max: 2 is less than min, expected at least 3"},
		"scale idle":                 {ok + "scale: {idle: 0s}\n", "scale.idle: \"0s\", expected a duration above 0"},
		"inflight":                   {ok + "inflight: 0\n", "expected a whole number from 1 to 4096"},
		"batcher max":                {ok + "batcher: {max: 0}\n", `f.yaml:3: batcher.max: "0", expected a whole number from 1 to 4096`},
		"batcher latency":            {ok + "batcher: {latency: 2m}\n", "f.yaml:3: batcher.latency: 2m0s, expected at most 1m0s"},
		"batcher key":                {ok + "batcher: {size: 8}\n", "f.yaml:3: batcher.size: unknown key, expected one of latency, max, repeat"},
		"queue":                      {ok + "queue: -1\n", "expected a whole number from 1 to"},
		"labels list":                {ok + "labels: [a]\n", "f.yaml:3: labels: a list, expected names and values"},
		"label name":                 {ok + "annotations: {a b: c}\n", "f.yaml:3: annotations.a b: not a label's name"},
		"restart":                    {ok + "restart: never\n", `"never", expected one of no, on-failure, always`},
		"limits key":                 {ok + "limits: {swap: 1GiB}\n", "f.yaml:3: limits.swap: unknown key, expected one of cpus, memory, pids"},
		"limits memory":              {ok + "limits: {memory: 0}\n", "f.yaml:3: limits.memory: "},
		"limits pids":                {ok + "limits: {pids: 0}\n", "f.yaml:3: limits.pids: \"0\", expected a whole number from 1"},
		"limits cpus":                {ok + "limits: {cpus: 0}\n", "f.yaml:3: limits.cpus: "},
		"limits of none":             {"name: a\ncommand: [x]\nlimits: {pids: 3}\n", "f.yaml:3: limits: applies only to containers, expected the key image as well"},
		"read_only":                  {ok + "read_only: perhaps\n", `f.yaml:3: read_only: "perhaps", expected one of true, false`},
		"read_only of none":          {"name: a\ncommand: [x]\nread_only: true\n", "f.yaml:3: read_only: applies only to containers"},
		"unmanaged":                  {ok + "unmanaged: kill\n", `f.yaml:3: unmanaged: "kill", expected one of report, stop`},
		"websocket":                  {ok + "websocket: open\n", `f.yaml:3: websocket: "open", expected one of close, keep`},
		"probes list":                {ok + "probes: [/health]\n", "f.yaml:3: probes: a list, expected a mapping with some of the keys methods, paths"},
		"probes key":                 {ok + "probes: {path: [/health]}\n", "f.yaml:3: probes.path: unknown key, expected one of methods, paths (did you mean paths?)"},
		"probes text":                {ok + "probes: {paths: /health}\n", `f.yaml:3: probes.paths: "/health", expected a list of paths like [/health]`},
		"probes path":                {ok + "probes:\n  paths:\n  - /a\n  - health\n", `f.yaml:6: probes.paths: "health", expected a path like /health`},
		"probes query":               {ok + "probes: {paths: [\"/a?b\"]}\n", `f.yaml:3: probes.paths: "/a?b", expected`},
		"probes path twice":          {ok + "probes: {paths: [/a, /a]}\n", `f.yaml:3: probes.paths: "/a" is in the list already, expected each once`},
		"probes method":              {ok + "probes: {methods: [POST]}\n", `f.yaml:3: probes.methods: "POST", expected one of GET, HEAD, OPTIONS, TRACE`},
		"probes methods":             {ok + "probes: {methods: [GET, GET, GET, GET, GET]}\n", "f.yaml:3: probes.methods: 5 entries, expected at most 4"},
		"timeout":                    {ok + "timeout: 5\n", "expected a duration above 0"},
		"merge":                      {ok + "<<: {port: 1}\n", "f.yaml:3: <<: unknown key"},
		"list":                       {"- name: a\n", "f.yaml:1: a list, expected a mapping with some of the keys affinity, aliases, annotations, batch_window, batcher, command, "},
		"text":                       {"hello\n", `f.yaml:1: "hello", expected a mapping with some of the keys`},
		"empty":                      {"", "f.yaml:1: the file has no function"},
		"only comments":              {"# a\n", "f.yaml:1: the file has no function"},
		"binary":                     {"\x7fELF\x00\x01", "f.yaml:1: not a text file"},
		"not UTF-8":                  {"name: \xff\n", "f.yaml:1: not a text file"},
		"syntax":                     {"name: a\nimage: [x\nport: 1\n", "f.yaml:2: did not find expected"},
		"tab":                        {"name: a\n\timage: x\n", "f.yaml:2: "},
		"long line":                  {"name: a\nimage: " + strings.Repeat("x", 10<<20), "f.yaml:2: the line has"},
		"max_restarts":               {job + "max_restarts: -1\n", "f.yaml:4: max_restarts: \"-1\", expected a whole number from 0 to 1000"},
		"deadline":                   {job + "deadline: 0s\n", "f.yaml:4: deadline: \"0s\", expected a duration above 0"},
		"deadline of a container":    {job + "image: x\ndeadline: 1h\n", "f.yaml:5: deadline: applies only to processes"},
		"progress":                   {job + "progress: 'step ('\n", "f.yaml:4: progress: error parsing regexp"},
		"progress of nothing":        {job + "progress: ''\n", "f.yaml:4: progress: an empty pattern"},
		"progress of a server":       {ok + "progress: step\n", "f.yaml:3: progress: not allowed with \"kind: inference\", expected \"kind: training\""},
		"a job for ever":             {job + "restart: always\n", "f.yaml:4: restart: \"always\" is not allowed with \"kind: training\""},
		"restarts of none":           {job + "restart: no\nmax_restarts: 3\n", "f.yaml:5: max_restarts: not allowed with \"restart: no\""},
		"kernels without a request":  {"name: a\nkind: kernels\n", "f.yaml:1: request: missing"},
		"a request of no kernels":    {"name: a\nrequest: r.json\n", "f.yaml:2: request: not allowed with \"kind: inference\""},
		"kernels with a command":     {"name: a\nkind: kernels\nrequest: r.json\ncommand: [x]\n", "f.yaml:4: command: not allowed with \"kind: kernels\""},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := Parse(strings.NewReader(c.text), "f.yaml")
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "f.yaml:") {
				t.Errorf("got %.300v\nwant %s", err, c.want)
			}
		})
	}
}
