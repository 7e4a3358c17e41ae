package hooktest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wrapped returns the sorted lines of check/plugin/wrapper on the calls that reached
// it.
func wrapped(output string) (calls []string) {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "wrapped ") {
			calls = append(calls, strings.TrimSpace(line))
		}
	}
	slices.Sort(calls)
	return calls
}

// TestOwnWrappers runs a program with its own wrappers for every function of the
// driver. In a slice, each wrapper gets the same calls as without the library, and each
// kernel and allocation is counted once, wherever the wrappers are and in whatever way
// they find the wrapped functions.
func TestOwnWrappers(t *testing.T) {
	t.Parallel()
	hook, wrapper := filepath.Join(build, "lib/libgfaas.so"), filepath.Join(build, "check/plugin/wrapper.so")
	second := filepath.Join(t.TempDir(), "second.so")
	text, err := os.ReadFile(wrapper)
	if err := errors.Join(err, os.WriteFile(second, text, 0o700)); err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	h.start()
	run := func(h *host, id, program, variant string, slice bool, set ...string) (calls []string, launches uint64, mib float64) {
		env := append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "GFAAS_SIM_DIR="+t.TempDir())
		if slice {
			env = h.register(id, whole)
		}
		p := h.run(append(env, set...), "check/"+program, variant, "all", "1")
		h.eventually("the program has made all calls", func() bool { h.alive(p, id); return strings.HasSuffix(p.out.String(), "done\n") })
		_, _, launches = routed(p.out.String())
		if slice {
			h.eventually("every launch is counted", func() bool {
				row, ok := h.row(id)
				mib = row.MemUsedMiB
				return ok && row.Launches >= launches
			})
			if row, _ := h.row(id); row.Launches != launches {
				h.t.Errorf("counted launches of %s: got %d, want %d", id, row.Launches, launches)
			}
		}
		if err := p.wait(); err != nil {
			h.t.Error(err)
		}
		return wrapped(p.errout.String()), launches, mib
	}
	_, _, mib := run(h, "none", "route", "link", true)
	for _, tt := range []struct{ name, program, preload, finds string }{
		{"behind", "route", hook + ":" + wrapper, "next"},
		{"before", "route", wrapper + ":" + hook, "next"},
		{"behind-by-dlsym", "route", hook + ":" + wrapper, "driver"},
		{"behind-by-lookup", "route", hook + ":" + wrapper, "lookup"},
		{"before-by-lookup", "route", wrapper + ":" + hook, "lookup"},
		{"two-behind", "route", hook + ":" + wrapper + ":" + second, "next"},
		{"around", "route", wrapper + ":" + hook + ":" + second, "next"},
		{"linked", "route_wrapped", hook, "next"},
		{"linked-by-dlsym", "route_wrapped", hook, "driver"},
		{"linked-and-behind", "route_wrapped", hook + ":" + wrapper, "next"},
	} {
		for _, variant := range []string{"link", "default", "next", "dlsym", "proc2", "plugin-default", "plugin-next"} {
			t.Run(tt.name+"/"+variant, func(t *testing.T) {
				t.Parallel()
				h := h.within(t)
				id := tt.name + "-" + variant
				finds := "WRAPPER_FINDS=" + tt.finds
				without := strings.Trim(strings.Replace(":"+tt.preload+":", ":"+hook+":", ":", 1), ":")
				want, launches, _ := run(h, id, tt.program, variant, false, finds, "LD_PRELOAD="+without)
				got, counted, held := run(h, id, tt.program, variant, true, finds, "LD_PRELOAD="+tt.preload)
				if len(want) == 0 || !slices.Equal(got, want) {
					t.Errorf("calls of wrappers %v, want %v", got, want)
				}
				if counted != launches || held != mib {
					t.Errorf("%d launches and %v MiB, want %d and %v", counted, held, launches, mib)
				}
			})
		}
	}
}

// TestOwnFunctions calls functions of a preloaded library whose names the driver and
// NVML have as well.
func TestOwnFunctions(t *testing.T) {
	t.Parallel()
	hook, own := filepath.Join(build, "lib/libgfaas.so"), filepath.Join(build, "check/plugin/own.so")
	for _, preload := range []string{own, own + ":" + hook, hook + ":" + own} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(build, "check/called"), "cuMemAlloc_v2", "cuLaunchKernel", "nvmlDeviceGetMemoryInfo", "cuNone")
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "LD_PRELOAD="+preload)
		cmd.Stderr = &logged{t, "called"}
		out, err := cmd.Output()
		if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != "1 2 3 none" {
			t.Errorf("%s: %q, %v; want 1 2 3 none", preload, got, err)
		}
	}
}
