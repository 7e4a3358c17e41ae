package queue

// models maps functions to models. Several functions may share one model.
type models struct {
	of        []int32   // by function: its model, or none
	functions [][]int32 // by model: its functions, ascending
}

func (m *models) grow(functions int) {
	for len(m.of) < functions {
		m.of = append(m.of, none)
	}
}

// set sets the model of a function, or removes it if model is none.
func (m *models) set(f, model int32) {
	if old := m.of[f]; old != none {
		m.functions[old] = withMember(m.functions[old], f, false)
	}
	if m.of[f] = model; model != none {
		m.functions = grown(m.functions, int(model)+1)
		m.functions[model] = withMember(m.functions[model], f, true)
	}
}
