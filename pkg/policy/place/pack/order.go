package pack

// order says which rectangles come first.
type order int

const (
	byArea     order = iota
	bySides          // the larger sum of sides, each relative to the bin's
	byWidth          // the wider, then the taller
	byLongSide       // the larger of the two sides, each relative to the bin's
)

// key is larger for what comes earlier, and grows with either side.
func (o order) key(w, h int64, bin Bin) int64 {
	switch o {
	case bySides:
		return w*bin.H + h*bin.W
	case byWidth:
		return w*(bin.H+1) + h
	case byLongSide:
		return max(w*bin.H, h*bin.W)
	}
	return w * h
}
