package kgraph

import (
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// MemorySize is close to the memory that a request really takes, whatever it consists of.
func TestMemorySize(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	join := func(n int, each func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = each(i)
		}
		return strings.Join(all, ",")
	}
	const one = `{"module":"m","name":"k","grid":[1,1,1],"block":[1,1,1],"args":[]}`
	for what, text := range map[string]string{
		"PTX":     fmt.Sprintf(`{"version":1,"modules":{"m":{"ptx":%q}},"kernels":[%s]}`, ".version 7.0\n"+strings.Repeat(" ", 4<<20), one),
		"modules": fmt.Sprintf(`{"version":1,"modules":{%s,"m":{"builtin":"blas"}},"kernels":[%s]}`, join(MaxModules-1, func(i int) string { return fmt.Sprintf(`"m%d":{"ptx":"x"}`, i) }), one),
		"data": fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},"buffers":{%s},"kernels":[%s]}`,
			join(8, func(i int) string {
				return fmt.Sprintf(`"b%d":{"kind":"input","data":%q}`, i, base64.StdEncoding.EncodeToString(make([]byte, MaxInline)))
			}), one),
		"buffers": fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},"buffers":{%s},"kernels":[%s]}`,
			join(MaxBuffers, func(i int) string { return fmt.Sprintf(`"b%d":{"kind":"output","key":"k%d","size":1}`, i, i) }), one),
		"arguments": fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},"kernels":[%s]}`,
			join(MaxKernels, func(int) string {
				return fmt.Sprintf(`{"module":"m","name":"k","args":[%s]}`, join(MaxArgs, func(int) string { return `{"i32":1}` }))
			})),
	} {
		Parse([]byte(text)) // allocations that occur only once
		before := heap()
		r, problems := Parse([]byte(text))
		took := heap() - before
		if len(problems) > 0 {
			t.Fatalf("parse the request with %s: %v", what, problems[0])
		}
		if size := r.MemorySize(); float64(size) < 0.8*float64(took) || float64(size) > 1.5*float64(took)+1<<16 {
			t.Errorf("MemorySize of a request with %s, %d bytes of text: got %d, want 0.8 to 1.5 times the %d bytes that it takes", what, len(text), size, took)
		}
		runtime.KeepAlive(r)
		runtime.KeepAlive(text)
	}
}
