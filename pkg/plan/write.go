package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// WriteJSON writes the plan as Read reads it: the same plan gives the same
// bytes, one line an instance so that plans can be compared line by line.
func (p Plan) WriteJSON(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"version\":%d,\"algorithm\":%s,\"model\":%s,\n", p.Version, text(p.Algorithm), text(p.Model))
	fmt.Fprintf(&b, " \"gpus_used\":%d,\"bound\":%d,\"bound_method\":%s,\n", p.GPUsUsed, p.Bound, text(p.BoundMethod))
	b.WriteString(" \"gpus\":[")
	for i, g := range p.GPUs {
		separate(&b, i, "\n  ")
		if err := g.write(&b); err != nil {
			return err
		}
	}
	b.WriteString("],\n \"demand\":[")
	if err := lines(&b, p.Demand, "\n  "); err != nil {
		return err
	}
	b.WriteString("],\n \"unplaced\":[")
	if err := lines(&b, p.Unplaced, "\n  "); err != nil {
		return err
	}
	b.WriteString("]}\n")
	_, err := w.Write(b.Bytes())
	return err
}

func (g GPU) write(b *bytes.Buffer) error {
	mem, err := compact(g.MemMiB)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, `{"node":%s,"index":%d,"mem_mib":%s,"instances":[`, text(g.Node), g.Index, mem)
	if err := lines(b, g.Instances, "\n    "); err != nil {
		return err
	}
	b.WriteString("]")
	if len(g.Models) > 0 {
		b.WriteString(",\n   \"models\":[")
		if err := lines(b, g.Models, "\n    "); err != nil {
			return err
		}
		b.WriteString("]")
	}
	if len(g.Schedule) > 0 {
		b.WriteString(",\n   \"schedule\":[")
		if err := lines(b, g.Schedule, "\n    "); err != nil {
			return err
		}
		b.WriteString("]")
	}
	b.WriteString("}")
	return nil
}

// lines writes the items of a list, each after a line break and indent.
func lines[T any](b *bytes.Buffer, items []T, indent string) error {
	for i, item := range items {
		separate(b, i, indent)
		line, err := compact(item)
		if err != nil {
			return err
		}
		b.Write(line)
	}
	return nil
}

func separate(b *bytes.Buffer, i int, indent string) {
	if i > 0 {
		b.WriteByte(',')
	}
	b.WriteString(indent)
}

// compact is the value as JSON on one line, with < and & as they are.
func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write plan: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// text is a string as JSON; strings always encode.
func text(s string) []byte {
	b, _ := compact(s)
	return b
}
