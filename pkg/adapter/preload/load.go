package preload

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// CheckLoads is CheckProgram, and asks the program's own loader whether it
// would put the preload library into it: a library that it cannot load costs
// no more than a warning, and the program would run without limits.
func CheckLoads(ctx context.Context, command, hook string) error {
	program, err := resolve(host{}, command)
	if err != nil {
		return err
	}
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("read %s: %w", program, err)
	}
	defer f.Close()
	// Traced as ldd does, it lists; under --list it gives up at a library of the
	// program's that is not on this machine, like the simulated driver.
	cmd := exec.CommandContext(ctx, programLoader(f), program)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LD_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "LD_TRACE_LOADED_OBJECTS=1", "LD_PRELOAD="+hook)
	// Its status also tells of libraries of the program that are missing here.
	said, ended := cmd.CombinedOutput()
	if err := ctx.Err(); err != nil {
		return err
	}
	if strings.Contains(string(said), hook+" (") {
		return nil
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
	if line == "" {
		line = fmt.Sprintf("its loader ended with %v", ended)
	}
	return &ProgramError{program, "does not take the preload library: " + line, "build gfaas's libraries anew for this machine: make"}
}

// Hooked tells whether a process has the preload library in it; known is false
// when that cannot be seen from here.
func Hooked(pid int) (hooked, known bool) {
	maps, err := procfs.Maps(pid)
	if err != nil || len(maps) == 0 {
		return false, false
	}
	return strings.Contains(maps, "libgfaas.so"), true
}
