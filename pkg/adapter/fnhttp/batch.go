package fnhttp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// BatchHeader tells a function how many requests one invocation stands for.
// Under http and openfaas nothing else does.
const BatchHeader = "X-Gfaas-Batch"

// BodyError says that a body cannot be sent under a contract: it is the
// caller's to change, and no other instance would take it.
type BodyError struct {
	Contract string
	Batch    int
	Err      error
}

func (e *BodyError) Error() string {
	return fmt.Sprintf("the body cannot stand for %d requests under the contract %s: %v", e.Batch, e.Contract, e.Err)
}

func (e *BodyError) Unwrap() error { return e.Err }

// Batched is an invocation that stands for n requests like body, which stands
// for one. Each contract has its own place for that:
//
//	http, openfaas   the header X-Gfaas-Batch; the body is the same
//	kserve-v2        the first dimension of every input, with its data n times
//	openai           "n": so many answers to one conversation
//
// The header is there under every contract. With n 1 any body will do. Errors
// are *BodyError.
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
		return nil, nil, &BodyError{contract, n, err}
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
