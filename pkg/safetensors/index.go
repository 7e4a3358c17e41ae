package safetensors

import (
	"bytes"
	"errors"
	"maps"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// IndexSuffix is how the name of an index ends, by Hugging Face's convention.
const IndexSuffix = ".safetensors.index.json"

// maxIndex is the largest index, in bytes.
const maxIndex = maxHeader

// Index says in which files of its folder a model's tensors are.
type Index struct {
	Shards  []string          // the files, sorted, each within the folder
	Tensors map[string]string // in which of them a tensor is
}

// ParseIndex reads an index. What is wrong with it is an *Error.
func ParseIndex(text []byte) (*Index, error) {
	if len(text) > maxIndex {
		return nil, fault("an index of %d bytes, expected at most %d", len(text), maxIndex)
	}
	p := parser{jsontext.NewDecoder(bytes.NewBuffer(text))}
	var index *Index
	err := p.object("the index", func(key string) error {
		if key != "weight_map" {
			return p.skip()
		}
		index = &Index{Tensors: map[string]string{}}
		return p.object(key, func(name string) error {
			shard, err := p.text("weight_map." + quote(name))
			if err != nil {
				return err
			}
			if !filepath.IsLocal(shard) || filepath.Base(shard) == "." {
				return &Error{Tensor: name, Reason: "is in " + quote(shard) + ", expected a file in the folder of the index"}
			}
			index.Tensors[name] = shard
			return nil
		})
	})
	if err == nil {
		err = p.end()
	}
	switch {
	case err != nil:
		return nil, asFault(err, "the index")
	case index == nil:
		return nil, fault("the index has no weight_map")
	}
	index.Shards = slices.Compact(slices.Sorted(maps.Values(index.Tensors)))
	return index, nil
}

// Select is the tensors that the index expects in a shard, of those its header
// names, in the order of their places.
func (x *Index) Select(shard string, h *Header) ([]Tensor, error) {
	var out []Tensor
	there := map[string]bool{}
	for _, t := range h.Tensors {
		if x.Tensors[t.Name] == shard {
			out = append(out, t)
			there[t.Name] = true
		}
	}
	missing := ""
	for name, in := range x.Tensors {
		if in == shard && !there[name] && (missing == "" || name < missing) {
			missing = name
		}
	}
	if len(there) < x.count(shard) {
		return nil, &Error{File: shard, Tensor: missing, Reason: "the index names it, the file has none of that name"}
	}
	return out, nil
}

// count is how many tensors the index expects in a shard.
func (x *Index) count(shard string) (n int) {
	for _, in := range x.Tensors {
		if in == shard {
			n++
		}
	}
	return n
}

// In names the file that an error of this package is about, where there are
// several.
func In(file string, err error) error {
	var wrong *Error
	if errors.As(err, &wrong) && wrong.File == "" {
		named := *wrong
		named.File = file
		return &named
	}
	return err
}
