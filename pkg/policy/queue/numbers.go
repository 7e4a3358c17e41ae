package queue

// Numbers assigns numbers to function names, since a policy refers to functions by number. A new
// name gets the smallest free number. The zero value is empty and ready to use.
type Numbers struct {
	numbers map[string]int32
	names   []string // by number; empty for free ones
}

// Of returns the number of a name, and assigns one if the name is new.
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

// Name returns the name for a number, or "" if the number is free.
func (n *Numbers) Name(number int32) string {
	if number < 0 || int(number) >= len(n.names) {
		return ""
	}
	return n.names[number]
}

// Forget frees a number after a Forget action.
func (n *Numbers) Forget(number int32) {
	if name := n.Name(number); name != "" {
		delete(n.numbers, name)
		n.names[number] = ""
	}
}
