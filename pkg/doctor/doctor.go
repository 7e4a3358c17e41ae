// Package doctor checks whether a host has the drivers, libraries, programs, daemons and limits that gfaas needs.
//
// Host.Diagnose returns a Diagnosis: a Check for each dependency, and the ladder of mechanisms that can enforce
// a slice on this host, with the chosen ones. It changes nothing. Host.RepairModels removes models whose files
// are missing. The command gfaas doctor uses this package.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/adapter/cuda"
	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Outcomes of a check.
const (
	OK       = "ok"
	Missing  = "missing"  // not found
	Bad      = "bad"      // found, but unusable
	Unneeded = "unneeded" // not found, and not needed on this host
)

// Check is the result of one check.
type Check struct {
	Name     string `json:"name"`
	Status   string `json:"status"`   // ok, missing, bad or unneeded
	Required bool   `json:"required"` // gfaas cannot run functions without it
	Detail   string `json:"detail"`
	Hint     string `json:"hint,omitempty"`

	locked bool // the check failed because another process holds the file
}

// Rung is one mechanism of the ladder. The best available one for each purpose is chosen.
type Rung struct {
	Purpose   string `json:"purpose"` // SM share, GPU time, GPU memory or idle memory
	Mechanism string `json:"mechanism"`
	Found     bool   `json:"found"`
	Chosen    bool   `json:"chosen"`
	Detail    string `json:"detail"`
}

// Diagnosis is the result of all checks of a host.
type Diagnosis struct {
	OK        bool    `json:"ok"`        // functions can run here
	Simulated bool    `json:"simulated"` // functions run on the simulated GPU, whose timings differ from a real GPU's
	Checks    []Check `json:"checks"`
	Ladder    []Rung  `json:"ladder"`
}

// Missing returns the names and hints of the required checks that failed. Locked reports whether all of them
// failed only because another process holds a file.
func (d Diagnosis) Missing() (names, hints []string, locked bool) {
	locked = true
	for _, c := range d.Checks {
		if c.Required && c.Status != OK {
			names, hints = append(names, c.Name), append(hints, c.Hint)
			locked = locked && c.locked
		}
	}
	return names, hints, locked
}

// Host describes the host to check, from the view of one user.
type Host struct {
	RunDir, StatePath string
	State             *bolt.DB
	Program           func(name string) (path string, err error) // finds a program of gfaas
	SimulatedNVML     string                                     // path of the simulated management library
	SimulatedHint     string                                     // hint on how to configure simulated GPUs
}

// askTime limits how long a daemon may take to answer.
const askTime = 3 * time.Second

// hardware holds the results of the GPU checks, from which ladder derives the mechanisms.
type hardware struct {
	driver  bool // there is an NVIDIA driver
	devices []nvml.Device
	mps     mps.Status
	libs    preload.Libs
	ptrace  bool // this process may trace other processes
}

// Diagnose runs all checks. It changes nothing.
func (m Host) Diagnose(ctx context.Context) Diagnosis {
	h := hardware{driver: preload.HasNVIDIA(), mps: probeShared(m.RunDir), ptrace: cuda.MayCheckpoint()}
	var checks []Check
	checks = append(checks, h.probeDriver(ctx, nvml.NVML{})...)
	checks = append(checks, h.probeLibs()...)
	checks = append(checks, h.probeSimulated(ctx, nvml.NVML{Simulated: m.SimulatedNVML}, m.SimulatedHint)...)
	checks = append(checks, h.probeMPS(), m.probeProgram("gfaas-tokend", true, ""), m.probeTokens(ctx))
	checks = append(append(checks, m.probeModels(ctx)...), m.probeKernels(ctx)...)
	checks = append(checks, m.probeDocker(ctx), m.probeRunDir(), m.probeState(ctx))
	checks = append(checks, probeLimits()...)
	d := Diagnosis{Simulated: !h.driver, Checks: checks, Ladder: h.ladder()}
	missing, _, _ := d.Missing()
	d.OK = len(missing) == 0
	return d
}

// lister lists GPUs. nvml.NVML implements it.
type lister interface {
	Devices(ctx context.Context) ([]nvml.Device, error)
}

func (h *hardware) probeDriver(ctx context.Context, lib lister) []Check {
	if !h.driver {
		return []Check{{Name: "NVIDIA driver", Status: Missing,
			Detail: "libcuda.so.1 or /dev/nvidiactl is missing: functions run on the simulated GPU, whose figures are not those of a real GPU"}}
	}
	devices, err := lib.Devices(ctx)
	if err != nil {
		return []Check{{Name: "NVIDIA driver", Status: OK, Detail: fmt.Sprintf("found; %v", err), Hint: ports.Hint(err)}}
	}
	h.devices = devices
	if len(devices) == 0 {
		return []Check{{Name: "NVIDIA driver", Status: Bad, Required: true, Detail: "found, but it has no GPU", Hint: "check the GPUs with nvidia-smi"}}
	}
	checks := []Check{{Name: "NVIDIA driver", Status: OK, Required: true, Detail: "version " + devices[0].Driver}}
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
func gpuCheck(name string, d nvml.Device) Check {
	if d.Mem == 0 {
		return Check{Name: name, Status: OK, Detail: d.Name + ", memory unknown",
			Hint: "NVML does not report the memory of this GPU, which may share the host's: set --gpu-mem of gfaas serve and gfaas-place"}
	}
	return Check{Name: name, Status: OK, Detail: fmt.Sprintf("%s, %s", d.Name, d.Mem)}
}

func (h *hardware) probeLibs() []Check {
	libs, err := preload.FindLibs()
	if err != nil {
		return []Check{{Name: "preload library", Status: Missing, Required: true, Detail: err.Error(), Hint: ports.Hint(err)}}
	}
	h.libs = libs
	sim := Check{Name: "simulated driver", Status: OK, Required: !h.driver, Detail: filepath.Join(libs.SimDir, preload.DriverFile)}
	if libs.SimDir == "" {
		sim.Status, sim.Detail, sim.Hint = Missing, "not next to "+libs.Hook, "run make"
	}
	return []Check{{Name: "preload library", Status: OK, Required: true, Detail: libs.Hook}, sim}
}

// probeSimulated lists the simulated GPUs with the simulated driver's management library, if functions run on
// them.
func (h *hardware) probeSimulated(ctx context.Context, lib lister, hint string) []Check {
	if h.driver || h.libs.SimDir == "" {
		return nil
	}
	shown, err := lib.Devices(ctx)
	if err != nil {
		return []Check{{Name: "simulated GPU", Status: Bad, Detail: err.Error(), Hint: hint}}
	}
	var checks []Check
	for _, d := range shown {
		name := gpu.Device{Index: d.Index, Simulated: true}.String()
		checks = append(checks, gpuCheck("GPU "+name, d))
	}
	return checks
}

// probeShared returns the status of the MPS daemon that instances would use: the host's or, failing that, the
// token daemon's private one.
func probeShared(runDir string) mps.Status {
	owners := mps.Probe()
	if owners.Running() {
		return owners
	}
	return mps.ProbeDir(mps.PipeDir(runDir))
}

func (h *hardware) probeMPS() Check {
	c := Check{Name: "MPS", Status: Missing}
	switch {
	case !h.driver:
		c.Status, c.Detail = Unneeded, "the simulated driver enforces SM shares itself"
	case h.mps.Running():
		c.Status, c.Detail = OK, fmt.Sprintf("control daemon %d serves %s", h.mps.PID, h.mps.PipeDir)
	case h.mps.Program != "":
		c.Status, c.Detail = OK, h.mps.Program+", to be started in "+h.mps.PipeDir+" when an instance needs it"
	default:
		c.Detail = "nvidia-cuda-mps-control is not on PATH: SM shares are not enforced"
		c.Hint = "install the NVIDIA driver's compute utilities"
	}
	return c
}

// probeProgram searches for a program of gfaas. The text without is appended to the detail if it is missing.
func (m Host) probeProgram(name string, required bool, without string) Check {
	c := Check{Name: name, Status: OK, Required: required}
	var err error
	if c.Detail, err = m.Program(name); err != nil {
		c.Status, c.Detail, c.Hint = Missing, "neither in the folder of gfaas nor on PATH"+without, "run make, or add its folder to PATH"
	}
	return c
}

func (m Host) probeTokens(ctx context.Context) Check {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	status, err := tokend.Dial(m.RunDir).Status(ctx)
	if err != nil {
		return Check{Name: "token daemon", Status: Missing, Detail: "none runs; gfaas run and gfaas up start one"}
	}
	clients := 0
	for _, g := range status.GPUs {
		clients += len(g.Clients)
	}
	return Check{Name: "token daemon", Status: OK,
		Detail: fmt.Sprintf("policy %s, window %v ms, %d client(s)", status.Policy, status.WindowMS, clients)}
}

func (m Host) probeDocker(ctx context.Context) Check {
	engine, err := docker.New(ctx, docker.Config{RunDir: m.RunDir, EngineTimeout: askTime})
	if err != nil {
		return Check{Name: "Docker engine", Status: Missing, Detail: firstLine(err.Error()) + ": functions with an image cannot run", Hint: ports.Hint(err)}
	}
	defer engine.Close()
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	detail := "answers"
	if text, err := engine.Version(ctx); err == nil {
		detail = "version " + text
	}
	return Check{Name: "Docker engine", Status: OK, Detail: detail}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// probeRunDir checks the run directory, or the place where it will be created.
func (m Host) probeRunDir() Check {
	c := Check{Name: "run directory", Required: true, Status: OK, Detail: m.RunDir}
	if err := tokend.CheckRunDir(m.RunDir); err != nil {
		c.Status, c.Detail, c.Hint = Bad, err.Error(), ports.Hint(err)
		return c
	}
	if err := writable(m.RunDir); err != nil {
		c.Status, c.Detail, c.Hint = Bad, err.Error(), "set GFAAS_RUN_DIR to a folder of yours that others cannot write to"
		return c
	}
	if info, err := os.Stat(m.RunDir); err == nil && info.Mode().Perm()&0o077 != 0 {
		c.Status, c.Detail, c.Hint = Bad, m.RunDir+" is accessible to other users", "chmod 700 "+m.RunDir
	}
	return c
}

func (m Host) probeState(ctx context.Context) Check {
	path := m.StatePath
	c := Check{Name: "state file", Required: true, Status: OK, Detail: path}
	state, err := m.State.List(ctx)
	if err == nil {
		err = writable(filepath.Dir(path))
	}
	if err != nil {
		c.Status, c.Detail, c.Hint = Bad, err.Error(), ports.Hint(err)
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

// writable returns an error if the user cannot create files in a folder or, if it does not exist, cannot create
// the folder.
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

// probeLimits checks the system's limits on programs.
func probeLimits() []Check {
	var out []Check
	var shm unix.Statfs_t
	const little = 256 * gpu.MiB
	c := Check{Name: "shared memory", Status: OK}
	if err := unix.Statfs("/dev/shm", &shm); err != nil {
		c.Status, c.Detail, c.Hint = Missing, fmt.Sprintf("/dev/shm: %v", err), "mount a tmpfs there"
	} else {
		free := gpu.Bytes(shm.Bavail * uint64(shm.Bsize))
		c.Detail = fmt.Sprintf("%.0f MiB free in /dev/shm, from which the simulated GPU takes its memory", free.MiB())
		if free < little {
			c.Status, c.Hint = Bad, "if this is a container, start it with --shm-size=1g"
		}
	}
	out = append(out, c)
	var lock unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lock); err == nil {
		detail := "unlimited"
		if lock.Cur != unix.RLIM_INFINITY {
			detail = gpu.Bytes(lock.Cur).String()
		}
		out = append(out, Check{Name: "locked memory", Status: OK, Detail: detail + ", the limit for host memory that CUDA pins"})
	}
	return out
}

// ladder lists the mechanisms that enforce a slice, the best first for each purpose, and marks the chosen ones.
func (h *hardware) ladder() []Rung {
	hook := h.libs.Hook != ""
	onMPS := h.driver && (h.mps.Running() || h.mps.Program != "")
	shares := []Rung{
		{Mechanism: "MIG instance", Found: h.partitioned(), Detail: "a MIG instance is shared like any other GPU"},
		{Mechanism: "MPS static partition", Detail: "reserves SMs; needs driver 610 or later, and this version of gfaas does not use it"},
		{Mechanism: "MPS thread percentage", Found: onMPS, Detail: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE under an MPS daemon, for instances below 100%"},
		{Mechanism: "simulated driver", Found: !h.driver && h.libs.SimDir != "", Detail: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, on simulated multiprocessors"},
		{Mechanism: "time only", Found: hook, Detail: "shares are counted when leases are granted, but not enforced by the GPU"},
	}
	// A MIG device is shared like any other GPU, so a mechanism for SM shares is chosen in addition.
	choose(shares[1:], "SM share")
	shares[0].Purpose = "SM share"
	times := []Rung{{Mechanism: "token leases", Found: hook, Detail: "the preload library delays launches until it has a lease"}}
	choose(times, "GPU time")
	memory := []Rung{
		{Mechanism: "preload library", Found: hook, Detail: "allocations beyond the limit fail with an out-of-memory error"},
	}
	choose(memory, "GPU memory")
	// The pinned limit applies in addition to the preload library.
	memory = append(memory, Rung{Purpose: "GPU memory", Mechanism: "MPS pinned limit", Found: onMPS,
		Detail: fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, set to the limit plus %v for the context", preload.MPSRoom)})
	return slices.Concat(shares, times, memory, h.parking())
}

// choose sets the purpose of the rungs and chooses the first available one.
func choose(rungs []Rung, purpose string) {
	chosen := false
	for i := range rungs {
		rungs[i].Purpose = purpose
		rungs[i].Chosen = rungs[i].Found && !chosen
		chosen = chosen || rungs[i].Found
	}
}

func (h *hardware) partitioned() bool {
	return slices.ContainsFunc(h.devices, func(d nvml.Device) bool { return d.MIG })
}

// checkpointDriver is the first driver version that can move a process's GPU memory to the host:
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CHECKPOINT.html
const checkpointDriver = 570

// parking lists the mechanisms that free the GPU memory of idle instances, the best first.
func (h *hardware) parking() []Rung {
	hook := h.libs.Hook != ""
	detail, ok := h.checkpoints()
	rungs := []Rung{
		{Purpose: "idle memory", Mechanism: "driver checkpoint", Found: ok, Detail: detail},
		{Mechanism: "swap by the preload library", Found: hook,
			Detail: "with gfaas serve --park, or gfaas run --oversubscribe: moves idle memory to the host"},
		{Mechanism: "stop and start", Found: hook, Detail: "an idle instance is stopped, and the next call starts another one"},
	}
	choose(rungs[1:], "idle memory")
	return rungs
}

// checkpoints reports whether the driver's checkpoints are available, with a description of how to use them or
// of the missing dependency.
func (h *hardware) checkpoints() (detail string, ok bool) {
	const how = "with gfaas serve --park=checkpoint: the driver moves all memory of a process to the host and preserves its addresses"
	if !h.ptrace {
		return "needs the capability CAP_SYS_PTRACE, which you do not have here", false
	}
	if !h.driver {
		return how, h.libs.SimDir != ""
	}
	if len(h.devices) == 0 {
		return "the driver's version is unknown", false
	}
	version := h.devices[0].Driver
	text, _, _ := strings.Cut(version, ".")
	if major, err := strconv.Atoi(text); err != nil || major < checkpointDriver {
		return fmt.Sprintf("needs driver %d or later, this is %s", checkpointDriver, version), false
	}
	if h.partitioned() {
		return "not available, because a GPU is partitioned by MIG", false
	}
	return how + "; drivers have lost processes during restore, so it is never chosen automatically", true
}
