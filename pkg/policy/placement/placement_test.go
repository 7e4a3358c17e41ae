package placement

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/transcript"
)

// TestTranscripts replays testdata/*.txt. The indented line after an event is the decision of the
// placer.
//
//	dilu 2 16                     a placement, GPUs, GiB of each
//	place a-0 24 0.4:0.8 3        instance 0 of function a: SM share in percent, quota, GiB
//	place a-0 24:48 0.4 3         the same, with a limit of the SM share
//	place a-0 24 0.4 3 on 2 GPUs  an instance that spans two GPUs
//	put b-0 50 0.5 3 at 1         an instance that another component has placed on GPU 1
//	stop a-0
//	busy 1 12                     other programs use 12 GiB of GPU 1
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", func(text string) (string, error) {
		h := &host{}
		return transcript.Lines(text, func(line string) ([]string, error) { return h.line(strings.Fields(line)) })
	})
}

// host is a machine with a placer. It knows the memory of its instances.
type host struct {
	placer    Placer
	mem       gpu.Bytes
	busy      []gpu.Bytes
	instances map[string]Request
	at        map[string][]int
}

func (h *host) line(words []string) (decision []string, err error) {
	switch words[0] {
	case "place", "put":
		return h.start(words)
	case "stop":
		h.placer.Remove(words[1])
		delete(h.at, words[1])
		return nil, nil
	case "busy":
		g, err := strconv.Atoi(words[1])
		if err == nil {
			h.busy[g], err = gib(words[2])
		}
		return nil, err
	}
	kind, ok := KindOf(words[0])
	if !ok {
		return nil, fmt.Errorf("no placement %q", words[0])
	}
	n, err := strconv.Atoi(words[1])
	if err != nil {
		return nil, err
	}
	if h.mem, err = gib(words[2]); err != nil {
		return nil, err
	}
	gpus := make([]GPU, n)
	for i := range gpus {
		gpus[i].Mem = h.mem
	}
	h.placer, h.busy, h.instances, h.at = kind.New(gpus, DefaultOptions()), make([]gpu.Bytes, n), map[string]Request{}, map[string][]int{}
	return nil, nil
}

func (h *host) start(words []string) ([]string, error) {
	r := Request{ID: words[1], GPUs: 1}
	r.Function, _, _ = strings.Cut(r.ID, "-")
	var err error
	request, limit, limited := strings.Cut(words[2], ":")
	if r.Slice.SMPct, err = strconv.ParseFloat(request, 64); err == nil && limited {
		r.Slice.SMLimitPct, err = strconv.ParseFloat(limit, 64)
	}
	if err != nil {
		return nil, err
	}
	if r.Slice.QuotaRequest, r.Slice.QuotaLimit, err = gpu.ParseQuota(words[3]); err != nil {
		return nil, err
	}
	if r.Mem, err = gib(words[4]); err != nil {
		return nil, err
	}
	number := 0
	if len(words) > 6 {
		if number, err = strconv.Atoi(words[6]); err != nil {
			return nil, err
		}
	}
	h.instances[r.ID] = r
	if words[0] == "put" {
		h.at[r.ID] = []int{number}
		h.placer.Put(r, h.at[r.ID])
		return nil, nil
	}
	r.GPUs = max(number, 1)
	gpus, why := h.placer.Place(r, h.free(), func(int) bool { return false })
	if len(gpus) == 0 {
		return []string{"nowhere: " + why.String()}, nil
	}
	h.at[r.ID] = gpus
	return []string{fmt.Sprintf("GPU %v: %v", strings.Trim(fmt.Sprint(gpus), "[]"), why)}, nil
}

func (h *host) free() (free []gpu.Bytes) {
	for g := range h.busy {
		left := h.mem - h.busy[g]
		for id, gpus := range h.at {
			if slices.Contains(gpus, g) {
				left -= h.instances[id].Mem
			}
		}
		free = append(free, left)
	}
	return free
}

func gib(text string) (gpu.Bytes, error) {
	v, err := strconv.ParseFloat(text, 64)
	return gpu.FromMiB(v * 1024), err
}

func TestReasons(t *testing.T) {
	if err := Reasons.Valid(); err != nil {
		t.Errorf("the table of reasons: %v", err)
	}
}
