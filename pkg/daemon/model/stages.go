package model

import (
	"context"
	"errors"
	"sync"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
)

// stages are the pinned pieces of host memory that models go through on their way
// to the GPU. There are so many that they are staging bytes in all, and each is
// made when it is first needed.
type stages struct {
	gpu  device.Device
	size gpu.Bytes
	free chan device.Stage
	more chan struct{} // one for each that may still be made

	mu   sync.Mutex
	made []device.Stage
}

func newStages(of device.Device, staging gpu.Bytes) *stages {
	size := min(piece, staging/2)
	n := int(staging / size)
	s := &stages{gpu: of, size: size, free: make(chan device.Stage, n), more: make(chan struct{}, n)}
	for range n {
		s.more <- struct{}{}
	}
	return s
}

// take waits for a stage.
func (s *stages) take(ctx context.Context) (device.Stage, error) {
	select {
	case stage := <-s.free:
		return stage, nil
	default:
	}
	select {
	case stage := <-s.free:
		return stage, nil
	case <-s.more:
		stage, err := s.gpu.Stage(s.size)
		if err != nil {
			s.more <- struct{}{}
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.made = append(s.made, stage)
		return stage, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *stages) put(stage device.Stage) { s.free <- stage }

// close frees them all. One whose reader never came back is among them.
func (s *stages) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, stage := range s.made {
		errs = append(errs, stage.Free())
	}
	return errors.Join(errs...)
}
