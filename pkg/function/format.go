package function

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// document is a function as the file has it; what is at its default is left
// out.
type document struct {
	Name     string            `yaml:"name"`
	Image    string            `yaml:"image,omitempty"`
	Command  []string          `yaml:"command,omitempty,flow"`
	Env      map[string]string `yaml:"env,omitempty"`
	Port     int               `yaml:"port,omitempty"`
	Contract string            `yaml:"contract,omitempty"`
	Kind     string            `yaml:"kind,omitempty"`
	SLO      string            `yaml:"slo,omitempty"`
	GPUMem   string            `yaml:"gpu_mem,omitempty"`
	GPUs     int               `yaml:"gpus,omitempty"`
	Weight   float64           `yaml:"weight,omitempty"`
	Tenant   string            `yaml:"tenant,omitempty"`
	Model    *modelDocument    `yaml:"model,omitempty,flow"`
}

type modelDocument struct {
	Name string `yaml:"name"`
	Size string `yaml:"size"`
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
		Kind: unless(fn.Kind, DefaultKind), GPUs: unless(fn.GPUs, 1), Weight: unless(fn.Weight, 1),
		Tenant: unless(fn.Tenant, DefaultTenant),
	}
	if fn.SLO > 0 {
		d.SLO = fn.SLO.String()
	}
	if fn.GPUMem > 0 {
		d.GPUMem = fn.GPUMem.String()
	}
	if fn.Model != nil {
		d.Model = &modelDocument{Name: fn.Model.Name, Size: fn.Model.Size.String()}
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
