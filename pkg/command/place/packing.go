package place

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/gfaas/gfaas/pkg/command/picture"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/pack"
	"github.com/gfaas/gfaas/pkg/reason"
)

// print writes the packing in the chosen format. In the format csv, it prints the items that are too
// large to standard error.
func (o *packOptions) print(c *pack.Items, p pack.Packing) error {
	if o.env.Output == "csv" {
		c.EachOversize(p, func(_ plan.Item, id string, why reason.Reason) { o.env.Notef("unplaced: %s: %s", id, why) })
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

// writePacking writes the packing as JSON, one bin per line. It encodes by hand, because there may be
// millions of items.
func writePacking(out io.Writer, c *pack.Items, p pack.Packing) error {
	w := bufio.NewWriterSize(out, 1<<16)
	fmt.Fprintf(w, `{"bins_used":%d,"bound":%d,"bound_method":"%s","bins":[`, p.Used, p.Bound, p.BoundMethod)
	var b []byte
	bins, inBin := 0, 0
	c.Each(p, func() {
		if bins > 0 {
			w.WriteString("]},")
		}
		w.WriteString("\n  {\"items\":[")
		bins, inBin = bins+1, 0
	}, func(i plan.Item, id string, at pack.Placed) {
		b = b[:0]
		if inBin > 0 {
			b = append(b, ',')
		}
		inBin++
		b = appendText(append(b, `{"id":`...), id)
		b = plan.AppendDecimal(append(b, `,"x":`...), at.X, c.QuotaDigits)
		b = plan.AppendDecimal(append(b, `,"y":`...), at.Y, c.SMDigits)
		b = appendSize(b, i)
		w.Write(append(b, '}'))
	})
	if bins > 0 {
		w.WriteString("]}\n")
	}
	w.WriteString(`],"unplaced":[`)
	separator := ""
	c.EachOversize(p, func(i plan.Item, id string, why reason.Reason) {
		b = appendText(append(append(b[:0], separator...), "\n  {\"id\":"...), id)
		b = appendText(append(appendSize(b, i), `,"reason":`...), why.String())
		cause, _ := json.Marshal(why) // reasons always encode
		b = append(append(b, `,"cause":`...), cause...)
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

// packRows returns the header and a row for every packed item.
func packRows(header []string, c *pack.Items, p pack.Packing) [][]string {
	rows := [][]string{header}
	bin := 0
	text := func(v int64, digits int) string { return string(plan.AppendDecimal(nil, v, digits)) }
	c.Each(p, func() { bin++ }, func(i plan.Item, id string, at pack.Placed) {
		rows = append(rows, []string{strconv.Itoa(bin), id, text(at.X, c.QuotaDigits), text(at.Y, c.SMDigits), i.Quota.String(), i.SMPct.String()})
	})
	return rows
}

func printPacking(w io.Writer, c *pack.Items, p pack.Packing) error {
	unplaced := [][]string{{"UNPLACED", "REASON"}}
	c.EachOversize(p, func(_ plan.Item, id string, why reason.Reason) {
		unplaced = append(unplaced, []string{id, why.String()})
	})
	return printReport(w, packSummary(p), unplaced, packRows([]string{"BIN", "ITEM", "X", "Y", "QUOTA", "SM%"}, c, p))
}

// packSummary returns a sentence about the number of bins and the lower bound.
func packSummary(p pack.Packing) string {
	if p.Used == 0 && len(p.Oversize) > 0 {
		return "0 bins used: no item fits a bin."
	}
	return boundSentence("bin", p.Used, p.Bound, p.BoundMethod, ": no packing uses fewer")
}

// pictured returns the packing as a picture. A box for several equal bins shows only the size of its
// items, because the bins hold different copies.
func pictured(c *pack.Items, p pack.Packing) picture.Bins {
	out := picture.Bins{Headline: number.Count(p.Used, "bin") + " of " + c.BinSize(), Summary: packSummary(p)}
	n := 0 // number of the current bin among equal bins
	c.Each(p, func() {
		if n++; len(out.Bins) == 0 || n > p.Bins[len(out.Bins)-1].Times {
			out.Bins, n = append(out.Bins, picture.Bin{Times: p.Bins[len(out.Bins)].Times}), 1
		}
	}, func(i plan.Item, id string, at pack.Placed) {
		if n > 1 {
			return
		}
		bin, k := &out.Bins[len(out.Bins)-1], c.Kinds[at.Kind]
		box := picture.Box{
			X: float64(at.X) / float64(c.Bin.W), Y: float64(at.Y) / float64(c.Bin.H),
			W: float64(k.W) / float64(c.Bin.W), H: float64(k.H) / float64(c.Bin.H),
			Kind: at.Kind, Label: []string{i.Quota.String() + "×" + i.SMPct.String()},
		}
		if bin.Times == 1 {
			box.Label = append([]string{id}, box.Label...)
		}
		bin.Boxes = append(bin.Boxes, box)
	})
	c.EachOversize(p, func(_ plan.Item, id string, why reason.Reason) {
		out.Unplaced = append(out.Unplaced, id+": "+why.String())
	})
	return out
}
