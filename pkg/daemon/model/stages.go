package model

import (
	"context"
	"errors"
	"sync"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
)

// stages is a pool of pinned host buffers through which models are copied to the GPU. Its total
// size is at most the staging limit. It creates each buffer on first use.
type stages struct {
	gpu       device.Device
	size      gpu.Bytes
	free      chan device.Stage
	creatable chan struct{} // one element for each stage that may still be created

	mu      sync.Mutex
	created []device.Stage
}

func newStages(of device.Device, staging gpu.Bytes) *stages {
	size := min(maxStage, staging/2)
	n := int(staging / size)
	s := &stages{gpu: of, size: size, free: make(chan device.Stage, n), creatable: make(chan struct{}, n)}
	for range n {
		s.creatable <- struct{}{}
	}
	return s
}

// acquire waits for a free stage.
func (s *stages) acquire(ctx context.Context) (device.Stage, error) {
	select {
	case stage := <-s.free:
		return stage, nil
	default:
	}
	select {
	case stage := <-s.free:
		return stage, nil
	case <-s.creatable:
		stage, err := s.gpu.Stage(s.size)
		if err != nil {
			s.creatable <- struct{}{}
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.created = append(s.created, stage)
		return stage, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *stages) release(stage device.Stage) { s.free <- stage }

// close frees all stages, including those of hanging reads.
func (s *stages) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, stage := range s.created {
		errs = append(errs, stage.Free())
	}
	return errors.Join(errs...)
}

// maxStage is the largest size of a stage, in bytes.
const maxStage = 8 * gpu.MiB
