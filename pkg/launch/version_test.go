package launch

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
)

// TestDefinitionsAsDocumented checks that a change of a field creates a new version of a function, unless docs/gateway.md
// lists the field as one for the gateway only. gpu_mem is an exception, because it belongs to the slice.
func TestDefinitionsAsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)a field that only the gateway uses \(([^)]*)\)`).FindSubmatch(page)
	if list == nil {
		t.Fatal("docs/gateway.md has no list of the fields of function.yaml that make a new version")
	}
	var gateway []string
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllSubmatch(list[1], -1) {
		gateway = append(gateway, string(m[1]))
	}
	read := func(text string) string {
		t.Helper()
		all, err := function.Parse(strings.NewReader(text), "f.yaml")
		if err != nil || len(all) != 1 {
			t.Fatalf("read %s: got %d functions, %v; want 1", text, len(all), err)
		}
		return definition(all[0])
	}
	const base = "name: f\nimage: registry/f:1\n"
	before := read(base)
	fields := map[string]string{
		"command": "[serve]", "env": "{A: b}", "port": "9000", "contract": "openai", "kind": "training", "slo": "69ms", "gpus": "2", "weight": "3",
		"tenant": "blue", "model": "{name: m, size: 98MiB}", "scale": "{min: 1}", "inflight": "4", "batcher": "{max: 4}", "timeout": "1m", "queue": "7", "restart": "always",
		"limits": "{pids: 9}", "read_only": "true", "unmanaged": "stop", "probes": "{paths: [/health]}", "websocket": "keep", "labels": "{a: b}", "annotations": "{a: b}",
		"affinity": "cookie", "aliases": "[Org/F]", "batch_window": "2s", "listed": "false", "loading": "comment", "ready": "{path: /ping}", "served": "m",
	}
	for field, value := range fields {
		same := read(base+field+": "+value+"\n") == before
		if want := slices.Contains(gateway, field); same != want {
			t.Errorf("%s: %s makes no new version: %v, want %v", field, value, same, want)
		}
	}
	for _, field := range gateway {
		if fields[field] == "" {
			t.Errorf("docs/gateway.md lists the field %s, for which this test has no value", field)
		}
	}
	if read(base+"gpu_mem: 1GiB\n") != before {
		t.Error("gpu_mem changes the version, want the same version because it belongs to the slice")
	}
}
