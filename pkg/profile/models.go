package profile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/lists"
)

// Models returns the GPU models on which rows were measured, sorted.
func Models(rows []Row) []string {
	models := lists.Distinct(rows, func(r Row) string { return r.GPU })
	return slices.DeleteFunc(models, func(model string) bool { return model == "" })
}

// config identifies a row within one GPU model.
type config struct {
	function string
	Config
}

// On returns the rows that apply to a GPU model, in their order. For each configuration of a function that is the row
// measured on the model, or else the row without a model. A row of another model never applies. If the model is unknown
// (""), all rows apply.
func On(rows []Row, model string) []Row {
	if model == "" {
		return rows
	}
	exact := map[config]bool{}
	for _, r := range rows {
		if r.GPU == model {
			exact[config{r.Function, r.Config}] = true
		}
	}
	return lists.Filter(rows, func(r Row) bool {
		return r.GPU == model || r.GPU == "" && !exact[config{r.Function, r.Config}]
	})
}

// Index finds rows by function, GPU model and configuration.
type Index map[config][]Row

// NewIndex returns an index of rows.
func NewIndex(rows []Row) Index {
	x := Index{}
	for _, r := range rows {
		at := config{r.Function, r.Config}
		x[at] = append(x[at], r)
	}
	return x
}

// On returns the rows of a function's configuration that apply to a GPU model, as the function On does: at most one,
// unless the model is unknown ("").
func (x Index) On(function string, at Config, model string) []Row {
	return On(x[config{function, at}], model)
}

// Find returns the row of a function's configuration that applies to a GPU model, or false if there is none. If the model
// is unknown ("") and the rows of several models differ, it fails with an *AmbiguousError.
func (x Index) Find(function string, at Config, model string) (row Row, found bool, err error) {
	rows := x.On(function, at, model)
	if len(rows) == 0 {
		return Row{}, false, nil
	}
	for _, r := range rows[1:] {
		if figures(r) != figures(rows[0]) {
			return Row{}, false, &AmbiguousError{Function: function, Config: at, Models: Models(rows)}
		}
	}
	return rows[0], true, nil
}

// figures returns the row's measurements without its model and line.
func figures(r Row) Row {
	r.GPU, r.Line = "", 0
	return r
}

// Differ reports whether the applicable rows depend on the GPU model.
func Differ(rows []Row) bool {
	models := Models(rows)
	var first map[Row]bool
	for _, model := range models {
		all := map[Row]bool{}
		for _, r := range On(rows, model) {
			all[figures(r)] = true
		}
		if first == nil {
			first = all
		}
		if !maps.Equal(all, first) {
			return true
		}
	}
	return false
}

// AmbiguousError reports a configuration whose measurements depend on the GPU model, which is unknown.
type AmbiguousError struct {
	Function string
	Config
	Models []string
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%s at sm_pct %s, quota %s, batch %d was measured on several GPU models (%s), and the model of its GPU is unknown",
		e.Function, csvfile.Format(e.SMPct), csvfile.Format(e.Quota), e.Batch, Quoted(e.Models))
}

// Quoted returns a list of quoted names for a message.
func Quoted(names []string) string {
	return strings.Join(lists.Map(names, csvfile.Quote), ", ")
}

// SplitByModel returns the rows so that at most one row of a configuration applies to each of the models. A row
// without a model whose configuration has rows with one becomes a row for each remaining model. If all models are
// unknown (""), the rows are unchanged.
func SplitByModel(rows []Row, models []string) []Row {
	if !slices.ContainsFunc(models, func(m string) bool { return m != "" }) {
		return rows
	}
	of := map[config]map[string]bool{}
	for _, r := range rows {
		at := config{r.Function, r.Config}
		if of[at] == nil {
			of[at] = map[string]bool{}
		}
		if r.GPU != "" {
			of[at][r.GPU] = true
		}
	}
	var out []Row
	for _, r := range rows {
		named := of[config{r.Function, r.Config}]
		if r.GPU != "" || len(named) == 0 {
			out = append(out, r)
			continue
		}
		for _, model := range models {
			if model != "" && !named[model] {
				r.GPU = model
				out = append(out, r)
			}
		}
	}
	return out
}

// Lack is a function without a row for a GPU model, and the models for which it has rows.
type Lack struct {
	Function string
	Models   []string
}

// Lacking returns the functions that have rows, but none that applies to the model, in the order of the rows.
func Lacking(rows []Row, model string) []Lack {
	holds := map[string]bool{}
	for _, r := range On(rows, model) {
		holds[r.Function] = true
	}
	models := map[string][]Row{}
	var names []string
	for _, r := range rows {
		if holds[r.Function] {
			continue
		}
		if models[r.Function] == nil {
			names = append(names, r.Function)
		}
		models[r.Function] = append(models[r.Function], r)
	}
	return lists.Map(names, func(name string) Lack { return Lack{name, Models(models[name])} })
}
