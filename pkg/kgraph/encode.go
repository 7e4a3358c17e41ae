package kgraph

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"strconv"
)

// The JSON form of a request for encoding/json. Modules and buffers keep their order, which a map would
// lose.
type (
	requestForm struct {
		Version    int          `json:"version"`
		Iterations int          `json:"iterations,omitempty"`
		Modules    object       `json:"modules,omitempty"`
		Buffers    object       `json:"buffers,omitempty"`
		Kernels    []kernelForm `json:"kernels"`
	}
	moduleForm struct {
		PTX     string `json:"ptx,omitempty"`
		Binary  []byte `json:"binary,omitempty"`
		File    string `json:"file,omitempty"`
		Stored  string `json:"stored,omitempty"`
		Builtin string `json:"builtin,omitempty"`
	}
	bufferForm struct {
		Kind     string `json:"kind"`
		Key      string `json:"key,omitempty"`
		Size     int64  `json:"size,omitempty"`
		Data     string `json:"data,omitempty"`
		Inline   bool   `json:"inline,omitempty"`
		Result   bool   `json:"result,omitempty"`
		Volatile bool   `json:"volatile,omitempty"`
	}
	kernelForm struct {
		Module string            `json:"module"`
		Name   string            `json:"name"`
		Grid   *[3]int           `json:"grid,omitempty"`
		Block  *[3]int           `json:"block,omitempty"`
		Shared int               `json:"shared,omitempty"`
		Args   []json.RawMessage `json:"args"`
	}
)

// object is a JSON object with ordered keys.
type object []member

type member struct {
	key   string
	value any
}

func (o object) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	text.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			text.WriteByte(',')
		}
		if err := appendJSON(&text, m.key); err != nil {
			return nil, err
		}
		text.WriteByte(':')
		if err := appendJSON(&text, m.value); err != nil {
			return nil, err
		}
	}
	text.WriteByte('}')
	return text.Bytes(), nil
}

func appendJSON(text *bytes.Buffer, v any) error {
	enc := json.NewEncoder(text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	text.Truncate(text.Len() - 1) // drop the newline
	return nil
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
		form.Buffers = append(form.Buffers, member{b.Name, bufferForm{b.Kind.String(), b.Key, size,
			base64.StdEncoding.EncodeToString(b.Data), b.Inline, b.Result, b.Volatile}})
	}
	for i := range r.Kernels {
		k := &r.Kernels[i]
		f := kernelForm{Module: r.Modules[k.Module].Name, Name: k.Name, Shared: k.Shared, Args: []json.RawMessage{}}
		if k.Grid[0] > 0 {
			f.Grid, f.Block = &k.Grid, &k.Block
		}
		for j := range k.Args {
			text, err := r.argForm(&k.Args[j])
			if err != nil {
				return nil, err
			}
			f.Args = append(f.Args, text)
		}
		form.Kernels = append(form.Kernels, f)
	}
	var text bytes.Buffer
	if err := appendJSON(&text, form); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

func (r *Request) argForm(a *Arg) (json.RawMessage, error) {
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
		value = json.Number(strconv.FormatFloat(float64(math.Float32frombits(binary.LittleEndian.Uint32(v))), 'g', -1, 32))
	case "f64":
		value = json.Number(strconv.FormatFloat(math.Float64frombits(binary.LittleEndian.Uint64(v)), 'g', -1, 64))
	case "bytes":
		value = v // base64, as encoding/json writes bytes
	}
	form := object{{a.Type, value}}
	if a.Offset != 0 {
		form = append(form, member{"offset", a.Offset})
	}
	return form.MarshalJSON()
}
