package main

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ollama/ollama/api"
)

// ollama returns the calls of Ollama's client.
func ollama(base *url.URL) []check {
	client := api.NewClient(base, http.DefaultClient)
	user := []api.Message{{Role: "user", Content: "one two three"}}
	// chat returns the answer as a whole, and the number of its parts.
	chat := func(ctx context.Context, r *api.ChatRequest) (m api.ChatResponse, parts int, err error) {
		err = client.Chat(ctx, r, func(part api.ChatResponse) error {
			parts++
			part.Message.Content = m.Message.Content + part.Message.Content
			part.Message.ToolCalls = append(m.Message.ToolCalls, part.Message.ToolCalls...)
			m = part
			return nil
		})
		return m, parts, err
	}
	generate := func(ctx context.Context, r *api.GenerateRequest) (g api.GenerateResponse, err error) {
		err = client.Generate(ctx, r, func(part api.GenerateResponse) error {
			part.Response = g.Response + part.Response
			g = part
			return nil
		})
		return g, err
	}
	return []check{
		{"ollama: Heartbeat", client.Heartbeat},
		{"ollama: Version", func(ctx context.Context) error {
			v, err := client.Version(ctx)
			return errors.Join(err, want(strings.HasPrefix(v, "0."), "%q, want a version", v))
		}},
		{"ollama: List", func(ctx context.Context) error {
			list, err := client.List(ctx)
			if err != nil {
				return err
			}
			m := list.Models
			return want(len(m) == 2 && m[1].Name == model+":latest" && len(m[1].Digest) == 64 && time.Since(m[1].ModifiedAt) < time.Hour, "%+v, want broken and chat", m)
		}},
		{"ollama: Show", func(ctx context.Context) error {
			s, err := client.Show(ctx, &api.ShowRequest{Model: model})
			if err != nil {
				return err
			}
			return want(len(s.Capabilities) == 2 && s.Capabilities[1] == "tools", "%+v, want the capabilities completion and tools", s)
		}},
		{"ollama: Chat, stream", func(ctx context.Context) error {
			m, parts, err := chat(ctx, &api.ChatRequest{Model: model, Messages: user, Options: map[string]any{"temperature": 0.5, "num_ctx": 4096}})
			if err != nil {
				return err
			}
			return errors.Join(words(m.Message.Content, 3), want(parts > 3 && m.Done && m.DoneReason == "stop" && m.EvalCount == 3 && m.TotalDuration > 0, "%d parts and at last %+v, want 3 tokens and a reason", parts, m))
		}},
		{"ollama: Chat, whole", func(ctx context.Context) error {
			m, parts, err := chat(ctx, &api.ChatRequest{Model: model + ":latest", Messages: user, Stream: new(bool), Options: map[string]any{"num_predict": 2}})
			if err != nil {
				return err
			}
			return errors.Join(words(m.Message.Content, 2), want(parts == 1 && m.DoneReason == "length" && m.Model == model+":latest", "%d parts and %+v, want one, cut by length", parts, m))
		}},
		{"ollama: tools", func(ctx context.Context) error {
			tools := api.Tools{{Type: "function", Function: api.ToolFunction{Name: tool, Parameters: api.ToolFunctionParameters{Type: "object", Properties: api.NewToolPropertiesMap()}}}}
			m, _, err := chat(ctx, &api.ChatRequest{Model: model, Messages: user, Tools: tools})
			if err != nil {
				return err
			}
			calls := m.Message.ToolCalls
			if len(calls) != 1 || calls[0].Function.Name != tool || calls[0].Function.Arguments.String() != `{"word":"gpu"}` {
				return want(false, "%+v, want a call of %s", calls, tool)
			}
			history := append(user, api.Message{Role: "assistant", ToolCalls: calls}, api.Message{Role: "tool", ToolName: tool, Content: "a b"})
			m, _, err = chat(ctx, &api.ChatRequest{Model: model, Messages: history, Tools: tools})
			return errors.Join(err, words(m.Message.Content, 2))
		}},
		{"ollama: image", func(ctx context.Context) error {
			png, err := base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")
			if err != nil {
				return err
			}
			m, _, err := chat(ctx, &api.ChatRequest{Model: model, Messages: []api.Message{{Role: "user", Content: "what?", Images: []api.ImageData{png}}}})
			return errors.Join(err, words(m.Message.Content, 2)) // the stand-in answers with a word for each part
		}},
		{"ollama: Generate", func(ctx context.Context) error {
			g, err := generate(ctx, &api.GenerateRequest{Model: model, Prompt: "a b", System: "be kind"})
			return errors.Join(err, words(g.Response, 2), want(g.Done, "%+v, want the end", g))
		}},
		{"ollama: Generate, raw", func(ctx context.Context) error {
			g, err := generate(ctx, &api.GenerateRequest{Model: model, Prompt: "a", Raw: true})
			return errors.Join(err, words(g.Response, 3))
		}},
		{"ollama: Embed", func(ctx context.Context) error {
			e, err := client.Embed(ctx, &api.EmbedRequest{Model: model, Input: []string{"a", "bc"}})
			if err != nil {
				return err
			}
			return want(len(e.Embeddings) == 2 && e.Embeddings[1][1] == 1 && e.PromptEvalCount == 2, "%+v, want two embeddings", e)
		}},
		{"ollama: Embeddings", func(ctx context.Context) error {
			e, err := client.Embeddings(ctx, &api.EmbeddingRequest{Model: model, Prompt: "bc"})
			if err != nil {
				return err
			}
			return want(len(e.Embedding) == 2 && e.Embedding[1] == 1, "%+v, want an embedding", e)
		}},
		{"ollama: ListRunning", func(ctx context.Context) error {
			list, err := client.ListRunning(ctx)
			if err != nil {
				return err
			}
			m := list.Models
			return want(len(m) == 1 && m[0].Name == model+":latest" && time.Until(m[0].ExpiresAt) > 0, "%+v, want chat", m)
		}},
		{"ollama: unknown model", func(ctx context.Context) error {
			_, _, err := chat(ctx, &api.ChatRequest{Model: "nothing", Messages: user})
			var e api.StatusError
			return errors.Join(shows(err, "no such function: nothing"), want(errors.As(err, &e) && e.StatusCode == http.StatusNotFound, "%v, want status 404", err))
		}},
		{"ollama: error of the function", func(ctx context.Context) error {
			_, err := client.Embed(ctx, &api.EmbedRequest{Model: model, Input: make([]string, 9)})
			return shows(err, "at most 8 texts")
		}},
		{"ollama: failed start", func(ctx context.Context) error {
			_, err := generate(ctx, &api.GenerateRequest{Model: broken, Prompt: "a"})
			return shows(err, "cannot start an instance of function broken")
		}},
		{"ollama: Pull", func(ctx context.Context) error {
			return shows(client.Pull(ctx, &api.PullRequest{Model: model}, func(api.ProgressResponse) error { return nil }), "this gateway does not store models")
		}},
		{"ollama: Delete", func(ctx context.Context) error {
			return shows(client.Delete(ctx, &api.DeleteRequest{Model: model}), "this gateway does not store models")
		}},
		{"ollama: load", func(ctx context.Context) error {
			g, err := generate(ctx, &api.GenerateRequest{Model: model})
			return errors.Join(err, want(g.DoneReason == "load", "%+v, want the reason load", g))
		}},
		{"ollama: unload", func(ctx context.Context) error {
			g, err := generate(ctx, &api.GenerateRequest{Model: model, KeepAlive: &api.Duration{}})
			if err != nil || g.DoneReason != "unload" {
				return errors.Join(err, want(g.DoneReason == "unload", "%+v, want the reason unload", g))
			}
			for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
				if list, err := client.ListRunning(ctx); err != nil || len(list.Models) == 0 {
					return err
				}
			}
			return errors.New("the model still runs, want it unloaded")
		}},
	}
}
