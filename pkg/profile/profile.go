// Package profile reads and writes profiles: what one instance of a function
// sustains under each configuration (docs/files.md).
package profile

// Config is one point of the profiling grid.
type Config struct {
	SMPct float64 // percent of the streaming multiprocessors
	Quota float64 // fraction of each window
	Batch int     // requests in one invocation: throughput counts requests, latency is of the invocation
}

// Row is one configuration of one function and what was measured there. An
// optional column that the file does not have reads as zero (Batch as 1).
type Row struct {
	Function string
	GPU      string // model the row was measured on; empty if not given
	Config
	ThroughputRPS  float64 // requests a second that one instance sustains
	P50MS          float64
	P95MS          float64
	P99MS          float64
	GPUMemMiB      float64
	ModelMemMiB    float64 // the part of GPUMemMiB that sharing saves
	GPUUtilPct     float64
	SMOccupancyPct float64
	Errors         int64
	Samples        int64
	TrialS         float64
	WarmMS         float64
	ColdMS         float64
	LoadMS         float64

	// Half the width of the 95% confidence intervals of ThroughputRPS and
	// P95MS; 0 is not known. Two measurements a and b of the same figure
	// differ by more than noise when |a-b| > sqrt(ci_a² + ci_b²); where either
	// is not known, only a tolerance can tell.
	ThroughputCIRPS float64
	P95CIMS         float64
	// Unstable is 1 when the figures should not be relied on: they kept
	// changing, or are known less well than was asked for.
	Unstable int64

	PowerW float64 // of the whole GPU, mean over the trial
	Line   int     // line in the file it came from
}

// Efficacy is the throughput of a whole GPU filled with this configuration,
// in requests a second: throughput / (SM share × quota). It is RPR of
// FaST-GShare (section 3.4.1) and TE of Dilu (section 3.2) up to a constant.
func (r Row) Efficacy() float64 { return r.ThroughputRPS / (r.SMPct / 100 * r.Quota) }
