package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"
)

// openAI returns the calls of OpenAI's client.
func openAI(base *url.URL) []check {
	client := openai.NewClient(option.WithBaseURL(base.JoinPath("v1").String()), option.WithAPIKey("none"))
	ask := openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("one two three")}}
	return []check{
		{"openai: Models.List", func(ctx context.Context) error {
			list, err := client.Models.List(ctx)
			if err != nil {
				return err
			}
			return want(len(list.Data) == 2 && list.Data[1].ID == model, "%+v, want the functions broken and chat", list.Data)
		}},
		{"openai: Models.Get", func(ctx context.Context) error {
			m, err := client.Models.Get(ctx, model)
			if err != nil {
				return err
			}
			return want(m.ID == model && m.OwnedBy == "gfaas", "%+v, want chat", m)
		}},
		{"openai: Chat.Completions.New", func(ctx context.Context) error {
			c, err := client.Chat.Completions.New(ctx, ask)
			if err != nil {
				return err
			}
			return errors.Join(words(c.Choices[0].Message.Content, 3), want(c.Usage.CompletionTokens == 3, "%+v, want 3 tokens", c.Usage))
		}},
		{"openai: Chat.Completions.NewStreaming", func(ctx context.Context) error {
			stream := client.Chat.Completions.NewStreaming(ctx, ask)
			var all openai.ChatCompletionAccumulator
			chunks := 0
			for stream.Next() {
				all.AddChunk(stream.Current())
				chunks++
			}
			if stream.Err() != nil {
				return stream.Err()
			}
			return errors.Join(words(all.Choices[0].Message.Content, 3), want(chunks > 3, "%d chunks, want more than 3", chunks))
		}},
		{"openai: tools", func(ctx context.Context) error {
			with := ask
			with.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: tool})}
			c, err := client.Chat.Completions.New(ctx, with)
			if err != nil {
				return err
			}
			calls := c.Choices[0].Message.ToolCalls
			return want(len(calls) == 1 && calls[0].Function.Name == tool && calls[0].Function.Arguments == `{"word": "gpu"}`, "%+v, want a call of %s", calls, tool)
		}},
		{"openai: Completions.New", func(ctx context.Context) error {
			c, err := client.Completions.New(ctx, openai.CompletionNewParams{Model: model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("a")}})
			if err != nil {
				return err
			}
			return words(c.Choices[0].Text, 3)
		}},
		{"openai: Embeddings.New", func(ctx context.Context) error {
			e, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: model, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "bc"}}})
			if err != nil {
				return err
			}
			return want(len(e.Data) == 2 && e.Data[1].Embedding[1] == 1, "%+v, want two embeddings", e.Data)
		}},
		{"openai: Audio.Transcriptions.New", func(ctx context.Context) error {
			// Longer than gfaas serve keeps in memory, and the model comes after the file.
			sound := append([]byte("RIFF"), bytes.Repeat([]byte{0}, 400<<10)...)
			a, err := client.Audio.Transcriptions.New(ctx, openai.AudioTranscriptionNewParams{Model: model, File: openai.File(bytes.NewReader(sound), "sound.wav", "audio/wav")})
			if err != nil {
				return err
			}
			return want(strings.HasSuffix(a.Text, " True"), "%q, want a text about the file", a.Text)
		}},
		{"openai: error of the function", func(ctx context.Context) error {
			_, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: model, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: make([]string, 9)}})
			return openAIError(err, 400, openai.Error{Message: "at most 8 texts", Type: "invalid_request_error", Param: "input"})
		}},
		{"openai: unknown model", func(ctx context.Context) error {
			_, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "nothing", Messages: ask.Messages})
			return openAIError(err, 404, openai.Error{Message: "no such function: nothing", Type: "invalid_request_error", Code: "model_not_found", Param: "model"})
		}},
		{"openai: unknown model, stream", func(ctx context.Context) error {
			stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{Model: "nothing", Messages: ask.Messages})
			if stream.Next() {
				return errors.New("got an event")
			}
			return openAIError(stream.Err(), 404, openai.Error{Message: "no such function: nothing", Type: "invalid_request_error", Code: "model_not_found", Param: "model"})
		}},
		{"openai: failed start", func(ctx context.Context) error {
			sent := new(counted)
			_, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: broken, Messages: ask.Messages}, option.WithHTTPClient(&http.Client{Transport: sent}))
			return errors.Join(openAIError(err, 502, openai.Error{Message: "cannot start an instance of function broken: ", Type: "server_error", Code: "start-failed"}),
				want(sent.n == 1, "%d requests, want 1: the client must not repeat them", sent.n))
		}},
	}
}

// openAIError checks the fields of an error of the client, and the beginning of its message. The text of the error
// contains only the status.
func openAIError(err error, status int, expected openai.Error) error {
	var got *openai.Error
	if !errors.As(err, &got) {
		return fmt.Errorf("got the error %w, want an error of the API", err)
	}
	if got.StatusCode != status || !strings.HasPrefix(got.Message, expected.Message) || got.Type != expected.Type || got.Code != expected.Code || got.Param != expected.Param {
		return fmt.Errorf("got %d %s, want %d %+v", got.StatusCode, got.RawJSON(), status, expected)
	}
	return nil
}
