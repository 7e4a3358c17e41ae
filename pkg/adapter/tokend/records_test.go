package tokend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRegistrations(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	if list, err := Registrations(run); err != nil || len(list) != 0 {
		t.Errorf("without a run directory: %v, %v; want none", list, err)
	}
	if err := os.MkdirAll(filepath.Join(run, "instances"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"f-0.json":       `{"instance":"f-0","function":"f","gpu":"sim","sm_pct":12,"more":[{"gpu":"sim:1"}],"secret_sha256":"00"}`,
		"other.json":     `{"instance":"f-1"}`,
		"cut.json":       `{"instance":"cut","func`,
		"run.json":       `{"instance":"run","function":"sleep","gpu":"sim","owner_pid":7,"owner_start":9}`,
		"note.txt":       "x",
		".hidden.json":   `{"instance":".hidden"}`,
		"f-0.json.12345": "{",
	} {
		if err := os.WriteFile(filepath.Join(run, "instances", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/dev/zero", filepath.Join(run, "instances", "link.json")); err != nil {
		t.Fatal(err)
	}
	list, err := Registrations(run)
	if err != nil || len(list) != 4 {
		t.Fatalf("registrations: got %+v, %v; want cut, f-0, link and other", list, err)
	}
	if list[0].Instance != "cut" || list[2].Instance != "link" || list[3].Instance != "other" || list[3].Function != "" {
		t.Errorf("registrations: got %+v, want cut, link and other, the last without a function", list)
	}
	f := list[1]
	if f.Function != "f" || len(f.Allocations()) != 2 || f.Allocations()[1].GPU != "sim:1" || f.SMPct != 12 {
		t.Errorf("registration f-0: got %+v, want the function f on two GPUs with 12%% of the SMs", f)
	}
	if jobs, err := Jobs(run); err != nil || len(jobs) != 1 || jobs[0].Instance != "run" || jobs[0].OwnerPID != 7 || jobs[0].OwnerStart != 9 {
		t.Errorf("jobs: %+v, %v; want run of process 7, started at 9", jobs, err)
	}
	if err := os.Chmod(run, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Registrations(run); err == nil || !strings.Contains(err.Error(), "writable by other users") {
		t.Errorf("run directory that others can write to: got the error %v, want one that says so", err)
	}
}
