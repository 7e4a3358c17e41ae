// Package agent is the client of the agents of nodes (pkg/daemon/agent describes the protocol).
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	maxAnswer  = 16 << 20 // size limit of an answer, in bytes
	maxMessage = 1 << 10  // how much of an agent's error message is used, in bytes
)

// Client sends signed requests to agents. It is safe for concurrent use.
type Client struct {
	key  grant.PrivateKey
	http *http.Client
}

// NewClient returns a client that signs requests with a key.
func NewClient(key grant.PrivateKey) *Client {
	return &Client{key: key, http: &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 20 * time.Second, MaxResponseHeaderBytes: 16 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns the state of the token daemon of a node, whose agent has the given address.
func (c *Client) Status(ctx context.Context, node, address string) (out wire.Status, err error) {
	err = c.get(ctx, node, address, "/v1/status", &out)
	return out, err
}

// Faults returns the fatal CUDA errors of all instances of a node.
func (c *Client) Faults(ctx context.Context, node, address string) ([]wire.InstanceFault, error) {
	var out wire.Faults
	err := c.get(ctx, node, address, "/v1/faults", &out)
	return out.Faults, err
}

// Devices returns the memory of all GPUs of a node.
func (c *Client) Devices(ctx context.Context, node, address string) ([]wire.DeviceMemory, error) {
	var out wire.Devices
	err := c.get(ctx, node, address, "/v1/devices", &out)
	return out.GPUs, err
}

func (c *Client) get(ctx context.Context, node, address, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Gfaas "+c.key.SignRequest(node, path))
	answer, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the agent of node %s: %w", node, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err == nil && answer.StatusCode != http.StatusOK {
		var problem wire.Problem
		if json.Unmarshal(text, &problem) != nil || problem.Message == "" {
			problem.Message = "unexpected status " + answer.Status
		}
		err = errors.New(problem.Message[:min(len(problem.Message), maxMessage)])
	}
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return fmt.Errorf("ask the agent of node %s: %w", node, err)
	}
	return nil
}
