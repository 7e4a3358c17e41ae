package model_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/cuda"
	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/daemon/model"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
	"github.com/gfaas/gfaas/pkg/safetensors"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// BenchmarkSpeed compares the daemon's throughput when it puts and loads a model with that of a bare loop, which
// reads the file into pinned memory, 8 MiB at a time, and copies it to the GPU. It also measures the time of a get of
// a loaded model. It uses the simulated GPU, or GPU 0 with GFAAS_MODEL_GPU=0. GFAAS_MODEL_MIB sets the size of
// the model. The file is in the page cache. The benchmark runs the driver in a child process, because the driver reads
// the environment only once.
func BenchmarkSpeed(b *testing.B) {
	if os.Getenv("GFAAS_MODEL_SPEED") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkSpeed$", "-test.benchtime=1x")
		cmd.Env = append(os.Environ(), "GFAAS_MODEL_SPEED=1", "GFAAS_SIM_DIR="+b.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.Fatalf("measure in another process: %v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if figures, ok := strings.CutPrefix(line, "speed: "); ok {
				b.Log(strings.TrimSpace(figures))
				reportMetrics(b, figures)
			}
		}
		return
	}
	library, device := "../../../build/lib/sim/"+cuda.Library, gpu.Device{Simulated: true}
	if dir := os.Getenv("GFAAS_LIB_DIR"); dir != "" {
		library = filepath.Join(dir, "sim", cuda.Library)
	}
	if name := os.Getenv("GFAAS_MODEL_GPU"); name != "" {
		var err error
		if device, err = gpu.ParseDevice(name); err != nil {
			b.Fatal(err)
		}
	}
	if !device.Simulated {
		library = cuda.Library
	}
	if mib, err := strconv.Atoi(os.Getenv("GFAAS_MODEL_MIB")); err == nil {
		size = gpu.Bytes(mib) * gpu.MiB
	}
	g, err := cuda.Open(library, device)
	if err != nil {
		b.Fatal(err)
	}
	measureSpeed(b, g)
}

// reportMetrics reports figures of the form NAME=VALUE as metrics of the benchmark.
func reportMetrics(b *testing.B, figures string) {
	for _, field := range strings.Fields(figures) {
		var value float64
		name, text, ok := strings.Cut(field, "=")
		if _, err := fmt.Sscan(text, &value); ok && err == nil {
			b.ReportMetric(value, name)
		}
	}
}

// size is the size of the model.
var size = 512 * gpu.MiB

// repetitions is the number of measurements of each operation. Their median is reported.
const repetitions = 5

// measureSpeed runs a daemon on a GPU, measures it and prints the figures for the parent process.
func measureSpeed(b *testing.B, g device.Device) {
	dir := b.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	text, err := safetensors.AppendHeader(nil, []safetensors.Tensor{{Name: "w", DType: "U8", Shape: []int64{int64(size)}, Bytes: int64(size)}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	_, err = file.Write(text)
	_, copyErr := io.CopyN(file, rand.Reader, int64(size))
	if err := errors.Join(err, copyErr, file.Close()); err != nil {
		b.Fatal(err)
	}
	d, err := model.Open(model.Config{
		Socket: filepath.Join(dir, "model.sock"), Capacity: 2 * size, GPU: g, Catalogue: &catalogue{records: map[string]wire.Record{}},
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Serve(ctx) }()
	c, err := modeld.Dial(ctx, filepath.Join(dir, "model.sock"))
	if err != nil {
		b.Fatal(err)
	}
	call := func(r wire.Request, files ...*os.File) {
		_, got, err := c.Call(ctx, r, files...)
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range got {
			_ = f.Close()
		}
	}
	source, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	var bare, puts, loads, gets []time.Duration
	for range repetitions {
		bare = append(bare, duration(func() { runBareLoop(b, g, source) }))
		puts = append(puts, duration(func() { call(wire.Request{Op: wire.OpPut, Name: "m", Source: path}, source) }))
		// Storing a model as large as the capacity evicts m, so that the next get loads m again.
		manifest := filepath.Join(dir, "manifest")
		if err := os.WriteFile(manifest, []byte(`{"tensors":{}}`), 0o600); err != nil {
			b.Fatal(err)
		}
		f, err := os.Open(manifest)
		if err != nil {
			b.Fatal(err)
		}
		call(wire.Request{Op: wire.OpStore, Name: "other", Size: int64(2 * size)}, f)
		_ = f.Close()
		_ = c.Close() // cancels the store, which has no content yet
		if c, err = modeld.Dial(ctx, filepath.Join(dir, "model.sock")); err != nil {
			b.Fatal(err)
		}
		loads = append(loads, duration(func() { call(wire.Request{Op: wire.OpGet, Name: "m", TimeoutMS: 10_000}) }))
		gets = append(gets, duration(func() {
			for range 100 {
				call(wire.Request{Op: wire.OpGet, Name: "m"})
			}
		})/100)
		for range 101 {
			call(wire.Request{Op: wire.OpRelease, Name: "m"})
		}
		call(wire.Request{Op: wire.OpRemove, Name: "m"})
	}
	fmt.Printf("speed: bare-GB/s=%.2f put/bare=%.2f load/bare=%.2f get-us=%.1f\n",
		float64(size)/median(bare).Seconds()/1e9, median(bare).Seconds()/median(puts).Seconds(), median(bare).Seconds()/median(loads).Seconds(),
		float64(median(gets))/1e3)
	_ = c.Close()
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

// duration returns the time that do takes.
func duration(do func()) time.Duration {
	started := time.Now()
	do()
	return time.Since(started)
}

// median returns the median of durations, and sorts them.
func median(durations []time.Duration) time.Duration {
	slices.Sort(durations)
	return durations[len(durations)/2]
}

// runBareLoop reads a file into pinned memory, 8 MiB at a time, and copies each piece to the GPU.
func runBareLoop(b *testing.B, g device.Device, f *os.File) {
	m, err := g.Alloc(size + 8*gpu.MiB)
	if err != nil {
		b.Fatal(err)
	}
	s, err := g.Stage(8 * gpu.MiB)
	if err != nil {
		b.Fatal(err)
	}
	for offset := int64(0); ; {
		n, err := f.ReadAt(s.Buffer(), offset)
		if n == 0 {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
		if err := errors.Join(s.Up(m, gpu.Bytes(offset), n), s.Wait()); err != nil {
			b.Fatal(err)
		}
		offset += int64(n)
	}
	if err := errors.Join(s.Free(), m.Free()); err != nil {
		b.Fatal(err)
	}
}
