// Package page has what the pages that commands write have in common: one style,
// for screens and phones, light and dark, and for paper. A page stands alone: it
// loads nothing.
package page

import (
	_ "embed" // the style
	"html/template"
	"strings"
)

//go:embed style.css
var style string

// Template is the template of a page, in which {{style}} is the style that all
// have and {{template "table" .}} a Table.
func Template(text string, more template.FuncMap) *template.Template {
	t := template.New("").Funcs(template.FuncMap{
		"style":  func() template.CSS { return template.CSS(style) },
		"isWord": func(head string) bool { return words[head] },
		"lower":  strings.ToLower,
	}).Funcs(more)
	return template.Must(template.Must(t.Parse(table)).Parse(text))
}

// Table is a table, as those for a terminal are, the heads in capitals; what is a
// picture in it is HTML already.
type Table struct {
	Head []string
	Rows [][]any
}

// TableOf is a table of texts, the heads first.
func TableOf(rows [][]string) Table {
	t := Table{Head: rows[0]}
	for _, row := range rows[1:] {
		var cells []any
		for _, cell := range row {
			cells = append(cells, cell)
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// words are the heads of columns that are no figures.
var words = map[string]bool{
	"FUNCTION": true, "CONFIGURATIONS": true, "GPU": true, "INSTANCE": true, "WHY": true, "CHANGE": true, "OF IT SHARED WEIGHTS": true,
}

const table = `{{define "table" -}}
<div class="scroll"><table>
<tr>{{range .Head}}<th{{if isWord .}} class="word"{{end}}>{{lower .}}</th>{{end}}</tr>
{{range .Rows -}}
<tr>{{range $i, $cell := .}}<td{{if isWord (index $.Head $i)}} class="word"{{end}}>{{$cell}}</td>{{end}}</tr>
{{end -}}
</table></div>
{{end}}`
