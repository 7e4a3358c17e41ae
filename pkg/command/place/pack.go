package place

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/picture"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/pack"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// packOptions are the flags of pack, as given.
type packOptions struct {
	env   *cli.Env
	items string
	bin   string
	mem   gpu.Bytes
	limit time.Duration
	steps int
	seed  uint64
}

func newPack(env *cli.Env) *cobra.Command {
	o := packOptions{env: env}
	cmd := &cobra.Command{
		Use:   "pack",
		Short: "Pack fixed rectangles into as few bins as possible",
		Long: `Packs rectangles of fixed sizes into bins, as few as it can, and says how many
are needed at least. Nothing is rotated.

The items are CSV: id,quota,sm_pct and optionally mem_mib,count. Sizes are in
the units of --bin, which is QUOTAxSM, and count exactly as far as they are
written, decimals too. Of an item with a count above 1 the copies are id#1,
id#2 and so on. Memory counts where --bin-mem is given. What is larger than a
bin is listed with the reason, and the exit status is 3; the rest is packed all
the same.

Bins are filled in several orders and by several rules; then a search tries to
empty one more bin at a time until it reaches the lower bound, has tried --steps
times, or --time-limit has passed since the start. The first packing is always
completed. The same items and seed give the same bytes, unless it is the time
that ends the search: then they differ only if the last bin saved came about
that late.`,
		Example: `  gfaas-place pack --items items.csv
  gfaas-place pack --items items.csv --bin 1x100 --bin-mem 16GiB -o json
  gfaas-place pack --items boxes.csv --bin 300x300 --time-limit 1s -o csv
  gfaas-place pack --items items.csv -o svg --out-file bins.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.items, "items", "", "what to pack (CSV: id,quota,sm_pct,mem_mib,count)")
	cli.Files(cmd, "csv", "items")
	f.StringVar(&o.bin, "bin", "1x100", "the size of every bin, `QUOTAxSM`")
	cli.Memory(f, &o.mem, "bin-mem", "memory of every bin, like `16GiB` (default no limit)")
	f.DurationVar(&o.limit, "time-limit", 100*time.Millisecond, "how long to improve the packing")
	f.IntVar(&o.steps, "steps", pack.DefaultSteps, "how often to try to improve the packing")
	f.Uint64Var(&o.seed, "seed", 1, "what the search draws by")
	env.Outputs(cmd, "table", "json", "csv", "svg")
	return cmd
}

func (o *packOptions) run(cmd *cobra.Command) error {
	start := time.Now()
	if err := o.check(cmd); err != nil {
		return err
	}
	quota, sm, err := plan.ParseBin(o.bin)
	if err != nil {
		return cli.Usagef("--bin %s: %w", o.bin, err)
	}
	items, err := cli.Load(o.env, o.items, plan.ReadItems)
	if err != nil {
		return err
	}
	c, err := newPackInput(items, quota, sm, o.mem, o.items)
	if err != nil {
		return err
	}
	over, done := o.env.Deadline(start, o.limit, "packing")
	packed := pack.Pack(c.kinds, c.bin, pack.Options{Seed: o.seed, Steps: o.steps, Stop: over})
	done()
	if err := o.print(c, packed); err != nil {
		return err
	}
	if len(packed.Oversize) > 0 {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

func (o *packOptions) check(cmd *cobra.Command) error {
	switch {
	case o.items == "":
		return cli.Usagef("--items is missing: expected a file (CSV: id,quota,sm_pct,mem_mib,count)")
	case cmd.Flags().Changed("bin-mem") && o.mem <= 0:
		return cli.Usagef("--bin-mem %s: expected more than 0, like 16GiB", o.mem)
	case o.limit < 0:
		return cli.Usagef("--time-limit %s: expected 0 or more, like 100ms", o.limit)
	case o.steps < 0:
		return cli.Usagef("--steps %d: expected 0 or more", o.steps)
	}
	return nil
}

// packInput is items as kinds of rectangles with whole sides.
type packInput struct {
	items     []plan.Item
	bin       pack.Bin
	quota, sm int // digits after the point that sides and places have
	kinds     []pack.Kind
	ofKind    [][]int32 // the items of each kind
	binQuota  plan.Decimal
	binSM     plan.Decimal
	binMem    gpu.Bytes
}

// newPackInput scales all sides by the same power of ten, so that they are whole.
func newPackInput(items []plan.Item, quota, sm plan.Decimal, mem gpu.Bytes, name string) (*packInput, error) {
	c := &packInput{items: items, quota: quota.Digits, sm: sm.Digits, binQuota: quota, binSM: sm, binMem: mem}
	if quota.Scaled(c.quota) > pack.MaxArea/sm.Scaled(c.sm) {
		return nil, fmt.Errorf("--bin %sx%s is too large to be exact: its area is above %d", quota, sm, int64(pack.MaxArea))
	}
	for _, i := range items {
		c.quota, c.sm = max(c.quota, i.Quota.Digits), max(c.sm, i.SMPct.Digits)
		if w, h := quota.Scaled(c.quota), sm.Scaled(c.sm); w > pack.MaxArea/h {
			return nil, &textfile.Fault{File: name, Line: i.Line, Where: "quota",
				What: fmt.Sprintf("%s × %s is too fine to be exact: in sides of %d and %d decimals a bin of %sx%s has an area above %d",
					i.Quota, i.SMPct, c.quota, c.sm, quota, sm, int64(pack.MaxArea))}
		}
	}
	c.bin = pack.Bin{W: quota.Scaled(c.quota), H: sm.Scaled(c.sm), Mem: int64(mem)}
	kindOf := map[pack.Kind]int{}
	for n, i := range items {
		k := pack.Kind{W: i.Quota.Scaled(c.quota), H: i.SMPct.Scaled(c.sm)}
		if mem > 0 {
			k.Mem = int64(gpu.FromMiB(i.MemMiB))
		}
		at, known := kindOf[k]
		if !known {
			at = len(c.kinds)
			kindOf[k] = at
			c.kinds, c.ofKind = append(c.kinds, k), append(c.ofKind, nil)
		}
		c.kinds[at].Count += i.Count
		c.ofKind[at] = append(c.ofKind[at], int32(n))
	}
	return c, nil
}

// copies gives out the items of each kind, one after the other, in the order of
// the file.
type copies struct {
	in   *packInput
	at   []int // of each kind, which of its items is next
	copy []int // and which copy of that, from 0
}

func (c *packInput) copies() *copies {
	return &copies{c, make([]int, len(c.kinds)), make([]int, len(c.kinds))}
}

// next is the next item of a kind and its id.
func (h *copies) next(kind int) (plan.Item, string) {
	i := h.in.items[h.in.ofKind[kind][h.at[kind]]]
	h.copy[kind]++
	id := i.CopyID(h.copy[kind])
	if h.copy[kind] == i.Count {
		h.at[kind], h.copy[kind] = h.at[kind]+1, 0
	}
	return i, id
}

// size is a bin's, as --bin has it.
func (c *packInput) size() string { return fmt.Sprintf("%sx%s", c.binQuota, c.binSM) }

// tooLarge says why no bin holds an item.
func (c *packInput) tooLarge(k pack.Kind, i plan.Item) string {
	bin := "a bin is " + c.size()
	switch {
	case k.W > c.bin.W && k.H > c.bin.H:
		return fmt.Sprintf("quota %s and sm_pct %s are larger than the bin: %s", i.Quota, i.SMPct, bin)
	case k.W > c.bin.W:
		return fmt.Sprintf("quota %s is larger than the bin: %s", i.Quota, bin)
	case k.H > c.bin.H:
		return fmt.Sprintf("sm_pct %s is larger than the bin: %s", i.SMPct, bin)
	}
	return fmt.Sprintf("mem_mib %s is more than a bin has: %s", csvfile.Format(i.MemMiB), csvfile.Format(c.binMem.MiB()))
}

// print writes the packing in the chosen form. What a form cannot hold goes to
// standard error.
func (o *packOptions) print(c *packInput, p pack.Packing) error {
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
func (c *packInput) eachItem(p pack.Packing, newBin func(), visit func(i plan.Item, id string, x, y int64)) {
	h := c.copies()
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
func (c *packInput) eachOversize(p pack.Packing, visit func(i plan.Item, id, reason string)) {
	h := c.copies()
	for _, kind := range p.Oversize {
		for range c.kinds[kind].Count {
			i, id := h.next(kind)
			visit(i, id, c.tooLarge(c.kinds[kind], i))
		}
	}
}

// writePacking writes JSON, a bin a line. There may be millions of items, so it
// is put together by hand.
func writePacking(out io.Writer, c *packInput, p pack.Packing) error {
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
func packRows(header []string, c *packInput, p pack.Packing) [][]string {
	rows := [][]string{header}
	bin := 0
	text := func(v int64, digits int) string { return string(plan.AppendDecimal(nil, v, digits)) }
	c.eachItem(p, func() { bin++ }, func(i plan.Item, id string, x, y int64) {
		rows = append(rows, []string{strconv.Itoa(bin), id, text(x, c.quota), text(y, c.sm), i.Quota.String(), i.SMPct.String()})
	})
	return rows
}

func printPacking(w io.Writer, c *packInput, p pack.Packing) error {
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
func pictured(c *packInput, p pack.Packing) picture.Bins {
	out := picture.Bins{Headline: cli.Count(p.Used, "bin") + " of " + c.size(), Summary: packSummary(p)}
	h := c.copies()
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
	if p.Used == 0 && len(p.Oversize) > 0 {
		return "0 bins used: no item fits a bin."
	}
	text := fmt.Sprintf("%s used; at least %d needed (%s bound)", cli.Count(p.Used, "bin"), p.Bound, p.BoundMethod)
	if gap := p.Used - p.Bound; gap > 0 {
		return fmt.Sprintf("%s: gap at most %d, %s.", text, gap, number.Percent(float64(gap)/float64(p.Bound), 1))
	}
	return text + ": no packing uses fewer."
}
