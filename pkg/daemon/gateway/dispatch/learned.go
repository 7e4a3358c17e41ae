package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/profile"
)

// learned is the content of Config.LearnedFile: the costs that gateways have measured.
type learned struct {
	Version   int                     `json:"version"`
	Functions map[string]learnedCosts `json:"functions"`
}

const learnedVersion = 1

// learnedCosts are the costs of a function.
type learnedCosts struct {
	Definition string `json:"definition"` // costKey of the function
	learnedDurations
	BatchSlope *float64                    `json:"batch_slope,omitempty"` // of a line through the durations of calls in batches
	MemBytes   int64                       `json:"mem_bytes"`             // the most that an instance used; 0 if it is unknown
	ByModel    map[string]learnedDurations `json:"gpu_models,omitempty"`
}

// learnedDurations holds mean durations, each with the number of its values.
type learnedDurations struct {
	WarmMS   float64 `json:"warm_ms"`
	Calls    int     `json:"calls"`
	Others   float64 `json:"others,omitempty"` // mean number of further inferences that executed with a call
	StartMS  float64 `json:"start_ms"`
	Starts   int     `json:"starts"`
	LoadMS   float64 `json:"load_ms"`
	Loads    int     `json:"loads"`
	SharedMS float64 `json:"shared_start_ms"` // starts on a GPU that had the weights
	Shared   int     `json:"shared_starts"`
}

func (l *learnedDurations) means() durations {
	d := durations{warm: meanOf(l.WarmMS, l.Calls), start: meanOf(l.StartMS, l.Starts), load: meanOf(l.LoadMS, l.Loads), shared: meanOf(l.SharedMS, l.Shared)}
	if l.Others > 0 && l.Others < maxOthers && d.warm.n > 0 {
		d.line = line{l.Others, l.Others * l.Others, l.Others * float64(d.warm.value)}
	}
	return d
}

func (d *durations) learned() learnedDurations {
	return learnedDurations{WarmMS: d.warm.ms(), Calls: d.warm.n, Others: d.line.others, StartMS: d.start.ms(), Starts: d.start.n, LoadMS: d.load.ms(), Loads: d.load.n, SharedMS: d.shared.ms(), Shared: d.shared.n}
}

// maxOthers is the limit on Others in a file, which may have been edited.
const maxOthers = 1 << 20

// costKey identifies what the costs of a function depend on: how its instances are started, and the
// models of the GPUs.
func (g *GPUs) costKey(fn function.Function) string {
	key := []string{launch.Intended(fn, instance.Placement{}).Definition}
	for _, gpu := range g.list {
		key = append(key, gpu.Model)
	}
	slices.Sort(key[1:])
	return strings.Join(slices.Compact(key), "/")
}

// readLearned returns the costs in a file that an earlier gateway wrote. It returns nil if the path is empty or
// there is no file. If the file cannot be used, it also logs a warning.
func readLearned(path string, log *slog.Logger) map[string]learnedCosts {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var file learned
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err == nil && file.Version != learnedVersion {
		err = fmt.Errorf("got version %d, want %d", file.Version, learnedVersion)
	}
	if err != nil {
		log.Warn("cannot read the costs that earlier gateways measured: they are measured again", "file", path, "err", err)
		return nil
	}
	return file.Functions
}

// recall sets the costs of a new version of the function to those that an earlier gateway measured of the
// same version. Locked.
func (f *Function) recall() {
	known, ok := f.d.learned[f.name]
	if !ok || known.Definition != f.d.GPUs.costKey(f.definition) {
		return
	}
	f.costs = costs{durations: known.means(), mem: known.MemBytes, measured: known.MemBytes > 0}
	if s := known.BatchSlope; s != nil && *s >= 0 && *s <= profile.MaxBatchSlope {
		f.costs.slope, f.costs.fitted = *s, true
	}
	for i, model := range f.d.GPUs.models {
		if on, measured := known.ByModel[model]; measured {
			f.class(int32(i) + 1).durations = on.means()
		}
	}
}

// KeepLearned writes the costs of the functions to Config.LearnedFile every 10 s, if they have changed, and
// when ctx ends.
func (d *Dispatcher) KeepLearned(ctx context.Context) {
	if d.cfg.LearnedFile == "" {
		return
	}
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	var written []byte
	failed := false
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-tick.C:
		}
		if !d.Known.IsSet() { // functions are missing, whose costs would be lost
			continue
		}
		text, err := json.MarshalIndent(d.learnedNow(), "", "  ")
		if err == nil && bytes.Equal(text, written) {
			continue
		}
		if err == nil {
			err = renameio.WriteFile(d.cfg.LearnedFile, append(text, '\n'), 0o600)
		}
		if err == nil {
			written = text
		} else if !failed {
			d.log.Warn("cannot write the measured costs: the next gateway has to measure them again", "file", d.cfg.LearnedFile, "err", err)
		}
		failed = err != nil
	}
}

// learnedNow returns the measured costs of all functions.
func (d *Dispatcher) learnedNow() learned {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := learned{learnedVersion, map[string]learnedCosts{}}
	for _, f := range d.functions {
		c := &f.costs
		if f.removed || c.warm.n+c.start.n+c.load.n+c.shared.n == 0 && !c.measured {
			continue
		}
		known := learnedCosts{Definition: d.GPUs.costKey(f.definition), learnedDurations: c.learned()}
		for class, on := range f.byClass {
			if known.ByModel == nil {
				known.ByModel = map[string]learnedDurations{}
			}
			known.ByModel[d.GPUs.models[class-1]] = on.learned()
		}
		if c.fitted {
			known.BatchSlope = new(c.slope)
		}
		if c.measured {
			known.MemBytes = c.mem
		}
		all.Functions[f.name] = known
	}
	return all
}

// meanOf returns a mean of n values. It returns a mean of no values if the mean is not a possible
// duration, as in a file that was edited.
func meanOf(ms float64, n int) mean {
	const longest = 24 * time.Hour
	if ms <= 0 || ms > float64(longest/time.Millisecond) || n <= 0 {
		return mean{}
	}
	return mean{value: time.Duration(ms * float64(time.Millisecond)), n: min(n, few)}
}

func (m mean) ms() float64 { return float64(m.value) / float64(time.Millisecond) }
