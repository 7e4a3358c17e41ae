// Package nvml asks NVIDIA's management library what GPUs this machine has.
// It asks through nvidia-smi, the library's own tool, so that the commands
// need neither cgo nor the driver to be built and to start.
package nvml

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Device is one GPU.
type Device struct {
	Index  int
	Name   string
	UUID   string
	Mem    gpu.Bytes // 0 when the driver does not say
	Driver string    // the driver's version
	MIG    bool      // partitioned: it is used through its MIG instances
}

// Library lists the GPUs; an error that is Unavailable says that there is no
// way to ask. SMI is the real one, Fake one for tests.
type Library interface {
	Devices(ctx context.Context) ([]Device, error)
}

// UnavailableError says that the library cannot be asked.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return fmt.Sprintf("NVML cannot be asked: %v", e.Err) }

func (e *UnavailableError) Unwrap() error { return e.Err }

// Unavailable reports true.
func (e *UnavailableError) Unavailable() bool { return true }

// Hint is what to do about it.
func (e *UnavailableError) Hint() string { return "install the NVIDIA driver, with nvidia-smi on PATH" }

// SMI is the Library behind nvidia-smi.
type SMI struct{ Program string } // empty is nvidia-smi on PATH

// columns are what nvidia-smi is asked for, in the order of its answer.
const columns = "index,name,uuid,memory.total,driver_version,mig.mode.current"

// Devices asks nvidia-smi, for at most ten seconds.
func (s SMI) Devices(ctx context.Context) ([]Device, error) {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	program := s.Program
	if program == "" {
		program = "nvidia-smi"
	}
	cmd := exec.CommandContext(ctx, program, "--query-gpu="+columns, "--format=csv,noheader,nounits")
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		text := strings.TrimSpace(string(out) + said.String())
		if text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, &UnavailableError{err}
	}
	return Parse(bytes.NewReader(out))
}

// Parse reads nvidia-smi's answer: CSV without a header, one line a device.
func Parse(r io.Reader) ([]Device, error) {
	in := csv.NewReader(r)
	in.TrimLeadingSpace = true
	in.FieldsPerRecord = strings.Count(columns, ",") + 1
	var out []Device
	for {
		cells, err := in.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("answer of nvidia-smi: %w", err)
		}
		d := Device{Name: cells[1], UUID: cells[2], Driver: cells[4], MIG: cells[5] == "Enabled"}
		if d.Index, err = strconv.Atoi(cells[0]); err != nil || d.Index < 0 {
			return nil, fmt.Errorf("answer of nvidia-smi: device %q is not a number", cells[0])
		}
		// Devices that share the host's memory answer [N/A].
		if mib, err := strconv.ParseUint(cells[3], 10, 40); err == nil {
			d.Mem = gpu.Bytes(mib) * gpu.MiB
		}
		out = append(out, d)
	}
}

// Fake is a Library that answers what it is told to.
type Fake struct {
	List []Device
	Err  error
}

// Devices returns List and Err.
func (f Fake) Devices(context.Context) ([]Device, error) { return f.List, f.Err }
