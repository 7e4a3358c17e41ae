package picture

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/number"
)

// Bins is a packing of rectangles into bins of the same size.
type Bins struct {
	Headline, Summary string
	Bins              []Bin
	Unplaced          []string // items that fit into no bin, with reasons
}

// Bin is a group of bins with the same content.
type Bin struct {
	Times int
	Boxes []Box
}

// Box is a packed rectangle in fractions of its bin. Boxes of the same kind have the same colour.
type Box struct {
	X, Y, W, H float64
	Kind       int
	Label      []string
}

// SVG draws a packing. The result is deterministic.
func (b Bins) SVG() []byte {
	pg := &page{panels: make([]Layout, len(b.Bins)), bare: true}
	pg.arrange()
	w := &pg.out
	w.y = margin + titleSize
	w.title(b.Headline, pg.width-2*margin)
	w.paragraph(b.Summary, pg.width-2*margin, textSize, grey)
	number := 1
	for i, bin := range b.Bins {
		column := i % pg.columns
		if column == 0 && i > 0 {
			w.y += headHeight + pg.side + gap
		}
		name := fmt.Sprintf("bin %d", number)
		if bin.Times > 1 {
			name = fmt.Sprintf("%d bins like this", bin.Times)
		}
		number += bin.Times
		pg.bin(bin, name, margin+float64(column)*pg.pitch(), w.y)
	}
	if len(b.Bins) > 0 {
		w.y += headHeight + pg.side + gap
	}
	for _, u := range b.Unplaced {
		w.paragraph("Not placed: "+u, pg.width-2*margin, textSize, alarm)
	}
	w.paragraph("Each square is a bin. Horizontal axis: quota. Vertical axis: SMs. Hatched areas are free; the percentage is the filled part.", pg.width-2*margin, smallSize, grey)
	return w.document(pg.width, w.y, b.Summary)
}

// bin draws a bin. Its square has the upper left corner x, y+headHeight.
func (pg *page) bin(b Bin, name string, x, y float64) {
	w := &pg.out
	used := 0.0
	for _, box := range b.Boxes {
		used += box.W * box.H
	}
	w.text(x, y+16, smallSize, "start", ink, `font-weight="600"`, clip(name, pg.side-40, smallSize))
	w.text(x+pg.side, y+16, smallSize, "end", grey, "", number.Percent(used, 0))
	y += headHeight
	w.rect(x, y, pg.side, pg.side, "url(#free)", outline)
	for _, box := range b.Boxes {
		left, top, width, height := x+box.X*pg.side, y+(1-box.Y-box.H)*pg.side, box.W*pg.side, box.H*pg.side
		w.group(fmt.Sprint(box.Label))
		w.tile(left, top, width, height, box.Kind, edge)
		pg.label(left, top, width, height, box.Kind, [][]string{box.Label, box.Label[:1]})
		w.endGroup()
	}
}
