package safetensors

import (
	"bytes"
	"errors"
	"maps"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// IndexSuffix is the suffix of an index's name, by Hugging Face's convention.
const IndexSuffix = ".safetensors.index.json"

// maxIndex is the largest index, in bytes.
const maxIndex = maxHeader

// Index maps a model's tensors to the files in its folder.
type Index struct {
	Shards  []string          // the files, sorted, each within the folder
	Tensors map[string]string // in which of them a tensor is
}

// ParseIndex parses an index. A fault is an *Error.
func ParseIndex(text []byte) (*Index, error) {
	if len(text) > maxIndex {
		return nil, fault("the index has %d bytes, expected at most %d", len(text), maxIndex)
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

// Select returns those tensors of a shard's header that the index expects in the shard, in order of their offsets.
func (x *Index) Select(shard string, h *Header) ([]Tensor, error) {
	var selected []Tensor
	names := map[string]bool{}
	for _, t := range h.Tensors {
		if x.Tensors[t.Name] == shard {
			selected = append(selected, t)
			names[t.Name] = true
		}
	}
	var missing []string
	for name, in := range x.Tensors {
		if in == shard && !names[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, &Error{File: shard, Tensor: slices.Min(missing), Reason: "the index expects it in this file, which does not contain it"}
	}
	return selected, nil
}

// In adds the file to an error of this package.
func In(file string, err error) error {
	var wrong *Error
	if errors.As(err, &wrong) && wrong.File == "" {
		named := *wrong
		named.File = file
		return &named
	}
	return err
}
