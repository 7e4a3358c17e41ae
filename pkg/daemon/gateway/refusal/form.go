package refusal

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
)

// Form is a JSON format of the gateway's own errors. Each API has its own.
type Form uint8

// The forms.
const (
	Native    Form = iota // {"error": {"code", "message", "hint"}}, as in all gfaas programs
	OpenAI                // {"error": {"message", "type", "code", "param"}}
	Anthropic             // {"type": "error", "error": {"type", "message"}, "request_id"}
	Ollama                // {"error": "message", "code", "hint"}
)

// FormOf returns the form of errors in answers to requests for path.
func FormOf(path string) Form {
	rest, v1 := strings.CutPrefix(path, "/v1/")
	switch {
	case strings.HasPrefix(path, "/api/"):
		return Ollama
	case !v1:
		return Native
	case rest == "messages" || strings.HasPrefix(rest, "messages/"):
		return Anthropic
	}
	return OpenAI
}

// requestID maps a form to the header in which client libraries expect the ID of a request. It is empty if there is
// none.
var requestID = [...]string{OpenAI: "X-Request-Id", Anthropic: "Request-Id", Ollama: ""}

// kinds maps statuses to the field type of errors in the forms OpenAI and Anthropic. It lists only statuses whose types
// differ from the defaults in kind.
var kinds = map[int]struct{ openAI, anthropic string }{
	http.StatusUnauthorized:          {"authentication_error", "authentication_error"},
	http.StatusForbidden:             {"permission_error", "permission_error"},
	http.StatusNotFound:              {"invalid_request_error", "not_found_error"},
	http.StatusRequestTimeout:        {"invalid_request_error", "timeout_error"},
	http.StatusRequestEntityTooLarge: {"invalid_request_error", "request_too_large"},
	http.StatusTooManyRequests:       {"rate_limit_error", "rate_limit_error"},
	http.StatusServiceUnavailable:    {"server_error", "overloaded_error"},
	http.StatusGatewayTimeout:        {"server_error", "timeout_error"},
}

// kind returns the field type of an error with the status, in the forms OpenAI and Anthropic.
func kind(status int) (openAI, anthropic string) {
	k, known := kinds[status]
	switch {
	case known:
		return k.openAI, k.anthropic
	case status < http.StatusInternalServerError:
		return "invalid_request_error", "invalid_request_error"
	}
	return "server_error", "api_error"
}

// openAICodes maps codes of the gateway to the codes of OpenAI's API that replace them in the form OpenAI.
var openAICodes = map[string]string{
	NoFunction: "model_not_found",
	QueueFull:  "rate_limit_exceeded",
}

// Body returns the body of an answer with the error, including a line feed at its end. id is the ID of the call.
func (e *Error) Body(f Form, id string) []byte {
	openAI, anthropic := kind(e.HTTPStatus())
	var out any
	switch f {
	case OpenAI:
		type text struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Code    string  `json:"code"`
			Param   *string `json:"param"`
			Hint    string  `json:"hint,omitempty"`
		}
		it := text{e.Message, openAI, cmp.Or(openAICodes[e.Code], e.Code), nil, e.Hint}
		if e.Code == NoFunction {
			it.Param = new("model")
		}
		out = struct {
			Error text `json:"error"`
		}{it}
	case Anthropic:
		type text struct {
			Type    string `json:"type"`
			Message string `json:"message"`
			Hint    string `json:"hint,omitempty"`
		}
		out = struct {
			Type      string `json:"type"`
			Error     text   `json:"error"`
			RequestID string `json:"request_id"`
		}{"error", text{anthropic, e.Message, e.Hint}, id}
	case Ollama:
		out = struct {
			Error string `json:"error"`
			Code  string `json:"code"`
			Hint  string `json:"hint,omitempty"`
		}{e.Message, e.Code, e.Hint}
	case Native:
		type text struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Hint    string `json:"hint"`
		}
		out = struct {
			Error text `json:"error"`
		}{text{e.Code, e.Message, e.Hint}}
	}
	body, err := json.Marshal(out)
	if err != nil { // impossible: all fields are strings
		body = nil
	}
	return append(body, '\n')
}
