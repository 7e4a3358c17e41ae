package function

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Format writes functions as YAML documents, without values that equal the default. Parse returns equal functions
// from them, except for Dir.
func Format(functions []Function) ([]byte, error) {
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	for _, fn := range functions {
		if err := enc.Encode(fn.withoutDefaults()); err != nil {
			return nil, fmt.Errorf("format function %s: %w", fn.Name, err)
		}
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("format functions: %w", err)
	}
	return buf.Bytes(), nil
}

// withoutDefaults returns the function with zero values in place of defaults.
func (fn Function) withoutDefaults() Function {
	fn.Port, fn.GPUs = unless(fn.Port, DefaultPort), unless(fn.GPUs, 1)
	fn.Contract, fn.Kind = unless(fn.Contract, DefaultContract), unless(fn.Kind, DefaultKind)
	fn.Weight, fn.Tenant = unless(fn.Weight, 1), unless(fn.Tenant, DefaultTenant)
	fn.Scale, fn.Inflight = unless(fn.Scale, DefaultScale), unless(fn.Inflight, DefaultInflight)
	if fn.Kind == Training {
		fn.Restart, fn.MaxRestarts = unless(fn.Restart, RestartOnFailure), unless(fn.MaxRestarts, DefaultMaxRestarts)
	} else {
		fn.Restart = unless(fn.Restart, DefaultRestart)
	}
	fn.Unmanaged = unless(fn.Unmanaged, DefaultUnmanaged)
	return fn
}

// unless returns v, or the zero value if v is the default.
func unless[T comparable](v, usual T) T {
	var none T
	if v == usual {
		return none
	}
	return v
}
