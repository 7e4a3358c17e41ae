package policy

import (
	"errors"
	"strconv"
)

// Parameter is a setting of a policy, as users give it: KEY=VALUE.
type Parameter[T any] struct {
	Key     string
	Default string // as users would give it; empty if the setting is off
	Help    string // a few words, without a full stop
	// Values are the possible values if there are only a few; then, Default is the first.
	Values []string
	// Set parses the value and stores it. Its error does not repeat the key.
	Set func(to *T, value string) error
}

// Value returns a parameter that parse reads, and that is stored where at returns.
func Value[T, V any](key, byDefault, help string, parse func(string) (V, error), at func(*T) *V) Parameter[T] {
	return Parameter[T]{Key: key, Default: byDefault, Help: help, Set: func(to *T, value string) (err error) {
		*at(to), err = parse(value)
		return err
	}}
}

// Number parses the value of a parameter that is a number.
func Number(value string) (float64, error) {
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0, errors.New("expected a number")
	}
	return v, nil
}

// Whole parses the value of a parameter that is a whole number.
func Whole(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil {
		return 0, errors.New("expected a whole number")
	}
	return n, nil
}

// Find returns the parameter with that key, or nil if there is none.
func Find[T any](all []Parameter[T], key string) *Parameter[T] {
	for i := range all {
		if all[i].Key == key {
			return &all[i]
		}
	}
	return nil
}

// Of returns parameters of I as parameters of T, which contains an I: at returns the I in a T.
func Of[T, I any](at func(*T) *I, parameters []Parameter[I]) []Parameter[T] {
	all := make([]Parameter[T], len(parameters))
	for i, p := range parameters {
		all[i] = Parameter[T]{Key: p.Key, Default: p.Default, Help: p.Help, Values: p.Values, Set: func(to *T, value string) error { return p.Set(at(to), value) }}
	}
	return all
}
