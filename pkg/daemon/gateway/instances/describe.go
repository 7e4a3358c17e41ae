package instances

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

const (
	describeTimeout = 10 * time.Second
	maxDescription  = 1 << 20 // bytes of an answer
)

// describe asks an instance of a model server for its context length, once. Servers that do not
// report it are common, so an error is only logged for debugging.
func (m *Manager) describe(i *dispatch.Instance) {
	r := i.Record()
	if r.Contract != "openai" || m.cfg.Invoker == nil {
		return
	}
	ctx, cancel := context.WithTimeout(m.life, describeTimeout)
	defer cancel()
	tokens, err := contextLength(func(path string, into any) error { return m.fetch(ctx, &r, path, into) })
	if err != nil {
		m.log.Debug("the instance reports no context length", "instance", r.ID, "err", err)
		return
	}
	i.SetContext(tokens)
}

// contextLength returns the context length of a model server: what one call may use rather than
// what the model was trained with. fetch decodes the JSON at a path.
func contextLength(fetch func(path string, into any) error) (int64, error) {
	var models struct {
		Data []struct {
			MaxModelLen   float64 `json:"max_model_len"`  // vLLM, SGLang
			ContextLength float64 `json:"context_length"` // OpenRouter and others
			ContextWindow float64 `json:"context_window"`
			Meta          struct {
				Context float64 `json:"n_ctx"` // llama.cpp
				Trained float64 `json:"n_ctx_train"`
			} `json:"meta"`
		} `json:"data"`
	}
	err := fetch("/v1/models", &models)
	var tokens, trained float64
	if err == nil && len(models.Data) > 0 {
		first := &models.Data[0]
		tokens = cmp.Or(first.MaxModelLen, first.ContextLength, first.ContextWindow, first.Meta.Context)
		trained = first.Meta.Trained
	}
	if tokens == 0 {
		var props struct { // llama.cpp
			Settings struct {
				Context float64 `json:"n_ctx"`
			} `json:"default_generation_settings"`
		}
		err = errors.Join(err, fetch("/props", &props))
		tokens = cmp.Or(props.Settings.Context, trained)
	}
	if tokens < 1 || tokens > 1<<40 {
		return 0, cmp.Or(err, errors.New("neither /v1/models nor /props has it"))
	}
	return int64(tokens), nil
}

// fetch decodes the JSON that an instance answers to a GET.
func (m *Manager) fetch(ctx context.Context, r *instance.Record, path string, into any) error {
	answer, err := m.cfg.Invoker.Invoke(ctx, r, ports.Call{Method: http.MethodGet, Path: path, Header: http.Header{"Accept": {"application/json"}}})
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %d", path, answer.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxDescription))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}
