package model

import (
	"context"
	"fmt"
	"sync"
	"time"

	policy "github.com/gfaas/gfaas/pkg/policy/model"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// saves are what the catalogue is to be told. One goroutine tells it, in order, and
// tries again what fails: the state file may be another's for a moment.
type saves struct {
	mu     sync.Mutex
	dirty  []policy.Key
	saving bool
	wake   chan struct{}
	told   chan struct{} // closed when nothing is left; nil if nobody waits
}

// saveTime bounds one attempt, and retryAfter is the pause before the next.
const (
	saveTime   = 5 * time.Second
	retryAfter = time.Second
	keptWithin = 3 * time.Second // how long an answer waits for the catalogue
)

// recall takes over what the catalogue knows.
func (d *Daemon) recall() error {
	ctx, cancel := context.WithTimeout(d.ctx, saveTime)
	defer cancel()
	records, err := d.cfg.Catalogue.Models(ctx)
	if err != nil {
		return fmt.Errorf("catalogue of models: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range records {
		key := policy.Key{Tenant: r.Tenant, Name: r.Name}
		d.models[key] = &model{record: r}
		d.stepLocked(policy.Known{Key: key, Generation: r.Generation, Content: r.Content})
	}
	return nil
}

// keep has the catalogue told of a model as it is. Locked.
func (d *Daemon) keep(key policy.Key) {
	s := &d.saves
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty = append(s.dirty, key)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// kept waits until the catalogue has been told all, for a while.
func (d *Daemon) kept(ctx context.Context) {
	s := &d.saves
	s.mu.Lock()
	if len(s.dirty) == 0 && !s.saving {
		s.mu.Unlock()
		return
	}
	if s.told == nil {
		s.told = make(chan struct{})
	}
	told := s.told
	s.mu.Unlock()
	timer := time.NewTimer(keptWithin)
	defer timer.Stop()
	select {
	case <-told:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// save tells the catalogue what changes, until the context ends.
func (d *Daemon) save(ctx context.Context) error {
	s := &d.saves
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		select {
		case <-s.wake:
		case <-retry.C:
		case <-ctx.Done():
			return nil
		}
		if !d.saveAll(ctx) {
			retry.Reset(retryAfter)
		}
	}
}

// saveLast does it once more, at the end.
func (d *Daemon) saveLast() { d.saveAll(context.Background()) }

// saveAll tells the catalogue all that is to be told. False if something is left.
func (d *Daemon) saveAll(ctx context.Context) bool {
	s := &d.saves
	for {
		s.mu.Lock()
		if len(s.dirty) == 0 {
			s.saving = false
			if s.told != nil {
				close(s.told)
				s.told = nil
			}
			s.mu.Unlock()
			return true
		}
		key := s.dirty[0]
		s.dirty, s.saving = s.dirty[1:], true
		s.mu.Unlock()
		if err := d.saveOne(ctx, key); err != nil {
			d.log.Error("catalogue of models", "tenant", key.Tenant, "model", key.Name, "err", err)
			s.mu.Lock()
			s.dirty, s.saving = append(s.dirty, key), false
			s.mu.Unlock()
			return false
		}
	}
}

func (d *Daemon) saveOne(ctx context.Context, key policy.Key) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTime)
	defer cancel()
	d.mu.Lock()
	m := d.models[key]
	var record wire.Record
	if m != nil {
		record = m.record
	}
	d.mu.Unlock()
	if len(record.Files) == 0 { // there is nothing to load it from, or it is no more
		return d.cfg.Catalogue.DeleteModel(ctx, key.Tenant, key.Name)
	}
	return d.cfg.Catalogue.PutModel(ctx, record)
}
