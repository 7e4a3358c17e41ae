package fnhttp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

const (
	maxMetadata = 1 << 20  // size limit of metadata that a function returns, in bytes
	maxElements = 16 << 20 // size limit of a generated tensor, in elements
)

// DefaultBody returns a valid body for one request to an instance, given only the contract of
// its function. The body depends on the contract:
//
//	http, openfaas   empty
//	kserve-v2        zeros for each input in the model's metadata; a dimension of variable size (-1) has size 1
//	openai           a short conversation with the first model that the function lists
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

// metadata decodes the JSON that a function returns for a GET of path.
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

// tensor is an input of a model, as in the metadata and in a request.
type tensor struct {
	Name     string          `json:"name"`
	Shape    []int64         `json:"shape"`
	Datatype string          `json:"datatype"`
	Data     json.RawMessage `json:"data"`
}

// zeros returns a request with all elements of all inputs zero.
func zeros(inputs []tensor) ([]byte, error) {
	if len(inputs) == 0 {
		return nil, errors.New("the model has no inputs")
	}
	for i, input := range inputs {
		elements := int64(1)
		for d, size := range input.Shape {
			if size < 0 {
				input.Shape[d] = 1
			}
			if size = input.Shape[d]; size < 1 || size > maxElements/elements {
				return nil, fmt.Errorf("cannot generate data for input %s of shape %v", input.Name, input.Shape)
			}
			elements *= size
		}
		zero := cmp.Or(map[string]string{"BOOL": "false", "BYTES": `""`}[input.Datatype], "0")
		list := strings.Repeat(zero+",", int(elements))
		inputs[i].Data = json.RawMessage("[" + strings.TrimSuffix(list, ",") + "]")
	}
	return json.Marshal(map[string]any{"inputs": inputs})
}

// BatchHeader is the header with the number of requests that one invocation stands for. Under
// http and openfaas, the body does not contain this number.
const BatchHeader = "X-Gfaas-Batch"

// bodyError reports that a body cannot be batched under a contract. A retry on another instance
// would fail as well; the caller must change the body.
type bodyError struct {
	Contract string
	Batch    int
	Err      error
}

func (e *bodyError) Error() string {
	return fmt.Sprintf("cannot batch the body as %d requests under the contract %s: %v", e.Batch, e.Contract, e.Err)
}

func (e *bodyError) Unwrap() error { return e.Err }

// Batched returns the headers and the body of an invocation that stands for n requests,
// given the body of one. The contract determines how n is encoded:
//
//	http, openfaas   only in the header X-Gfaas-Batch; the body is unchanged
//	kserve-v2        as the first dimension of every input, with its data repeated n times
//	openai           as "n", the number of answers to one conversation
//
// The header is set under every contract. If n is 1, Batched returns the body unchanged and
// does not check it. Errors are of type *bodyError.
func Batched(contract string, body []byte, n int) (http.Header, []byte, error) {
	header := http.Header{BatchHeader: {strconv.Itoa(n)}}
	batch := map[string]func(map[string]json.RawMessage, int) error{KServeV2: batchTensors, OpenAI: batchChoices}[contract]
	if n == 1 || batch == nil {
		return header, body, nil
	}
	var object map[string]json.RawMessage
	err := json.Unmarshal(body, &object)
	if err == nil && object == nil {
		err = fmt.Errorf("expected a JSON object")
	}
	if err == nil {
		err = batch(object, n)
	}
	if err == nil {
		body, err = json.Marshal(object)
	}
	if err != nil {
		return nil, nil, &bodyError{contract, n, err}
	}
	return header, body, nil
}

// batchTensors repeats the single row of each input n times.
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
		return fmt.Errorf("shape: the first dimension is %d, expected 1, which becomes the size of the batch", shape[0])
	}
	var data []json.RawMessage
	if err := json.Unmarshal(input["data"], &data); err != nil || len(data) == 0 {
		return fmt.Errorf("data: expected a list, which the batch repeats")
	}
	// The data is in row-major order, flat or nested, so repeating the list repeats the row.
	repeated, err := json.Marshal(slices.Repeat(data, n))
	if err != nil {
		return err
	}
	input["data"] = repeated
	shape[0] = int64(n)
	input["shape"], err = json.Marshal(shape)
	return err
}

// batchChoices sets "n", the number of answers to the conversation.
func batchChoices(object map[string]json.RawMessage, n int) error {
	var messages []json.RawMessage
	if err := json.Unmarshal(object["messages"], &messages); err != nil || len(messages) == 0 {
		return fmt.Errorf("messages: expected a list")
	}
	if value, ok := object["n"]; ok && string(value) != "1" {
		return fmt.Errorf("n: %s, expected no value, because n becomes the size of the batch", value)
	}
	object["n"] = json.RawMessage(strconv.Itoa(n))
	return nil
}

// maxBuffered is the number of bytes of a body that are read before the request is sent. A
// shorter body can be sent again if an instance refuses it, and its length is known, which
// simple servers need. A longer body is streamed; its length is known only if it is from a file.
const maxBuffered = 16 << 20

// Body is the body of a call. The zero value is empty.
type Body struct {
	head   []byte
	tail   io.Reader // the bytes after head; nil if head is the whole body
	length int64     // length of the whole body if tail reads a file; otherwise 0
}

// ReadBody reads up to maxBuffered bytes of the body from in; the rest is streamed later.
// It returns when ctx ends, even if a read still blocks.
func ReadBody(ctx context.Context, in io.Reader) (Body, error) {
	type result struct {
		body Body
		err  error
	}
	done := make(chan result, 1)
	go func() {
		head, err := io.ReadAll(io.LimitReader(in, maxBuffered))
		b := Body{head: head}
		if len(head) == maxBuffered {
			b.tail = struct{ io.Reader }{in} // without a Close method, so that the HTTP client does not close the input
			if unread := remaining(in); unread > 0 {
				b.tail, b.length = io.LimitReader(in, unread), int64(len(head))+unread
			}
		}
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		return r.body, r.err
	case <-ctx.Done():
		return Body{}, ctx.Err()
	}
}

// remaining returns the number of unread bytes of a regular file, and 0 for other readers.
func remaining(in io.Reader) int64 {
	f, ok := in.(*os.File)
	if !ok {
		return 0
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	return info.Size() - at
}

// Call returns a call with this body and headers. The function reread returns the body from
// its start; it is nil if the body can be read only once.
func (b Body) Call(header http.Header) (c ports.Call, reread func() io.Reader) {
	if b.tail == nil {
		reread = b.Reader
	}
	return ports.Call{Header: b.Sized(header), Body: b.Reader()}, reread
}

// Sized returns the headers with a Content-Length for a streamed body of known length. A body
// without a tail needs none: Reader returns a *bytes.Reader, whose length net/http determines.
func (b Body) Sized(header http.Header) http.Header {
	if b.length > 0 && header.Get("Content-Length") == "" {
		header = header.Clone()
		header.Set("Content-Length", strconv.FormatInt(b.length, 10))
	}
	return header
}

// Reader returns the body from its start. The tail of a long body can be read only once.
func (b Body) Reader() io.Reader {
	if b.tail == nil {
		return bytes.NewReader(b.head)
	}
	return io.MultiReader(bytes.NewReader(b.head), b.tail)
}
