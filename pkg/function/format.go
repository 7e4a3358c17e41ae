package function

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// document is a function as the file has it; what is at its default is left
// out.
type document struct {
	Name      string            `yaml:"name"`
	Image     string            `yaml:"image,omitempty"`
	Command   []string          `yaml:"command,omitempty,flow"`
	Env       map[string]string `yaml:"env,omitempty"`
	Port      int               `yaml:"port,omitempty"`
	Contract  string            `yaml:"contract,omitempty"`
	Kind      string            `yaml:"kind,omitempty"`
	Request   string            `yaml:"request,omitempty"`
	SLO       string            `yaml:"slo,omitempty"`
	GPUMem    string            `yaml:"gpu_mem,omitempty"`
	GPUs      int               `yaml:"gpus,omitempty"`
	Weight    float64           `yaml:"weight,omitempty"`
	Tenant    string            `yaml:"tenant,omitempty"`
	Model     *modelDocument    `yaml:"model,omitempty,flow"`
	Scale     *scaleDocument    `yaml:"scale,omitempty,flow"`
	Inflight  int               `yaml:"inflight,omitempty"`
	Timeout   string            `yaml:"timeout,omitempty"`
	Queue     int               `yaml:"queue,omitempty"`
	Restart   string            `yaml:"restart,omitempty"`
	Limits    *limitsDocument   `yaml:"limits,omitempty,flow"`
	ReadOnly  bool              `yaml:"read_only,omitempty"`
	Unmanaged string            `yaml:"unmanaged,omitempty"`
	Probes    *probesDocument   `yaml:"probes,omitempty,flow"`
	WebSocket string            `yaml:"websocket,omitempty"`
	Labels    map[string]string `yaml:"labels,omitempty"`
	Notes     map[string]string `yaml:"annotations,omitempty"`
}

type limitsDocument struct {
	Memory string  `yaml:"memory,omitempty"`
	Pids   int     `yaml:"pids,omitempty"`
	CPUs   float64 `yaml:"cpus,omitempty"`
}

// probesDocument has pointers because an empty list is not the same as none.
type probesDocument struct {
	Paths   *[]string `yaml:"paths,omitempty,flow"`
	Methods *[]string `yaml:"methods,omitempty,flow"`
}

type scaleDocument struct {
	Min  int    `yaml:"min"`
	Max  int    `yaml:"max"`
	Idle string `yaml:"idle"`
}

type modelDocument struct {
	Name string `yaml:"name"`
	File string `yaml:"file,omitempty"`
	Size string `yaml:"size,omitempty"`
}

// Format writes functions as documents that Parse reads back as the same
// functions, Dir apart.
func Format(functions []Function) ([]byte, error) {
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	for _, fn := range functions {
		if err := enc.Encode(toDocument(fn)); err != nil {
			return nil, fmt.Errorf("format function %s: %w", fn.Name, err)
		}
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("format functions: %w", err)
	}
	return buf.Bytes(), nil
}

func toDocument(fn Function) document {
	d := document{
		Name: fn.Name, Image: fn.Image, Command: fn.Command, Env: fn.Env,
		Port: unless(fn.Port, DefaultPort), Contract: unless(fn.Contract, DefaultContract),
		Kind: unless(fn.Kind, DefaultKind), Request: fn.Request, GPUs: unless(fn.GPUs, 1), Weight: unless(fn.Weight, 1),
		Tenant: unless(fn.Tenant, DefaultTenant), Inflight: unless(fn.Inflight, DefaultInflight), Queue: fn.Queue,
		Restart: unless(fn.Restart, DefaultRestart), ReadOnly: fn.ReadOnly, Unmanaged: unless(fn.Unmanaged, DefaultUnmanaged), Labels: fn.Labels, Notes: fn.Annotations,
	}
	if fn.Limits != (Limits{}) {
		d.Limits = &limitsDocument{Pids: fn.Limits.Pids, CPUs: fn.Limits.CPUs}
		if fn.Limits.Memory > 0 {
			d.Limits.Memory = fn.Limits.Memory.String()
		}
	}
	if fn.KeepUpgraded {
		d.WebSocket = keepWebSocket
	}
	if fn.Probes.Paths != nil || fn.Probes.Methods != nil {
		d.Probes = &probesDocument{}
		if fn.Probes.Paths != nil {
			d.Probes.Paths = &fn.Probes.Paths
		}
		if fn.Probes.Methods != nil {
			d.Probes.Methods = &fn.Probes.Methods
		}
	}
	if fn.Timeout > 0 {
		d.Timeout = fn.Timeout.String()
	}
	if fn.Scale != DefaultScale && fn.Scale != (Scale{}) {
		d.Scale = &scaleDocument{fn.Scale.Min, fn.Scale.Max, fn.Scale.Idle.String()}
	}
	if fn.SLO > 0 {
		d.SLO = fn.SLO.String()
	}
	if fn.GPUMem > 0 {
		d.GPUMem = fn.GPUMem.String()
	}
	if fn.Model != nil {
		d.Model = &modelDocument{Name: fn.Model.Name, File: fn.Model.File}
		if fn.Model.Size > 0 {
			d.Model.Size = fn.Model.Size.String()
		}
	}
	return d
}

// unless is the zero value for what a file need not say.
func unless[T comparable](v, usual T) T {
	var none T
	if v == usual {
		return none
	}
	return v
}
