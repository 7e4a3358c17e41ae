package lower

import (
	"regexp"
	"strconv"
)

// dtypes matches the names of TVM's types: a kind, its bits and, for vectors, the number of lanes; for
// example float32, uint8 or float16x4. The two forms for 8-bit floats are those of TVM 0.15 and of later
// versions.
var dtypes = regexp.MustCompile(`^(?:(?:int|uint|float|bfloat)([0-9]{1,3})(?:_e[0-9]m[0-9][a-z0-9]*?)?|e[0-9]m[0-9]_float(8))(?:x([0-9]{1,4}))?$`)

// elementSize returns the size in bytes of an element in TVM's memory, where each element takes whole
// bytes. It returns 0 for an unknown name and for sizes that TVM's executor rejects.
func elementSize(name string) int64 {
	if name == "bool" {
		return 1
	}
	m := dtypes.FindStringSubmatch(name)
	if m == nil {
		return 0
	}
	bits, _ := strconv.ParseInt(m[1]+m[2], 10, 64) // one of the two is empty
	if m[3] != "" {
		lanes, _ := strconv.ParseInt(m[3], 10, 64)
		bits *= lanes
	}
	if bits%8 != 0 && bits != 1 && bits != 4 {
		return 0
	}
	return (bits + 7) / 8
}
