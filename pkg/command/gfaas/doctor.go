package gfaas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/cuda"
	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// Outcomes of a check.
const (
	checkOK       = "ok"
	checkMissing  = "missing"  // not there
	checkBad      = "bad"      // there, and cannot be used
	checkUnneeded = "unneeded" // not there, and nothing here would use it
)

// check is one thing that was looked at.
type check struct {
	Name     string `json:"name"`
	Status   string `json:"status"`   // ok, missing, bad or unneeded
	Required bool   `json:"required"` // without it nothing runs
	Detail   string `json:"detail"`
	Hint     string `json:"hint,omitempty"`

	locked bool // another process holds it, for now
}

// rung is one mechanism of a ladder: the highest that is there is chosen.
type rung struct {
	Purpose   string `json:"purpose"` // what it is for: SM share, GPU time, GPU memory or idle memory
	Mechanism string `json:"mechanism"`
	Found     bool   `json:"found"`
	Chosen    bool   `json:"chosen"`
	Detail    string `json:"detail"`
}

// diagnosis is what doctor prints.
type diagnosis struct {
	OK        bool    `json:"ok"`        // functions can run here
	Simulated bool    `json:"simulated"` // on the simulated GPU, whose figures are not a GPU's
	Checks    []check `json:"checks"`
	Ladder    []rung  `json:"ladder"`
}

func newDoctor(t *tool) *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can do, and what is missing",
		Long: `Looks for everything gfaas relies on and says what it found, what is missing
and what to do about it; then which mechanism enforces each part of a slice
here, and which has the memory of instances without work wait elsewhere, the best
that was found. It changes nothing.

With --repair it first repairs the state file, if that was damaged or removed: it adds
the running instances that the file lacks, from the run directory, the processes and the
labels of containers. A damaged file is renamed, and the new one continues from the
previous generation, if there is one (docs/sharing.md). Models whose files no longer
exist are removed, except those that are still on a GPU.

Exit 0 says that functions can run, exit 4 that something needed is missing,
exit 6 that only the state file, locked by another process, stands in the way.

JSON is {"ok", "simulated", "checks": [{"name", "status": "ok", "missing",
"bad" or "unneeded", "required", "detail", "hint"}], "ladder": [{"purpose",
"mechanism", "found", "chosen", "detail"}]}.`,
		Example: "  gfaas doctor\n  gfaas doctor -o json\n  gfaas doctor --repair",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if repair {
				if err := t.repair(cmd.Context()); err != nil {
					return err
				}
			}
			return runDoctor(cmd.Context(), t)
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "record running instances that the state lacks, and replace a damaged state")
	t.env.Outputs(cmd, "table", "json", "yaml")
	return cmd
}

func runDoctor(ctx context.Context, t *tool) error {
	d := t.diagnose(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.env.Show(d, d.rows); err != nil {
		return err
	}
	if d.OK {
		return nil
	}
	var missing, hints []string
	exit := cli.ExitLocked
	for _, c := range d.Checks {
		if c.Required && c.Status != checkOK {
			missing = append(missing, c.Name)
			hints = append(hints, c.Hint)
			if !c.locked {
				exit = cli.ExitUnavailable
			}
		}
	}
	return cli.Fail(exit, strings.Join(hints, "; "),
		errors.New("functions cannot run here: "+strings.Join(missing, ", ")))
}

// rows is the form for people: the checks, then the ladder.
func (d diagnosis) rows() [][]string {
	out := [][]string{{"CHECK", "STATUS", "WHAT"}}
	for _, c := range d.Checks {
		what := c.Detail
		if c.Hint != "" {
			what += " (" + c.Hint + ")"
		}
		out = append(out, []string{c.Name, c.Status, what})
	}
	for _, r := range d.Ladder {
		status := "not here"
		switch {
		case r.Chosen:
			status = "chosen"
		case r.Found:
			status = "found"
		}
		out = append(out, []string{r.Purpose + " by " + r.Mechanism, status, r.Detail})
	}
	return out
}

// askTime is how long a daemon may take to answer a probe.
const askTime = 3 * time.Second

// machine is what the probes of GPUs found; the ladder is built from it.
type machine struct {
	driver  bool // a real one
	devices []nvml.Device
	mps     mps.Status
	libs    preload.Libs
	ptrace  bool // this process may trace others
}

// diagnose looks at this machine.
func (t *tool) diagnose(ctx context.Context) diagnosis {
	m := machine{driver: preload.HasNVIDIA(), mps: probeShared(t.runDir), ptrace: cuda.MayCheckpoint()}
	var checks []check
	checks = append(checks, m.probeDriver(ctx, nvml.NVML{})...)
	checks = append(checks, m.probeLibs()...)
	checks = append(checks, m.probeSimulated(ctx, nvml.NVML{Simulated: devices.SimulatedNVML()})...)
	checks = append(checks, m.probeMPS(), t.probeTokend(), t.probeTokens(ctx))
	checks = append(append(checks, t.probeModels(ctx)...), t.probeKernels(ctx)...)
	checks = append(checks, t.probeDocker(ctx), t.probeRunDir(), t.probeState(ctx))
	checks = append(checks, probeLimits()...)
	d := diagnosis{OK: true, Simulated: !m.driver, Checks: checks, Ladder: m.ladder()}
	for _, c := range checks {
		if c.Required && c.Status != checkOK {
			d.OK = false
		}
	}
	return d
}

func (m *machine) probeDriver(ctx context.Context, lib nvml.Lister) []check {
	if !m.driver {
		return []check{{Name: "NVIDIA driver", Status: checkMissing,
			Detail: "no libcuda.so.1 and /dev/nvidiactl: functions run on the simulated GPU, whose figures are not a GPU's"}}
	}
	devices, err := lib.Devices(ctx)
	if err != nil {
		return []check{{Name: "NVIDIA driver", Status: checkOK, Detail: fmt.Sprintf("found; %v", err), Hint: cli.HintOf(err)}}
	}
	m.devices = devices
	if len(devices) == 0 {
		return []check{{Name: "NVIDIA driver", Status: checkBad, Required: true, Detail: "found, with no GPU", Hint: "see nvidia-smi"}}
	}
	checks := []check{{Name: "NVIDIA driver", Status: checkOK, Required: true, Detail: "version " + devices[0].Driver}}
	for _, d := range devices {
		found := gpuCheck(fmt.Sprintf("GPU %d", d.Index), d)
		if d.MIG {
			found.Detail += ", MIG enabled"
		}
		checks = append(checks, found)
	}
	return checks
}

// gpuCheck describes a GPU by its model and memory.
func gpuCheck(name string, d nvml.Device) check {
	if d.Mem == 0 {
		return check{Name: name, Status: checkOK, Detail: d.Name + ", memory unknown",
			Hint: "NVML does not report the memory of this GPU, which may share the host's: set --gpu-mem of gfaas serve and gfaas-place"}
	}
	return check{Name: name, Status: checkOK, Detail: fmt.Sprintf("%s, %s", d.Name, d.Mem)}
}

func (m *machine) probeLibs() []check {
	libs, err := preload.FindLibs()
	if err != nil {
		return []check{{Name: "preload library", Status: checkMissing, Required: true, Detail: err.Error(), Hint: cli.HintOf(err)}}
	}
	m.libs = libs
	sim := check{Name: "simulated driver", Status: checkOK, Required: !m.driver, Detail: filepath.Join(libs.SimDir, preload.DriverFile)}
	if libs.SimDir == "" {
		sim.Status, sim.Detail, sim.Hint = checkMissing, "not beside "+libs.Hook, "run make"
	}
	return []check{{Name: "preload library", Status: checkOK, Required: true, Detail: libs.Hook}, sim}
}

// probeSimulated asks the simulated driver's own management library what it shows,
// where functions run on it.
func (m *machine) probeSimulated(ctx context.Context, lib nvml.Lister) []check {
	if m.driver || m.libs.SimDir == "" {
		return nil
	}
	shown, err := lib.Devices(ctx)
	if err != nil {
		return []check{{Name: "simulated GPU", Status: checkBad, Detail: err.Error(), Hint: devices.SimShapeHint}}
	}
	var checks []check
	for _, d := range shown {
		name := gpu.Device{Index: d.Index, Simulated: true}.String()
		checks = append(checks, gpuCheck("GPU "+name, d))
	}
	return checks
}

// probeShared finds the MPS daemon that instances would use: its owner's, else
// the token daemon's private one.
func probeShared(runDir string) mps.Status {
	if runDir == "" {
		runDir = cli.RunDir()
	}
	owners := mps.Probe()
	if owners.Running() {
		return owners
	}
	return mps.ProbeDir(mps.PipeDir(runDir))
}

func (m *machine) probeMPS() check {
	c := check{Name: "MPS", Status: checkMissing}
	switch {
	case !m.driver:
		c.Status, c.Detail = checkUnneeded, "the simulated driver knows SM shares itself"
	case m.mps.Running():
		c.Status, c.Detail = checkOK, fmt.Sprintf("control daemon %d serves %s", m.mps.PID, m.mps.PipeDir)
	case m.mps.Program != "":
		c.Status, c.Detail = checkOK, m.mps.Program+", started when an instance needs it, in "+m.mps.PipeDir
	default:
		c.Detail = "nvidia-cuda-mps-control is not on PATH: SM shares are not enforced"
		c.Hint = "install the NVIDIA driver's compute utilities"
	}
	return c
}

func (t *tool) probeTokend() check {
	path, err := findPlugin("gfaas-tokend")
	if err != nil {
		return check{Name: "gfaas-tokend", Status: checkMissing, Required: true,
			Detail: "neither beside gfaas nor on PATH", Hint: "run make, or add its folder to PATH"}
	}
	return check{Name: "gfaas-tokend", Status: checkOK, Required: true, Detail: path}
}

func (t *tool) probeTokens(ctx context.Context) check {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	status, err := tokend.Dial(t.runDir).Status(ctx)
	if err != nil {
		return check{Name: "token daemon", Status: checkMissing, Detail: "none runs; gfaas run and gfaas up start one"}
	}
	clients := 0
	for _, g := range status.GPUs {
		clients += len(g.Clients)
	}
	return check{Name: "token daemon", Status: checkOK,
		Detail: fmt.Sprintf("policy %s, window %v ms, %d client(s)", status.Policy, status.WindowMS, clients)}
}

func (t *tool) probeDocker(ctx context.Context) check {
	engine, err := docker.New(ctx, docker.Config{RunDir: t.runDir, Patience: askTime})
	if err != nil {
		return check{Name: "Docker engine", Status: checkMissing, Detail: firstLine(err.Error()) + ": functions with an image cannot run", Hint: cli.HintOf(err)}
	}
	defer engine.Close()
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	detail := "answers"
	if text, err := engine.Version(ctx); err == nil {
		detail = "version " + text
	}
	return check{Name: "Docker engine", Status: checkOK, Detail: detail}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// probeRunDir looks at the run directory, or at where it would be made.
func (t *tool) probeRunDir() check {
	c := check{Name: "run directory", Required: true, Status: checkOK, Detail: t.runDir}
	if err := tokend.CheckRunDir(t.runDir); err != nil {
		c.Status, c.Detail, c.Hint = checkBad, err.Error(), cli.HintOf(err)
		return c
	}
	if err := writable(t.runDir); err != nil {
		c.Status, c.Detail, c.Hint = checkBad, err.Error(), "set GFAAS_RUN_DIR to a folder of yours that others cannot write to"
		return c
	}
	if info, err := os.Stat(t.runDir); err == nil && info.Mode().Perm()&0o077 != 0 {
		c.Status, c.Detail, c.Hint = checkBad, t.runDir+" is open to others", "chmod 700 "+t.runDir
	}
	return c
}

func (t *tool) probeState(ctx context.Context) check {
	path := cli.StatePath()
	c := check{Name: "state file", Required: true, Status: checkOK, Detail: path}
	state, err := t.store.Look(ctx)
	if err == nil {
		err = writable(filepath.Dir(path))
	}
	if err != nil {
		c.Status, c.Detail, c.Hint = checkBad, err.Error(), cli.HintOf(err)
		var held interface{ Locked() bool }
		c.locked = errors.As(err, &held) && held.Locked()
		if c.Hint == "" {
			c.Hint = "set GFAAS_STATE to a file of yours"
		}
		return c
	}
	c.Detail = fmt.Sprintf("%s, %d function(s)", path, len(state.Functions))
	return c
}

// writable says why files cannot be made in a folder; of one that is not
// there yet, why it cannot be made.
func writable(dir string) error {
	for {
		info, err := os.Stat(dir)
		switch {
		case err == nil && !info.IsDir():
			return fmt.Errorf("%s is not a folder", dir)
		case err == nil:
			if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
			return nil
		case !errors.Is(err, os.ErrNotExist) || filepath.Dir(dir) == dir:
			return err
		}
		dir = filepath.Dir(dir)
	}
}

// probeLimits looks at what the system lets programs have.
func probeLimits() []check {
	var out []check
	var shm unix.Statfs_t
	const little = 256 * gpu.MiB
	c := check{Name: "shared memory", Status: checkOK}
	if err := unix.Statfs("/dev/shm", &shm); err != nil {
		c.Status, c.Detail, c.Hint = checkMissing, fmt.Sprintf("/dev/shm: %v", err), "mount a tmpfs there"
	} else {
		free := gpu.Bytes(shm.Bavail * uint64(shm.Bsize))
		c.Detail = fmt.Sprintf("%.0f MiB free in /dev/shm; the simulated GPU's memory is taken from it", free.MiB())
		if free < little {
			c.Status, c.Hint = checkBad, "in a container: --shm-size=1g"
		}
	}
	out = append(out, c)
	var lock unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lock); err == nil {
		detail := "unlimited"
		if lock.Cur != unix.RLIM_INFINITY {
			detail = gpu.Bytes(lock.Cur).String()
		}
		out = append(out, check{Name: "locked memory", Status: checkOK, Detail: detail + "; CUDA pins host memory within it"})
	}
	return out
}

// ladder lists the mechanisms that enforce a slice, best first for each
// purpose, with the one that is used here chosen.
func (m *machine) ladder() []rung {
	hook := m.libs.Hook != ""
	onMPS := m.driver && (m.mps.Running() || m.mps.Program != "")
	shares := []rung{
		{Mechanism: "MIG instance", Found: m.partitioned(), Detail: "a MIG device is shared as any other GPU is"},
		{Mechanism: "MPS static partition", Detail: "reserves SMs; drivers from 610 on have it, this version does not use it"},
		{Mechanism: "MPS thread percentage", Found: onMPS, Detail: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE under an MPS daemon, for instances below 100%"},
		{Mechanism: "simulated driver", Found: !m.driver && m.libs.SimDir != "", Detail: "the same variable, on simulated multiprocessors"},
		{Mechanism: "time only", Found: hook, Detail: "shares are counted when tokens are handed out, and not enforced by the GPU"},
	}
	// Instances are placed by SM share: a MIG device is shared like any other.
	choose(shares[1:], "SM share")
	shares[0].Purpose = "SM share"
	times := []rung{{Mechanism: "token leases", Found: hook, Detail: "the preload library waits for its turn"}}
	choose(times, "GPU time")
	memory := []rung{
		{Mechanism: "preload library", Found: hook, Detail: "allocations over the limit fail with out of memory"},
	}
	choose(memory, "GPU memory")
	// A second fence around the first, not instead of it.
	memory = append(memory, rung{Purpose: "GPU memory", Mechanism: "MPS pinned limit", Found: onMPS,
		Detail: fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT at the limit and %v for the context", preload.MPSRoom)})
	return slices.Concat(shares, times, memory, m.parking())
}

// choose names the rungs' purpose and chooses the first that was found.
func choose(rungs []rung, purpose string) {
	chosen := false
	for i := range rungs {
		rungs[i].Purpose = purpose
		rungs[i].Chosen = rungs[i].Found && !chosen
		chosen = chosen || rungs[i].Found
	}
}

func (m *machine) partitioned() bool {
	for _, d := range m.devices {
		if d.MIG {
			return true
		}
	}
	return false
}
