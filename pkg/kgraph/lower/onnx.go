package lower

import (
	"errors"
	"fmt"
	"io"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// The parts of an ONNX model that are lowered. The comments give the message and the field numbers in onnx.proto3.
type (
	onnxGraph struct { // GraphProto
		nodes        []*onnxNode   // 1
		initializers []*onnxTensor // 5
		inputs       []*onnxValue  // 11
		outputs      []*onnxValue  // 12
	}
	onnxNode struct { // NodeProto
		inputs, outputs  []string                  // 1, 2
		name, op, domain string                    // 3, 4, 7
		attributes       map[string]*onnxAttribute // 5; by name
	}
	onnxAttribute struct { // AttributeProto
		name   string      // 1
		f      float32     // 2
		i      int64       // 3
		tensor *onnxTensor // 5
	}
	onnxTensor struct { // TensorProto
		dims     []int64 // 1
		elemType int64   // 2 (DataType)
		floats   []byte  // 4 (packed) or 9: little-endian 32-bit floats
		name     string  // 8
		external bool    // 14: the data is in another file
	}
	onnxValue struct { // ValueInfoProto
		name     string    // 1
		elemType int64     // field 1 of the TypeProto.Tensor, which is field 1 of the TypeProto, which is field 2
		dims     []onnxDim // field 1 of the TensorShapeProto, which is field 2 of the TypeProto.Tensor
	}
	onnxDim struct { // TensorShapeProto.Dimension
		size  int64  // 1; 0 if unknown
		param string // 2
	}
)

// onnxFloat is the number of the type float in TensorProto.DataType.
const onnxFloat = 1

// errNotONNX reports that a file is not a protobuf message of the expected form.
var errNotONNX = errors.New("not an ONNX model")

// onnxField is a field of a message.
type onnxField struct {
	number protowire.Number
	wire   protowire.Type
	n      uint64 // the value of a varint or of a fixed 32-bit field
	data   []byte // the value of a field of bytes: a string, a message or a packed list
}

// eachField calls do with each field of a message, and returns its first error. Values of 64-bit fields, which no
// lowered part has, are skipped.
func eachField(message []byte, do func(f onnxField) error) error {
	for len(message) > 0 {
		number, wire, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errNotONNX
		}
		message = message[n:]
		f := onnxField{number: number, wire: wire}
		switch wire {
		case protowire.VarintType:
			f.n, n = protowire.ConsumeVarint(message)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(message)
			f.n = uint64(v)
		case protowire.BytesType:
			f.data, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, wire, message)
		}
		if n < 0 {
			return errNotONNX
		}
		message = message[n:]
		if err := do(f); err != nil {
			return err
		}
	}
	return nil
}

// integers appends the numbers of a repeated field, which may be packed.
func (f onnxField) integers(to []int64) ([]int64, error) {
	if f.wire == protowire.VarintType {
		return append(to, int64(f.n)), nil
	}
	for data := f.data; len(data) > 0; {
		v, n := protowire.ConsumeVarint(data)
		if n < 0 {
			return nil, errNotONNX
		}
		to, data = append(to, int64(v)), data[n:]
	}
	return to, nil
}

// readONNX reads the graph of a model (ModelProto).
func readONNX(r io.Reader) (*onnxGraph, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFile {
		return nil, fmt.Errorf("more than %d bytes", MaxFile)
	}
	var g *onnxGraph
	err = eachField(data, func(f onnxField) (err error) {
		const graph = 7
		if f.number == graph && f.wire == protowire.BytesType {
			g, err = readGraph(f.data)
		}
		return err
	})
	if err == nil && (g == nil || len(g.nodes) == 0) {
		err = fmt.Errorf("%w: it has no graph, or a graph without nodes", errNotONNX)
	}
	return g, err
}

func readGraph(message []byte) (*onnxGraph, error) {
	g := &onnxGraph{}
	return g, eachField(message, func(f onnxField) (err error) {
		if f.wire != protowire.BytesType {
			return nil
		}
		switch f.number {
		case 1:
			var n *onnxNode
			n, err = readNode(f.data)
			g.nodes = append(g.nodes, n)
		case 5:
			var t *onnxTensor
			t, err = readTensor(f.data)
			g.initializers = append(g.initializers, t)
		case 11, 12:
			var v *onnxValue
			v, err = readValue(f.data)
			if f.number == 11 {
				g.inputs = append(g.inputs, v)
			} else {
				g.outputs = append(g.outputs, v)
			}
		}
		return err
	})
}

func readNode(message []byte) (*onnxNode, error) {
	n := &onnxNode{attributes: map[string]*onnxAttribute{}}
	return n, eachField(message, func(f onnxField) error {
		text := string(f.data)
		switch f.number {
		case 1:
			n.inputs = append(n.inputs, text)
		case 2:
			n.outputs = append(n.outputs, text)
		case 3:
			n.name = text
		case 4:
			n.op = text
		case 7:
			n.domain = text
		case 5:
			a, err := readAttribute(f.data)
			if err != nil {
				return err
			}
			n.attributes[a.name] = a
		}
		return nil
	})
}

func readAttribute(message []byte) (*onnxAttribute, error) {
	a := &onnxAttribute{}
	return a, eachField(message, func(f onnxField) (err error) {
		switch f.number {
		case 1:
			a.name = string(f.data)
		case 2:
			a.f = math.Float32frombits(uint32(f.n))
		case 3:
			a.i = int64(f.n)
		case 5:
			a.tensor, err = readTensor(f.data)
		}
		return err
	})
}

func readTensor(message []byte) (*onnxTensor, error) {
	t := &onnxTensor{}
	return t, eachField(message, func(f onnxField) (err error) {
		switch f.number {
		case 1:
			t.dims, err = f.integers(t.dims)
		case 2:
			t.elemType = int64(f.n)
		case 4:
			if f.wire == protowire.Fixed32Type {
				f.data = protowire.AppendFixed32(nil, uint32(f.n))
			}
			t.floats = append(t.floats, f.data...)
		case 8:
			t.name = string(f.data)
		case 9:
			t.floats = f.data
		case 14:
			t.external = f.n != 0
		}
		return err
	})
}

func readValue(message []byte) (*onnxValue, error) {
	v := &onnxValue{}
	return v, eachField(message, func(f onnxField) error {
		switch f.number {
		case 1:
			v.name = string(f.data)
		case 2:
			return eachField(f.data, func(f onnxField) error {
				if f.number == 1 { // a tensor, rather than a sequence or a map
					return eachField(f.data, v.tensorType)
				}
				return nil
			})
		}
		return nil
	})
}

// tensorType reads a field of the type of a tensor (TypeProto.Tensor).
func (v *onnxValue) tensorType(f onnxField) error {
	switch f.number {
	case 1:
		v.elemType = int64(f.n)
	case 2:
		return eachField(f.data, func(f onnxField) error { // a dimension
			d := onnxDim{}
			err := eachField(f.data, func(f onnxField) error {
				switch f.number {
				case 1:
					d.size = int64(f.n)
				case 2:
					d.param = string(f.data)
				}
				return nil
			})
			v.dims = append(v.dims, d)
			return err
		})
	}
	return nil
}
