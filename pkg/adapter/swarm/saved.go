package swarm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/swarm"
	"github.com/docker/docker/client"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Saved is the state of a gateway in the managers' raft, from which its successor on another node continues:
//
//   - each version of a function is a config, whose data is the function's YAML. Configs cannot change, so a new version
//     is a new config; the newest is current, and older ones are removed;
//   - the record of a ready instance is a label of its service;
//   - a config without data names the gateway that owns them in a label, because an update of labels names the version
//     that it replaces.
type Saved struct {
	Writer    string // identifies the state file from which it was written
	Functions []function.Function
	Instances []instance.Record // those that are ready, and running jobs
}

// maxFunction is the largest YAML of a function, in bytes. Docker documents this limit; newer engines store more.
const maxFunction = 500_000

const (
	labelOwner  = "gfaas.owner"  // the gateway that may change the state and the instances
	labelWriter = "gfaas.writer" // Saved.Writer

	// Labels of the config of a function, in addition to labelGateway and instance.LabelFunction.
	labelVersion = "gfaas.version" // increases with each change of the function
	labelDir     = "gfaas.dir"     // folder of the function's file

	labelRecord = "gfaas.record" // the record of a service's instance, as JSON
)

// ErrSuperseded reports that another gateway has taken over the instances.
var ErrSuperseded = errors.New("another gateway has taken over the instances of this swarm")

// Store keeps the state of a gateway in the managers' raft. Runtime embeds it.
type Store struct{ *managers }

// Claim makes this gateway the owner of the instances on the network. The previous owner then refuses to call, start and
// stop instances.
func (s *Store) Claim(ctx context.Context) error {
	config, err := s.gatewayConfig(ctx)
	if err != nil {
		return err
	}
	owner, labels := rand.Text(), map[string]string{}
	if config != nil {
		labels = maps.Clone(config.Spec.Labels)
	}
	labels[labelOwner] = owner
	if err := s.write(ctx, config, labels); err != nil {
		return err
	}
	s.owner = owner
	return nil
}

// write creates the gateway's config or changes its labels. It fails if another process has changed it since it was
// read.
func (s *Store) write(ctx context.Context, config *swarm.Config, labels map[string]string) (err error) {
	limited, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	if config == nil {
		spec := swarm.ConfigSpec{Annotations: swarm.Annotations{Name: s.configName(), Labels: labels}, Data: []byte("the label " + labelOwner + " names the gateway of a network")}
		_, err = s.api.ConfigCreate(limited, spec)
	} else {
		config.Spec.Labels = labels
		err = s.api.ConfigUpdate(limited, config.ID, config.Version, config.Spec)
	}
	return explain("change the config "+s.configName(), err)
}

// gatewayConfig returns the gateway's config, or nil.
func (s *Store) gatewayConfig(ctx context.Context) (found *swarm.Config, err error) {
	err = s.insist(ctx, func(ctx context.Context) error {
		found, err = findConfig(ctx, s.api, s.configName())
		return err
	})
	return found, explain("read the config "+s.configName(), err)
}

// findConfig returns the config with a name, or nil.
func findConfig(ctx context.Context, api *client.Client, name string) (*swarm.Config, error) {
	list, err := api.ConfigList(ctx, swarm.ConfigListOptions{Filters: filters.NewArgs(filters.Arg("name", name))})
	for i := range list {
		if list[i].Spec.Name == name { // the filter also matches beginnings
			return &list[i], err
		}
	}
	return nil, err
}

// version is a config with a version of a function.
type version struct {
	number int
	config *swarm.Config
}

// versions returns the versions of each function, the newest first. It fails if a config has no valid version.
func (s *Store) versions(ctx context.Context) (map[string][]version, error) {
	var list []swarm.Config
	err := s.insist(ctx, func(ctx context.Context) (err error) {
		list, err = s.api.ConfigList(ctx, swarm.ConfigListOptions{Filters: filters.NewArgs(
			filters.Arg("label", labelGateway+"="+s.network), filters.Arg("label", instance.LabelFunction))})
		return err
	})
	if err != nil {
		return nil, explain("list the configs of functions", err)
	}
	out := map[string][]version{}
	for i := range list {
		labels := list[i].Spec.Labels
		number, err := strconv.Atoi(labels[labelVersion])
		if err != nil || number < 1 {
			return nil, damaged(&list[i], fmt.Errorf("its label %s is %q, expected a number", labelVersion, labels[labelVersion]))
		}
		name := labels[instance.LabelFunction]
		out[name] = append(out[name], version{number, &list[i]})
	}
	for _, of := range out {
		slices.SortFunc(of, func(a, b version) int { return b.number - a.number })
	}
	return out, nil
}

// DamagedError reports a config or a service of gfaas that cannot be read.
type DamagedError struct {
	Object string // like "config NAME"
	Remedy string
	Err    error
}

func (e *DamagedError) Error() string { return fmt.Sprintf("read the %s: %v", e.Object, e.Err) }
func (e *DamagedError) Unwrap() error { return e.Err }

// Hint returns the next step for the user.
func (e *DamagedError) Hint() string { return e.Remedy }

// damaged returns the error for a config of a function.
func damaged(config *swarm.Config, err error) error {
	return &DamagedError{Object: "config " + config.Spec.Name, Err: err, Remedy: fmt.Sprintf(
		"use the version of gfaas that wrote it, or remove it (docker config rm %s), start the gateway, and apply the function %s again", config.Spec.Name, config.Spec.Labels[instance.LabelFunction])}
}

// Load returns the saved state, or nil if there is none.
func (s *Store) Load(ctx context.Context) (*Saved, error) {
	config, err := s.gatewayConfig(ctx)
	if err != nil || config == nil || config.Spec.Labels[labelWriter] == "" {
		return nil, err
	}
	saved := &Saved{Writer: config.Spec.Labels[labelWriter]}
	functions, err := s.versions(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		fn, err := parse(functions[name][0].config)
		if err != nil {
			return nil, err
		}
		saved.Functions = append(saved.Functions, fn)
	}
	services, err := s.services(ctx)
	if err != nil {
		return nil, err
	}
	for i := range services {
		text := services[i].Spec.Labels[labelRecord]
		if text == "" {
			continue
		}
		var record instance.Record
		err := json.Unmarshal([]byte(text), &record)
		if id := services[i].Spec.Labels[instance.LabelInstance]; err == nil && (record.ID != id || record.Handle.Container != services[i].ID) {
			err = fmt.Errorf("it is the record of another instance than %s", id)
		}
		if err != nil {
			return nil, &DamagedError{Object: "label " + labelRecord + " of the service " + services[i].Spec.Name, Err: err,
				Remedy: "remove the service (docker service rm " + services[i].Spec.Name + "); the gateway starts another instance"}
		}
		// An instance whose function is gone is of no use to the successor.
		if len(functions[record.Function]) > 0 {
			saved.Instances = append(saved.Instances, record)
		}
	}
	return saved, nil
}

// parse returns the function in a config.
func parse(config *swarm.Config) (fn function.Function, err error) {
	list, err := function.Parse(strings.NewReader(string(config.Spec.Data)), "function.yaml")
	name := config.Spec.Labels[instance.LabelFunction]
	if err == nil && (len(list) != 1 || list[0].Name != name) {
		err = fmt.Errorf("it does not contain exactly the function %s of its label %s", name, instance.LabelFunction)
	}
	if err != nil {
		return fn, damaged(config, err)
	}
	fn = list[0]
	fn.Dir = config.Spec.Labels[labelDir]
	return fn, nil
}

// Save replaces the saved state. It returns ErrSuperseded if another Runtime owns it. If a function cannot be saved,
// Save saves all others.
func (s *Store) Save(ctx context.Context, state Saved) error {
	config, err := s.gatewayConfig(ctx)
	if err != nil {
		return err
	}
	labels := map[string]string{labelOwner: s.owner} // if the config was removed
	if config != nil {
		labels = maps.Clone(config.Spec.Labels)
	}
	if labels[labelOwner] != s.owner {
		return ErrSuperseded
	}
	// First, so that a gateway with an older state file never considers its file the current state.
	if labels[labelWriter] != state.Writer {
		labels[labelWriter] = state.Writer
		if err := s.write(ctx, config, labels); err != nil {
			return err
		}
	}
	return errors.Join(s.saveFunctions(ctx, state.Functions), s.saveInstances(ctx, state.Instances))
}

// saveFunctions creates configs of the functions that have changed, and removes those of older versions and of removed
// functions.
func (s *Store) saveFunctions(ctx context.Context, functions []function.Function) error {
	saved, err := s.versions(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, fn := range functions {
		of := saved[fn.Name]
		delete(saved, fn.Name)
		text, err := function.Format([]function.Function{fn})
		switch {
		case err != nil:
		case len(text) > maxFunction:
			instead := "not have it"
			if len(of) > 0 {
				instead = fmt.Sprintf("have version %d of it, the last one that was saved", of[0].number)
			}
			err = fmt.Errorf("save the function %s in the swarm: it has %d bytes, and a config has at most %d; the gateway on another node would %s", fn.Name, len(text), maxFunction, instead)
		case len(of) > 0 && string(of[0].config.Spec.Data) == string(text) && of[0].config.Spec.Labels[labelDir] == fn.Dir:
			of = of[1:]
		default:
			number := 1
			if len(of) > 0 {
				number = of[0].number + 1
			}
			err = s.saveVersion(ctx, fn, number, text)
		}
		if err == nil {
			err = s.removeVersions(ctx, of)
		}
		failed = append(failed, err)
	}
	for _, of := range saved {
		failed = append(failed, s.removeVersions(ctx, of))
	}
	return errors.Join(failed...)
}

// saveVersion creates the config of a version of a function.
func (s *Store) saveVersion(ctx context.Context, fn function.Function, number int, text []byte) error {
	labels := map[string]string{labelGateway: s.network, instance.LabelFunction: fn.Name, labelVersion: strconv.Itoa(number)}
	if fn.Dir != "" {
		labels[labelDir] = fn.Dir
	}
	spec := swarm.ConfigSpec{Annotations: swarm.Annotations{Name: objectName(s.network, "function/"+fn.Name, fn.Name) + "-v" + strconv.Itoa(number), Labels: labels}, Data: text}
	err := s.insistOwner(ctx, func(ctx context.Context) error {
		_, err := s.api.ConfigCreate(ctx, spec)
		if cerrdefs.IsConflict(err) || err != nil && strings.Contains(err.Error(), "already exists") { // by an attempt without an answer
			if found, _ := findConfig(ctx, s.api, spec.Name); found != nil && string(found.Spec.Data) == string(text) {
				return nil
			}
		}
		return err
	})
	return explain("create the config "+spec.Name, err)
}

// removeVersions removes configs, the oldest first: the newest of those that remain is current.
func (s *Store) removeVersions(ctx context.Context, of []version) error {
	for _, v := range slices.Backward(of) {
		err := s.insistOwner(ctx, func(ctx context.Context) error { return s.api.ConfigRemove(ctx, v.config.ID) })
		if err != nil && !cerrdefs.IsNotFound(err) {
			return explain("remove the config "+v.config.Spec.Name, err)
		}
	}
	return nil
}

// saveInstances writes the records of ready instances to the labels of their services. A change of a service's labels
// alone does not change its tasks.
func (s *Store) saveInstances(ctx context.Context, records []instance.Record) error {
	wanted := map[string]string{}
	for _, record := range records {
		if record.State == instance.Starting || record.Handle.Container == "" {
			continue
		}
		text, err := json.Marshal(record)
		if err != nil {
			return err
		}
		wanted[record.Handle.Container] = string(text)
	}
	services, err := s.services(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for i := range services {
		service := &services[i]
		text := wanted[service.ID]
		if text == "" || service.Spec.Labels[labelRecord] == text {
			continue
		}
		service.Spec.Labels[labelRecord] = text
		limited, cancel := context.WithTimeout(ctx, requestTime)
		_, err := s.api.ServiceUpdate(limited, service.ID, service.Version, service.Spec, swarm.ServiceUpdateOptions{})
		cancel()
		if err != nil && !cerrdefs.IsNotFound(err) {
			failed = append(failed, explain("change the labels of the service "+service.Spec.Name, err))
		}
	}
	return errors.Join(failed...)
}
