package dispatch

import (
	"cmp"
	"log/slog"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
)

// The slice of an own instance comes from two sources: the keys sm, quota and gpu_mem of the
// function's file and, for missing keys, a row of the profile. A row with another
// SM share or quota than the file is never used. The slices of instances of a plan come
// from the plan.

// chooser derives from a function's definition, the rows of its profile, the GPUs and the gateway's
// configuration what the function's instances can be. It refers to them, so it may only be used while
// Dispatcher.mu is held.
type chooser struct {
	fn   *function.Function
	rows []profile.Row // all rows of the function
	gpus []GPU         // by number
	cfg  *Config
}

// chooser returns the chooser of the configurations of the function's instances. Locked.
func (f *Function) chooser() chooser {
	return chooser{&f.definition, f.d.settings.Profile[f.name], f.d.GPUs.list, &f.d.cfg}
}

// permitted returns the rows with the SM share and the quota of the function's file, if it
// has these keys.
func (c chooser) permitted(rows []profile.Row) []profile.Row {
	return slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool {
		return c.fn.SM > 0 && r.SMPct != c.fn.SM || c.fn.Quota.Request > 0 && r.Quota != c.fn.Quota.Request
	})
}

// meetingSLO returns the permitted rows that have a throughput and meet the function's latency
// objective.
func (c chooser) meetingSLO(rows []profile.Row) []profile.Row {
	return scale.Meeting(c.permitted(rows), c.fn.SLO)
}

// rowsOn returns the rows for a GPU, without those whose batches reach no instance.
func (c chooser) rowsOn(number int) []profile.Row {
	return scale.Reachable(profile.On(c.rows, c.gpus[number].Model), c.fn.MaxBatch())
}

// config returns the configuration of instances on a GPU, which meets the function's latency
// objective. For a scaler with uniform instances, it is the scaler's unit; otherwise it is
// the most efficient row. config returns nil if the profile has no such row, or if the function has neither
// an objective nor an autoscaler.
func (c chooser) config(number int) *scale.Instance {
	rows := c.rowsOn(number)
	kind, scales := scale.KindOf(c.cfg.Scaler)
	if kind.Uniform {
		unit, err := scale.Unit(c.permitted(rows), c.fn.SLO)
		if err != nil {
			return nil
		}
		for _, r := range rows {
			if c.fn.Quota.Limit > unit.Limit.Quota && r.Quota == c.fn.Quota.Limit && r.SMPct == unit.Request.SMPct && r.Batch == unit.Request.Batch && r.GPU == unit.Request.GPU {
				unit.Limit = r
			}
		}
		if !kind.Rises {
			unit.Limit = unit.Request
		}
		return &unit
	}
	able := c.meetingSLO(rows)
	if len(able) == 0 || c.fn.SLO == 0 && !scales {
		return nil
	}
	best := scale.MostEfficient(able)
	return &scale.Instance{Request: best, Limit: best}
}

// candidates returns the configurations from which a scaler may choose: those for the GPUs' models
// that meet the function's latency objective.
func (c chooser) candidates() (rows []profile.Row) {
	seen := map[profile.Row]bool{}
	for number := range c.gpus {
		for _, r := range c.meetingSLO(c.rowsOn(number)) {
			if !seen[r] {
				rows = append(rows, r)
			}
			seen[r] = true
		}
	}
	return rows
}

// unit returns the configuration by which the function is scaled. If the GPUs are of several
// models, it is the configuration with the lowest throughput. unit returns nil if the profile
// has no configuration for any GPU.
func (c chooser) unit() (unit *scale.Instance) {
	for number := range c.gpus {
		if row := c.config(number); row != nil && (unit == nil || row.Request.ThroughputRPS < unit.Request.ThroughputRPS) {
			unit = row
		}
	}
	return unit
}

// slice returns the slice of a GPU for a new instance: that of the function's file, then of
// the profile's row for the GPU's model and, without these, all SMs and an equal share of
// the time. known reports whether the file or a row states an SM share or a quota.
func (c chooser) slice(number int) (s gpu.Slice, known bool) {
	row := c.config(number)
	return c.sliceOf(row), row != nil || c.statesSlice()
}

// statesSlice reports whether the function's file states an SM share or a quota.
func (c chooser) statesSlice() bool { return c.fn.SM > 0 || c.fn.Quota.Request > 0 }

// sliceOf returns the slice of an instance with a configuration, which may be nil.
func (c chooser) sliceOf(config *scale.Instance) gpu.Slice {
	s := gpu.Slice{SMPct: 100, QuotaRequest: 1 / float64(max(c.cfg.Concurrency, 1)), QuotaLimit: 1}
	if config != nil {
		smLimit, quotaLimit, _ := config.Request.Limits()
		s.SMPct, s.QuotaRequest, s.QuotaLimit = config.Request.SMPct, config.Request.Quota, max(config.Limit.Quota, quotaLimit)
		if smLimit > s.SMPct {
			s.SMLimitPct = smLimit
		}
	}
	return sliceBy(*c.fn, s)
}

// sliceBy returns the slice with the values of the function's file in place of its own.
func sliceBy(fn function.Function, s gpu.Slice) gpu.Slice {
	if fn.SM > 0 {
		s.SMPct, s.SMLimitPct = fn.SM, 0
	}
	if fn.Quota.Request > 0 {
		s.QuotaRequest, s.QuotaLimit = fn.Quota.Request, fn.Quota.Limit
	}
	s.Mem = fn.GPUMem
	return s
}

// nextConfig returns the configuration of an instance that is about to start on a GPU: one
// that the autoscaler has requested or, if there is none for the GPU's model, the usual one.
// It returns nil if the profile has none. Locked.
func (f *Function) nextConfig(number int) *scale.Instance {
	if f.scaling != nil && f.scaling.chooses {
		rows := f.chooser().rowsOn(number)
		if like, ok := f.scaling.removeRequested(func(r profile.Row) bool { return slices.Contains(rows, r) }); ok {
			return &like
		}
	}
	return f.chooser().config(number)
}

// configOf returns the configuration of an instance that was found running: the profile's
// row with the slice of the instance or, if there is none, the throughput that the plan
// states. Without either, it is unit, the configuration by which the function is scaled.
func (c chooser) configOf(r *instance.Record, number int, unit scale.Instance) scale.Instance {
	row := profile.Row{Function: c.fn.Name, Config: profile.Config{SMPct: r.Slice.SMPct, Quota: r.Slice.QuotaRequest, Batch: 1}, ThroughputRPS: planRate(c.fn, r)}
	rows := c.rowsOn(number)
	at := slices.IndexFunc(rows, func(p profile.Row) bool {
		return p.SMPct == row.SMPct && p.Quota == row.Quota && p.ThroughputRPS > 0
	})
	switch {
	case at >= 0:
		row = rows[at]
	case row.ThroughputRPS <= 0:
		return unit
	}
	return scale.Instance{Request: row, Limit: row}
}

// area returns the share of a GPU that a slice requests.
func area(s gpu.Slice) float64 { return min(s.SMPct/100*s.QuotaRequest, 1) }

// reportSlice reports the slice of an own instance to the policy if the autoscaler chooses
// it. Locked.
func (i *Instance) reportSlice() {
	if s := i.function.scaling; i.own && s != nil && s.chooses {
		i.d.policy.step(&queue.Sliced{Function: i.function.number, Instance: i.id, Slice: area(i.record.Slice)})
	}
}

// newAutoscaling returns an autoscaler for the function. It returns nil if Config.Scaler names none, or if the
// profile has no configuration for any GPU.
func (c chooser) newAutoscaling(log *slog.Logger) *autoscaling {
	unit := c.unit()
	kind, scales := scale.KindOf(c.cfg.Scaler)
	if unit == nil || !scales {
		return nil
	}
	o := *cmp.Or(c.cfg.Scaling, new(scale.DefaultOptions()))
	o.Bounds = bounds(*c.fn)
	load, err := scale.NewEstimator(cmp.Or(c.cfg.Estimator, "last"), o.Estimate)
	if err != nil {
		log.Error("cannot estimate the load, so each second counts by itself", "function", c.fn.Name, "err", err)
		load = scale.Last{}
	}
	rows := c.candidates()
	made := kind.New(scale.Setup{Rows: rows, Unit: *unit, Load: load, Options: o})
	return &autoscaling{scaler: made, rows: rows, chooses: !kind.Uniform, known: map[residency.ID]bool{}}
}

// rescale begins to scale by the rows of another profile. Locked.
func (f *Function) rescale() {
	f.profileSlope = f.chooser().batchSlope()
	if unit := f.chooser().unit(); unit != nil {
		f.unit = *unit
	}
	if f.removed || f.scaling != nil && slices.Equal(f.scaling.rows, f.chooser().candidates()) {
		return
	}
	old := f.scaling
	if f.scaling = f.chooser().newAutoscaling(f.d.log); old != nil && f.scaling != nil {
		f.scaling.calls, f.scaling.wanted = old.calls, old.wanted
	}
	f.respec()
}
