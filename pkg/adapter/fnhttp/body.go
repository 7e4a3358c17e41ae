package fnhttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
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

// BatchHeader tells a function how many requests one invocation stands for.
// Under http and openfaas nothing else does.
const BatchHeader = "X-Gfaas-Batch"

// bodyError says that a body cannot be sent under a contract: it is the
// caller's to change, and no other instance would take it.
type bodyError struct {
	Contract string
	Batch    int
	Err      error
}

func (e *bodyError) Error() string {
	return fmt.Sprintf("the body cannot stand for %d requests under the contract %s: %v", e.Batch, e.Contract, e.Err)
}

func (e *bodyError) Unwrap() error { return e.Err }

// Batched is an invocation that stands for n requests like body, which stands
// for one. Each contract has its own place for that:
//
//	http, openfaas   the header X-Gfaas-Batch; the body is the same
//	kserve-v2        the first dimension of every input, with its data n times
//	openai           "n": so many answers to one conversation
//
// The header is there under every contract. With n 1 any body will do. Errors
// are *bodyError.
func Batched(contract string, body []byte, n int) (http.Header, []byte, error) {
	header := http.Header{BatchHeader: {strconv.Itoa(n)}}
	place := map[string]func(map[string]json.RawMessage, int) error{KServeV2: batchTensors, OpenAI: batchChoices}[contract]
	if n == 1 || place == nil {
		return header, body, nil
	}
	var object map[string]json.RawMessage
	err := json.Unmarshal(body, &object)
	if err == nil && object == nil {
		err = fmt.Errorf("expected a JSON object")
	}
	if err == nil {
		err = place(object, n)
	}
	if err == nil {
		body, err = json.Marshal(object)
	}
	if err != nil {
		return nil, nil, &bodyError{contract, n, err}
	}
	return header, body, nil
}

// batchTensors makes each input n rows of its one.
func batchTensors(object map[string]json.RawMessage, n int) error {
	var inputs []map[string]json.RawMessage
	if err := json.Unmarshal(object["inputs"], &inputs); err != nil || len(inputs) == 0 {
		return fmt.Errorf("inputs: expected a list of tensors")
	}
	for i, input := range inputs {
		if err := batchTensor(input, n); err != nil {
			return fmt.Errorf("inputs[%d] %s: %w", i, input["name"], err)
		}
	}
	text, err := json.Marshal(inputs)
	object["inputs"] = text
	return err
}

func batchTensor(input map[string]json.RawMessage, n int) error {
	var shape []int64
	if err := json.Unmarshal(input["shape"], &shape); err != nil || len(shape) == 0 {
		return fmt.Errorf("shape: expected a list of dimensions, the batch first")
	}
	if shape[0] != 1 {
		return fmt.Errorf("shape: the first dimension is %d, expected 1, for the batch to take its place", shape[0])
	}
	var data []json.RawMessage
	if err := json.Unmarshal(input["data"], &data); err != nil || len(data) == 0 {
		return fmt.Errorf("data: expected a list in the body itself, so that it can be repeated")
	}
	// Flat or nested, row-major order puts whole rows one after the other.
	shape[0] = int64(n)
	var text bytes.Buffer
	text.WriteByte('[')
	for i := range n * len(data) {
		if i > 0 {
			text.WriteByte(',')
		}
		text.Write(data[i%len(data)])
	}
	text.WriteByte(']')
	input["data"] = text.Bytes()
	first, err := json.Marshal(shape)
	input["shape"] = first
	return err
}

// batchChoices asks for n answers.
func batchChoices(object map[string]json.RawMessage, n int) error {
	var messages []json.RawMessage
	if err := json.Unmarshal(object["messages"], &messages); err != nil || len(messages) == 0 {
		return fmt.Errorf("messages: expected a list")
	}
	if had, ok := object["n"]; ok && string(had) != "1" {
		return fmt.Errorf("n: %s, expected none, for the batch to take its place", had)
	}
	object["n"] = json.RawMessage(strconv.Itoa(n))
	return nil
}
