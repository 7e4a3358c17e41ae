package function

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/textfile"
	"github.com/gfaas/gfaas/pkg/yamlfile"
)

// The largest sizes of a function file and of a line, in bytes.
const (
	maxSize = 16 << 20
	maxLine = 1 << 20
)

// Parse reads one or more functions from documents separated by ---. name is the path of the file: error messages
// contain it, and its folder becomes the functions' Dir. Faults have the form FILE:LINE: key: fault, expectation. Unknown and
// repeated keys, and two functions with a common name or alias, are faults too.
func Parse(r io.Reader, name string) ([]Function, error) {
	data, err := textfile.ReadAll(r, &textfile.Checker{Name: name, Is: "YAML", Line: maxLine, Total: maxSize})
	if err != nil {
		return nil, err
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var functions []Function
	lines, names := map[string]int{}, nameSet{}
	for {
		var doc yaml.Node
		err := yamlfile.Decode(dec, &doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, yamlfile.Fault(data, name, err)
		}
		if empty(&doc) {
			continue
		}
		p := parser{file: name}
		fn, at := p.function(doc.Content[0])
		if p.fault != nil {
			return nil, p.fault
		}
		if first, twice := lines[fn.Name]; twice {
			return nil, &textfile.Fault{File: name, Line: at["name"], Where: "name",
				What: fmt.Sprintf("function %q is on line %d already, expected each name once", fn.Name, first)}
		}
		lines[fn.Name] = at["name"]
		if err := names.add(&fn); err != nil {
			where := "name"
			if clash, ok := errors.AsType[*ClashError](err); ok && (clash.Name != fn.Name || clash.Other == fn.Name) {
				where = "aliases"
			}
			return nil, &textfile.Fault{File: name, Line: at[where], Where: where, What: err.Error()}
		}
		fn.Dir = filepath.Dir(name)
		functions = append(functions, fn)
	}
	if len(functions) == 0 {
		return nil, &textfile.Fault{File: name, Line: 1, What: "the file has no function, expected at least the keys name and image, or name and command"}
	}
	return functions, nil
}

// empty reports whether a document has no contents.
func empty(doc *yaml.Node) bool {
	return len(doc.Content) == 0 || doc.Content[0].Kind == yaml.ScalarNode && doc.Content[0].Tag == "!!null"
}
