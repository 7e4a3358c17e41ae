package place

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/picture"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/pack"
)

// print writes the packing in the chosen form. What a form cannot hold goes to
// standard error.
func (o *packOptions) print(c *cargo, p pack.Packing) error {
	if o.env.Output == "csv" {
		c.eachOversize(p, func(_ plan.Item, id, reason string) { o.env.Notef("unplaced: %s: %s", id, reason) })
	}
	return o.env.Emit(func(w io.Writer) error {
		switch o.env.Output {
		case "json":
			return writePacking(w, c, p)
		case "svg":
			_, err := w.Write(pictured(c, p).SVG())
			return err
		case "csv":
			return csv.NewWriter(w).WriteAll(packRows([]string{"bin", "id", "x", "y", "quota", "sm_pct"}, c, p))
		}
		return printPacking(w, c, p)
	})
}

// eachItem visits the packed items, bin by bin.
func (c *cargo) eachItem(p pack.Packing, newBin func(), visit func(i plan.Item, id string, x, y int64)) {
	h := c.hand()
	for _, b := range p.Bins {
		for range b.Times {
			newBin()
			for _, at := range b.Items {
				i, id := h.next(at.Kind)
				visit(i, id, at.X, at.Y)
			}
		}
	}
}

// eachOversize visits the items that no bin holds.
func (c *cargo) eachOversize(p pack.Packing, visit func(i plan.Item, id, reason string)) {
	h := c.hand()
	for _, kind := range p.Oversize {
		for range c.kinds[kind].Count {
			i, id := h.next(kind)
			visit(i, id, c.tooLarge(c.kinds[kind], i))
		}
	}
}

// writePacking writes JSON, a bin a line. There may be millions of items, so it
// is put together by hand.
func writePacking(out io.Writer, c *cargo, p pack.Packing) error {
	w := bufio.NewWriterSize(out, 1<<16)
	fmt.Fprintf(w, `{"bins_used":%d,"bound":%d,"bound_method":"%s","bins":[`, p.Used, p.Bound, p.BoundMethod)
	var b []byte
	bins, inBin := 0, 0
	c.eachItem(p, func() {
		if bins > 0 {
			w.WriteString("]},")
		}
		w.WriteString("\n  {\"items\":[")
		bins, inBin = bins+1, 0
	}, func(i plan.Item, id string, x, y int64) {
		b = b[:0]
		if inBin > 0 {
			b = append(b, ',')
		}
		inBin++
		b = appendText(append(b, `{"id":`...), id)
		b = plan.AppendDecimal(append(b, `,"x":`...), x, c.quota)
		b = plan.AppendDecimal(append(b, `,"y":`...), y, c.sm)
		b = appendSize(b, i)
		w.Write(append(b, '}'))
	})
	if bins > 0 {
		w.WriteString("]}\n")
	}
	w.WriteString(`],"unplaced":[`)
	separator := ""
	c.eachOversize(p, func(i plan.Item, id, reason string) {
		b = appendText(append(append(b[:0], separator...), "\n  {\"id\":"...), id)
		b = appendText(append(appendSize(b, i), `,"reason":`...), reason)
		w.Write(append(b, '}'))
		separator = ","
	})
	w.WriteString("]}\n")
	return w.Flush()
}

func appendSize(b []byte, i plan.Item) []byte {
	b = plan.AppendDecimal(append(b, `,"quota":`...), i.Quota.Unscaled, i.Quota.Digits)
	return plan.AppendDecimal(append(b, `,"sm_pct":`...), i.SMPct.Unscaled, i.SMPct.Digits)
}

// appendText appends a string as JSON.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			text, _ := json.Marshal(s) // strings always encode
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// packRows is a row for every packed item, under the header.
func packRows(header []string, c *cargo, p pack.Packing) [][]string {
	rows := [][]string{header}
	bin := 0
	text := func(v int64, digits int) string { return string(plan.AppendDecimal(nil, v, digits)) }
	c.eachItem(p, func() { bin++ }, func(i plan.Item, id string, x, y int64) {
		rows = append(rows, []string{strconv.Itoa(bin), id, text(x, c.quota), text(y, c.sm), i.Quota.String(), i.SMPct.String()})
	})
	return rows
}

func printPacking(w io.Writer, c *cargo, p pack.Packing) error {
	if p.Used > 0 {
		if err := cli.Table(w, packRows([]string{"BIN", "ITEM", "X", "Y", "QUOTA", "SM%"}, c, p)); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(w, packSummary(p)); err != nil {
		return err
	}
	if len(p.Oversize) == 0 {
		return nil
	}
	rows := [][]string{{"UNPLACED", "REASON"}}
	c.eachOversize(p, func(_ plan.Item, id, reason string) { rows = append(rows, []string{id, reason}) })
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return cli.Table(w, rows)
}

// pictured is the packing as it is drawn. Bins that are filled alike hold
// different copies, so that their boxes have sizes only.
func pictured(c *cargo, p pack.Packing) picture.Bins {
	out := picture.Bins{Headline: cli.Count(p.Used, "bin") + " of " + c.size(), Summary: packSummary(p)}
	h := c.hand()
	for _, b := range p.Bins {
		bin := picture.Bin{Times: b.Times}
		for n := range b.Times {
			for _, at := range b.Items {
				i, id := h.next(at.Kind)
				if n > 0 {
					continue
				}
				k := c.kinds[at.Kind]
				box := picture.Box{
					X: float64(at.X) / float64(c.bin.W), Y: float64(at.Y) / float64(c.bin.H),
					W: float64(k.W) / float64(c.bin.W), H: float64(k.H) / float64(c.bin.H),
					Kind: at.Kind, Label: []string{i.Quota.String() + "×" + i.SMPct.String()},
				}
				if b.Times == 1 {
					box.Label = append([]string{id}, box.Label...)
				}
				bin.Boxes = append(bin.Boxes, box)
			}
		}
		out.Bins = append(out.Bins, bin)
	}
	c.eachOversize(p, func(_ plan.Item, id, reason string) { out.Unplaced = append(out.Unplaced, id+": "+reason) })
	return out
}

// packSummary says in a sentence how good a packing is.
func packSummary(p pack.Packing) string {
	text := fmt.Sprintf("%s used; at least %d needed (%s bound)", cli.Count(p.Used, "bin"), p.Bound, p.BoundMethod)
	if gap := p.Used - p.Bound; gap > 0 {
		return fmt.Sprintf("%s: gap at most %d, %s.", text, gap, number.Percent(float64(gap)/float64(p.Bound), 1))
	}
	return text + ": no packing uses fewer."
}
