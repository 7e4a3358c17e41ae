// Package page provides the common parts of the HTML pages that commands write: a style for screens, phones and
// paper, light and dark, and a table template. A page is self-contained.
package page

import (
	_ "embed" // the style
	"html/template"
	"strings"
)

//go:embed style.css
var style string

//go:embed filter.js
var filterScript string

// Template parses the template of a page. In it, {{style}} is the common style and {{template "table" .}} renders a
// Table. {{template "filter"}} renders an input that filters the rows of all tables of the page; it needs
// {{template "filter-script"}} behind the last table.
func Template(text string, more template.FuncMap) *template.Template {
	t := template.New("").Funcs(template.FuncMap{
		"style":        func() template.CSS { return template.CSS(style) },
		"isWord":       func(head string) bool { return words[head] },
		"lower":        strings.ToLower,
		"filterScript": func() template.JS { return template.JS(filterScript) },
	}).Funcs(more)
	return template.Must(template.Must(t.Parse(table)).Parse(text))
}

// Table is a table as on a terminal, with headings in capitals. A cell that contains a picture is template.HTML.
type Table struct {
	Head []string
	Rows [][]any
}

// TableOf returns a table from rows of text, headings first.
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

// words contains the headings of columns without numbers.
var words = map[string]bool{
	"FUNCTION": true, "CONFIGURATIONS": true, "GPU": true, "INSTANCE": true, "WHY": true, "CHANGE": true, "SHARED WEIGHTS": true,
}

const table = `{{define "table" -}}
<div class="scroll"><table>
<tr>{{range .Head}}<th{{if isWord .}} class="word"{{end}}>{{lower .}}</th>{{end}}</tr>
{{range .Rows -}}
<tr>{{range $i, $cell := .}}<td{{if isWord (index $.Head $i)}} class="word"{{end}}>{{$cell}}</td>{{end}}</tr>
{{end -}}
</table></div>
{{end}}
{{define "filter" -}}
<p class="filter" hidden="hidden"><label>Filter rows: <input type="search" placeholder="function, instance or GPU"/></label> <output></output></p>
{{end}}
{{define "filter-script" -}}
<script>
{{filterScript}}</script>
{{end}}`
