package kgraph

import (
	"encoding/binary"
	"math"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The JSON form of a request. Modules and buffers keep their order, which a map would
// lose.
type (
	requestForm struct {
		Version    int          `json:"version"`
		Iterations int          `json:"iterations,omitzero"`
		Modules    object       `json:"modules,omitzero"`
		Buffers    object       `json:"buffers,omitzero"`
		Kernels    []kernelForm `json:"kernels"`
	}
	moduleForm struct {
		PTX     string `json:"ptx,omitzero"`
		Binary  []byte `json:"binary,omitempty"`
		File    string `json:"file,omitzero"`
		Stored  string `json:"stored,omitzero"`
		Builtin string `json:"builtin,omitzero"`
	}
	bufferForm struct {
		Kind     string `json:"kind"`
		Key      string `json:"key,omitzero"`
		Size     int64  `json:"size,omitzero"`
		Data     []byte `json:"data,omitempty"`
		Inline   bool   `json:"inline,omitzero"`
		Result   bool   `json:"result,omitzero"`
		Volatile bool   `json:"volatile,omitzero"`
	}
	kernelForm struct {
		Module string   `json:"module"`
		Name   string   `json:"name"`
		Grid   *[3]int  `json:"grid,omitzero"`
		Block  *[3]int  `json:"block,omitzero"`
		Shared int      `json:"shared,omitzero"`
		Args   []object `json:"args"`
	}
)

// object is a JSON object with ordered keys.
type object []member

type member struct {
	key   string
	value any
}

// MarshalJSONTo implements json.MarshalerTo.
func (o object) MarshalJSONTo(enc *jsontext.Encoder) error {
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, m := range o {
		if err := enc.WriteToken(jsontext.String(m.key)); err != nil {
			return err
		}
		if err := json.MarshalEncode(enc, m.value); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}

// Encode returns the request as JSON that Parse accepts.
func (r *Request) Encode() ([]byte, error) {
	form := requestForm{Version: 1, Iterations: r.Iterations, Kernels: []kernelForm{}}
	for i := range r.Modules {
		m := &r.Modules[i]
		form.Modules = append(form.Modules, member{m.Name, moduleForm{m.PTX, []byte(m.Binary), m.File, m.Stored, m.Builtin}})
	}
	for i := range r.Buffers {
		b := &r.Buffers[i]
		size := b.Size
		if b.Data != nil {
			size = 0
		}
		form.Buffers = append(form.Buffers, member{b.Name, bufferForm{
			b.Kind.String(), b.Key, size, b.Data, b.Inline, b.Result, b.Volatile}})
	}
	for i := range r.Kernels {
		k := &r.Kernels[i]
		f := kernelForm{Module: r.Modules[k.Module].Name, Name: k.Name, Shared: k.Shared, Args: []object{}}
		if k.Grid[0] > 0 {
			f.Grid, f.Block = &k.Grid, &k.Block
		}
		for j := range k.Args {
			f.Args = append(f.Args, r.argForm(&k.Args[j]))
		}
		form.Kernels = append(form.Kernels, f)
	}
	return json.Marshal(form, jsontext.AllowInvalidUTF8(true)) // PTX from a file may have other text in comments
}

func (r *Request) argForm(a *Arg) object {
	var value any
	switch v := a.Value; a.Type {
	case "buffer":
		value = r.Buffers[a.Buffer].Name
	case "i32":
		value = int32(binary.LittleEndian.Uint32(v))
	case "u32":
		value = binary.LittleEndian.Uint32(v)
	case "i64":
		value = int64(binary.LittleEndian.Uint64(v))
	case "u64":
		value = binary.LittleEndian.Uint64(v)
	case "f32":
		value = math.Float32frombits(binary.LittleEndian.Uint32(v))
	case "f64":
		value = math.Float64frombits(binary.LittleEndian.Uint64(v))
	case "bytes":
		value = v // base64, as package json writes bytes
	}
	form := object{{a.Type, value}}
	if a.Offset != 0 {
		form = append(form, member{"offset", a.Offset})
	}
	return form
}
