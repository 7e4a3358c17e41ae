package queue

// Numbers are the numbers of functions, by name: what drives a policy speaks of
// names, the policy of the least numbers that are free. The zero value has none.
type Numbers struct {
	numbers map[string]int32
	names   []string // by number; empty for free ones
}

// Of is the number of a name, a new one if it has none.
func (n *Numbers) Of(name string) int32 {
	if i, known := n.numbers[name]; known {
		return i
	}
	if n.numbers == nil {
		n.numbers = map[string]int32{}
	}
	i := int32(0)
	for int(i) < len(n.names) && n.names[i] != "" {
		i++
	}
	if int(i) == len(n.names) {
		n.names = append(n.names, "")
	}
	n.numbers[name], n.names[i] = i, name
	return i
}

// Name is whose a number is; empty if nobody's.
func (n *Numbers) Name(number int32) string {
	if number < 0 || int(number) >= len(n.names) {
		return ""
	}
	return n.names[number]
}

// Forget frees a number, as a Forget action says.
func (n *Numbers) Forget(number int32) {
	if name := n.Name(number); name != "" {
		delete(n.numbers, name)
		n.names[number] = ""
	}
}
