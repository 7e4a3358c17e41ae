package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// anthropicChecks returns the calls of Anthropic's client.
func anthropicChecks(base *url.URL) []check {
	client := anthropic.NewClient(option.WithBaseURL(base.String()), option.WithAPIKey("none"))
	ask := func(model string) anthropic.MessageNewParams {
		return anthropic.MessageNewParams{Model: anthropic.Model(model), MaxTokens: 100, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))}}
	}
	return []check{
		{"anthropic: Messages.New", func(ctx context.Context) error {
			m, err := client.Messages.New(ctx, ask(model))
			if err != nil {
				return err
			}
			return words(m.Content[0].Text, 3)
		}},
		{"anthropic: Messages.NewStreaming", func(ctx context.Context) error {
			stream := client.Messages.NewStreaming(ctx, ask(model))
			var m anthropic.Message
			for stream.Next() {
				if err := m.Accumulate(stream.Current()); err != nil {
					return err
				}
			}
			if stream.Err() != nil {
				return stream.Err()
			}
			return words(m.Content[0].Text, 3)
		}},
		{"anthropic: Models.List", func(ctx context.Context) error {
			list, err := client.Models.List(ctx, anthropic.ModelListParams{})
			if err != nil {
				return err
			}
			return want(len(list.Data) == 2 && list.Data[1].ID == model, "%+v, want the functions broken and chat", list.Data)
		}},
		{"anthropic: unknown model", func(ctx context.Context) error {
			_, err := client.Messages.New(ctx, ask("nothing"))
			var e *anthropic.Error
			if !errors.As(err, &e) {
				return shows(err, "an error of the API")
			}
			return errors.Join(want(e.StatusCode == http.StatusNotFound && e.RequestID != "", "%d with the request's ID %q, want 404 and an ID", e.StatusCode, e.RequestID),
				shows(err, `"type":"not_found_error"`, "no such function: nothing"))
		}},
		{"anthropic: failed start", func(ctx context.Context) error {
			sent := new(counted)
			_, err := client.Messages.New(ctx, ask(broken), option.WithHTTPClient(&http.Client{Transport: sent}))
			return errors.Join(shows(err, "cannot start an instance of function broken", "api_error"),
				want(sent.n == 1, "%d requests, want 1: the client must not repeat them", sent.n))
		}},
	}
}
