package policy

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
