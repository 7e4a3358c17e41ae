// Package wire is what the daemons say to the tools and to the preload
// library: the control documents, the client messages with their codec and
// limits, and the C header generated from them.
package wire

import (
	"fmt"
	"regexp"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Registration asks the token daemon to know an instance. It is the body of
// POST /v1/instances on the control socket.
type Registration struct {
	Instance     string    `json:"instance"`
	Function     string    `json:"function"`
	Secret       string    `json:"secret"` // what the instance's processes must show in their hello
	GPU          string    `json:"gpu"`    // "0", "1", … or "sim", "sim:1", …
	SMPct        float64   `json:"sm_pct"`
	QuotaRequest float64   `json:"quota_request"`
	QuotaLimit   float64   `json:"quota_limit"`
	MemLimit     gpu.Bytes `json:"mem_limit"`           // 0 is no limit
	OwnerPID     int       `json:"owner_pid,omitempty"` // the instance goes when this process and all its own are gone
}

// Slice is the part of the GPU the registration asks for.
func (r Registration) Slice() gpu.Slice {
	return gpu.Slice{SMPct: r.SMPct, QuotaRequest: r.QuotaRequest, QuotaLimit: r.QuotaLimit, Mem: r.MemLimit}
}

// instanceID is what an instance may be called: it is also a file's name.
var instanceID = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}$`)

// ValidInstance says whether an instance may be called so: at most 63 of the
// characters [A-Za-z0-9._-], the first not a dot.
func ValidInstance(id string) bool { return instanceID.MatchString(id) }

// Validate says what is wrong with the registration, if anything.
func (r Registration) Validate() error {
	if !ValidInstance(r.Instance) {
		return fmt.Errorf("instance %q: expected at most 63 of the characters A-Z a-z 0-9 . _ -, the first not a dot", r.Instance)
	}
	if r.Secret == "" {
		return fmt.Errorf("instance %s: secret is empty", r.Instance)
	}
	if _, err := MakeName(r.Secret); err != nil {
		return fmt.Errorf("instance %s: the secret is longer than %d bytes or has a NUL", r.Instance, len(Name{})-1)
	}
	if _, _, err := gpu.ParseName(r.GPU); err != nil {
		return fmt.Errorf("instance %s: gpu: %w", r.Instance, err)
	}
	if err := r.Slice().Validate(); err != nil {
		return fmt.Errorf("instance %s: %w", r.Instance, err)
	}
	if r.OwnerPID < 0 {
		return fmt.Errorf("instance %s: owner_pid %d is negative", r.Instance, r.OwnerPID)
	}
	return nil
}

// Status is what gfaas-tokend status prints.
type Status struct {
	WindowMS float64     `json:"window_ms"`
	Policy   string      `json:"policy"`
	GPUs     []GPUStatus `json:"gpus"`
}

// GPUStatus is one GPU of a Status.
type GPUStatus struct {
	GPU          string         `json:"gpu"`
	SMRunningPct float64        `json:"sm_running_pct"` // sum of the SM shares that hold a token now
	Clients      []ClientStatus `json:"clients"`
}

// ClientStatus is one process of an instance, or an instance that has no
// process on the GPU yet (PID 0, state "absent").
type ClientStatus struct {
	Instance     string  `json:"instance"`
	Function     string  `json:"function"`
	PID          int     `json:"pid"`
	SMPct        float64 `json:"sm_pct"`
	QuotaRequest float64 `json:"quota_request"`
	QuotaLimit   float64 `json:"quota_limit"`
	Used         float64 `json:"used"` // share of the last full window, 0 to 1
	DebtMS       float64 `json:"debt_ms"`
	State        string  `json:"state"` // absent, idle, waiting, running or draining
	MemUsedMiB   float64 `json:"mem_used_mib"`
	MemLimitMiB  float64 `json:"mem_limit_mib"`
	Launches     uint64  `json:"launches"`
	BlockedMS    float64 `json:"blocked_ms"`
}

// Problem is the body of a control answer that is not 2xx.
type Problem struct {
	Message string `json:"message"`
}
