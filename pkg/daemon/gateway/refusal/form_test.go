package refusal

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestForms checks the status, the body and the headers of errors in each form.
func TestForms(t *testing.T) {
	for _, c := range []struct {
		path   string
		err    *Error
		status int
		body   string
		header map[string]string // "" means that the header must be absent
	}{
		{"/function/f", UnknownFunction("f"), 404, `{"error":{"code":"no-function","message":"no such function: f","hint":"'gfaas ls' lists the applied functions"}}`,
			map[string]string{"Gfaas-Reason": "no-function", "X-Request-Id": "", "Request-Id": "", "Retry-After": "", "X-Should-Retry": ""}},
		{"/function/f/v1/messages", &Error{Code: QueueTimeout, Message: "late"}, 504, `{"error":{"code":"queue-timeout","message":"late","hint":""}}`,
			map[string]string{"X-Should-Retry": "false", "Retry-After": ""}},
		{"/v1", &Error{Code: NoPath, Message: "no"}, 404, `{"error":{"code":"no-path","message":"no","hint":""}}`, nil},

		{"/v1/chat/completions", UnknownFunction("f"), 404,
			`{"error":{"message":"no such function: f","type":"invalid_request_error","code":"model_not_found","param":"model","hint":"'gfaas ls' lists the applied functions"}}`,
			map[string]string{"Gfaas-Reason": "no-function", "X-Request-Id": "id", "Request-Id": ""}},
		{"/v1/x", &Error{Code: QueueFull, Message: "full", Retry: 1500 * time.Millisecond}, 429,
			`{"error":{"message":"full","type":"rate_limit_error","code":"rate_limit_exceeded","param":null}}`,
			map[string]string{"Gfaas-Reason": "queue-full", "Retry-After": "2", "Retry-After-Ms": "1500", "X-Should-Retry": ""}},
		{"/v1/x", &Error{Code: Busy, Message: "busy", Retry: time.Hour}, 503, `{"error":{"message":"busy","type":"server_error","code":"busy","param":null}}`,
			map[string]string{"Retry-After": "60", "Retry-After-Ms": "60000", "X-Should-Retry": ""}},
		{"/v1/x", &Error{Code: Busy, Message: "busy", Retry: time.Microsecond}, 503, `{"error":{"message":"busy","type":"server_error","code":"busy","param":null}}`,
			map[string]string{"Retry-After": "1", "Retry-After-Ms": "1"}},
		{"/v1/x", &Error{Code: StartFailed, Message: "failed"}, 502, `{"error":{"message":"failed","type":"server_error","code":"start-failed","param":null}}`,
			map[string]string{"X-Should-Retry": "false"}},
		{"/v1/x", &Error{Code: QueueTimeout, Message: "late"}, 504, `{"error":{"message":"late","type":"server_error","code":"queue-timeout","param":null}}`,
			map[string]string{"X-Should-Retry": "false"}},
		{"/v1/x", &Error{Code: InstanceDied, Message: "died"}, 502, `{"error":{"message":"died","type":"server_error","code":"instance-died","param":null}}`,
			map[string]string{"X-Should-Retry": ""}},
		{"/v1/x", &Error{Code: Auth, Message: "who", Challenge: "Basic"}, 401, `{"error":{"message":"who","type":"authentication_error","code":"auth","param":null}}`,
			map[string]string{"WWW-Authenticate": "Basic"}},
		{"/v1/x", &Error{Code: Auth, Message: "no", Status: http.StatusForbidden}, 403, `{"error":{"message":"no","type":"permission_error","code":"auth","param":null}}`, nil},
		{"/v1/x", Bad("a \"b\"\n"), 400, `{"error":{"message":"a \"b\"\n","type":"invalid_request_error","code":"bad-request","param":null}}`, nil},
		{"/v1/messages_x", Bad("a"), 400, `{"error":{"message":"a","type":"invalid_request_error","code":"bad-request","param":null}}`, nil},

		{"/v1/messages", UnknownFunction("f"), 404,
			`{"type":"error","error":{"type":"not_found_error","message":"no such function: f","hint":"'gfaas ls' lists the applied functions"},"request_id":"id"}`,
			map[string]string{"Gfaas-Reason": "no-function", "Request-Id": "id", "X-Request-Id": ""}},
		{"/v1/messages/count_tokens", &Error{Code: QueueFull, Message: "full", Retry: time.Second}, 429,
			`{"type":"error","error":{"type":"rate_limit_error","message":"full"},"request_id":"id"}`,
			map[string]string{"Gfaas-Reason": "queue-full", "Retry-After": "1", "Retry-After-Ms": "1000"}},
		{"/v1/messages", &Error{Code: Busy, Message: "busy"}, 503, `{"type":"error","error":{"type":"overloaded_error","message":"busy"},"request_id":"id"}`, nil},
		{"/v1/messages", &Error{Code: StartFailed, Message: "failed"}, 502, `{"type":"error","error":{"type":"api_error","message":"failed"},"request_id":"id"}`,
			map[string]string{"X-Should-Retry": "false"}},
		{"/v1/messages", &Error{Code: TooLarge, Message: "large"}, 413, `{"type":"error","error":{"type":"request_too_large","message":"large"},"request_id":"id"}`, nil},
		{"/v1/messages", &Error{Code: QueueTimeout, Message: "late"}, 504, `{"type":"error","error":{"type":"timeout_error","message":"late"},"request_id":"id"}`,
			map[string]string{"X-Should-Retry": "false"}},
		{"/v1/messages", &Error{Code: Method, Message: "no", Allow: "POST"}, 405, `{"type":"error","error":{"type":"invalid_request_error","message":"no"},"request_id":"id"}`,
			map[string]string{"Allow": "POST"}},
	} {
		w := httptest.NewRecorder()
		c.err.Write(w, FormOf(c.path), "id")
		if w.Code != c.status || w.Body.String() != c.body+"\n" || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s at %s: got %d %s, want %d %s", c.err.Code, c.path, w.Code, w.Body, c.status, c.body)
		}
		for name, want := range c.header {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s at %s: got %s %q, want %q", c.err.Code, c.path, name, got, want)
			}
		}
	}
}
