package fnhttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/gfaas/gfaas/pkg/instance"
)

const (
	maxMetadata = 1 << 20  // bytes of what a function says of itself
	maxElements = 16 << 20 // of a tensor that is made up
)

// DefaultBody is a body that stands for one request, to an instance of a function
// that nothing is known of but its contract: nothing under http
// and openfaas; tensors of zeros, of the shapes that the model's metadata
// names, under kserve-v2 (dimensions that may be anything are 1); and a short
// conversation with the first model under openai.
func (c *Client) DefaultBody(ctx context.Context, r instance.Record) ([]byte, error) {
	address, function := r.Handle.Address, r.Function
	switch r.Contract {
	case KServeV2:
		var model struct{ Inputs []tensor }
		path := "/v2/models/" + url.PathEscape(function)
		if err := c.metadata(ctx, address, path, &model); err != nil {
			return nil, err
		}
		body, err := zeros(model.Inputs)
		if err != nil {
			return nil, fmt.Errorf("GET %s: %w", path, err)
		}
		return body, nil
	case OpenAI:
		var models struct{ Data []struct{ ID string } }
		if err := c.metadata(ctx, address, "/v1/models", &models); err != nil {
			return nil, err
		}
		name := function
		if len(models.Data) > 0 {
			name = models.Data[0].ID
		}
		return json.Marshal(map[string]any{
			"model": name, "max_tokens": 16,
			"messages": []map[string]string{{"role": "user", "content": "Count from one to ten."}},
		})
	}
	return nil, nil
}

// metadata reads what a function says of itself.
func (c *Client) metadata(ctx context.Context, address, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxMetadata))
	if err != nil {
		return err
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("GET %s: status %s", path, answer.Status)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

// tensor is an input of a model, as the metadata and a request have it.
type tensor struct {
	Name     string          `json:"name"`
	Shape    []int64         `json:"shape"`
	Datatype string          `json:"datatype"`
	Data     json.RawMessage `json:"data"`
}

// zeroOf is an element of each kind of datatype.
func zeroOf(datatype string) string {
	switch {
	case datatype == "BOOL":
		return "false"
	case datatype == "BYTES":
		return `""`
	}
	return "0"
}

// zeros is a request with every input all zeros.
func zeros(inputs []tensor) ([]byte, error) {
	if len(inputs) == 0 {
		return nil, errors.New("the model names no inputs")
	}
	for i, input := range inputs {
		elements := int64(1)
		for d, size := range input.Shape {
			if size < 0 {
				input.Shape[d] = 1
			}
			if size = input.Shape[d]; size < 1 || size > maxElements/elements {
				return nil, fmt.Errorf("no data can be made up for input %s of shape %v", input.Name, input.Shape)
			}
			elements *= size
		}
		list := strings.Repeat(zeroOf(input.Datatype)+",", int(elements))
		inputs[i].Data = json.RawMessage("[" + strings.TrimSuffix(list, ",") + "]")
	}
	return json.Marshal(map[string]any{"inputs": inputs})
}
