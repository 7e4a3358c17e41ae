package reason

import (
	"fmt"
	"slices"
)

// Table lists the codes that a package returns.
type Table []Entry

// Entry documents a code.
type Entry struct {
	Code   Code
	Help   string // a clause without a full stop
	Params []ParamDoc
}

// ParamDoc documents a parameter.
type ParamDoc struct {
	Key  string
	Help string // a few words without a full stop
}

// Doc returns the documentation of a code. params holds the key of each parameter, followed by its
// help.
func Doc(code Code, help string, params ...string) Entry {
	e := Entry{Code: code, Help: help}
	for pair := range slices.Chunk(params, 2) {
		e.Params = append(e.Params, ParamDoc{pair[0], pair[1]})
	}
	return e
}

// find returns the entry of a code, or nil.
func (t Table) find(code Code) *Entry {
	if i := slices.IndexFunc(t, func(e Entry) bool { return e.Code == code }); i >= 0 {
		return &t[i]
	}
	return nil
}

// Check returns an error unless the table lists the code of a reason and all of its parameters. It is
// meant for tests.
func (t Table) Check(r Reason) error {
	e := t.find(r.Code)
	if e == nil {
		return fmt.Errorf("the table of reasons lacks the code of %q", r)
	}
	for i, p := range r.Params {
		if !slices.ContainsFunc(e.Params, func(d ParamDoc) bool { return d.Key == p.Key }) {
			return fmt.Errorf("the table of reasons lacks the parameter %s of %q", p.Key, r)
		}
		if slices.ContainsFunc(r.Params[:i], func(o Param) bool { return o.Key == p.Key }) {
			return fmt.Errorf("%q has the parameter %s twice", r, p.Key)
		}
	}
	return nil
}

// Valid returns an error unless all codes and keys are well formed and documented, each code once.
// It is meant for tests.
func (t Table) Valid() error {
	for i, e := range t {
		if !isCode(string(e.Code)) || e.Help == "" || t[:i].find(e.Code) != nil {
			return fmt.Errorf("entry %d, %q: want a new code in kebab case, and a help", i, e.Code)
		}
		for _, d := range e.Params {
			if !isKey(d.Key) || d.Help == "" {
				return fmt.Errorf("%s: parameter %q: want a key in snake case, and a help", e.Code, d.Key)
			}
		}
	}
	return nil
}
