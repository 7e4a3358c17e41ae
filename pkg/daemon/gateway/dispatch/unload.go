package dispatch

import (
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// Unload lets the gateway's ready instances of the function take no further calls and stop as soon
// as they are idle. It returns a refusal if the function must keep instances (scale.min), or if it has
// instances of a plan and no ready one of the gateway.
func (f *Function) Unload() *refusal.Error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.removed {
		return refusal.UnknownFunction(f.name)
	}
	if f.definition.Scale.Min > 0 {
		return &refusal.Error{Code: refusal.InUse, Message: "function " + f.name + " keeps instances ready (scale.min)", Hint: "'gfaas scale " + f.name + "=0' ends that"}
	}
	planned := false
	for _, i := range f.instances {
		planned = planned || !i.own
	}
	if !f.unload() && planned {
		return &refusal.Error{Code: refusal.InUse, Message: "function " + f.name + " has only instances of a plan", Hint: "'gfaas down " + f.name + "' stops them"}
	}
	return nil
}

// unload retires the gateway's ready instances of the function and reports whether there are any.
// Locked.
func (f *Function) unload() (any bool) {
	for _, i := range f.instances {
		if i.own && i.state == instanceReady && !i.retired {
			i.retire()
			any = true
		}
	}
	if any {
		f.d.policy.step()
	}
	return any
}

// UnloadAll unloads all functions that need not keep instances.
func (d *Dispatcher) UnloadAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.inOrder() {
		if f.definition.Scale.Min == 0 {
			f.unload()
		}
	}
}

// Unloaded reports whether no ready or stopping instance of the gateway is idle.
func (f *Function) Unloaded() bool {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	for _, i := range f.instances {
		if i.own && i.state != instanceStarts && len(i.attempts) == 0 {
			return false
		}
	}
	return true
}
