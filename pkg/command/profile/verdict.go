package profile

import (
	"errors"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/measure/gate"
)

// parseGates parses the conditions of --fail-if.
func parseGates(texts, metrics []string) ([]gate.Gate, error) {
	gates, err := gate.Parse(texts, metrics)
	if err != nil {
		return nil, cli.Usagef("--fail-if: %w", err)
	}
	return gates, nil
}

// conclude prints warnings about uncertain findings and returns the error that follows from the others.
// A finding that could not be judged takes precedence over a negative one.
func conclude(env *cli.Env, all []gate.Finding) error {
	var messages []string
	unknown := false
	for _, topic := range []struct {
		verdict gate.Verdict
		subject gate.Subject
		title   string
	}{
		{gate.Unknown, gate.FailIf, "a condition of --fail-if cannot be checked:"},
		{gate.Unknown, gate.BaselineSubject, "the comparison with --baseline is not possible:"},
		{gate.Tripped, gate.FailIf, "a condition of --fail-if holds:"},
		{gate.Tripped, gate.BaselineSubject, "the results are worse than --baseline:"},
	} {
		if texts := gate.Texts(all, topic.subject, topic.verdict); len(texts) > 0 {
			messages = append(messages, topic.title+"\n  "+strings.Join(texts, "\n  "))
			unknown = unknown || topic.verdict == gate.Unknown
		}
	}
	messages = append(messages, gate.Texts(all, gate.Search, gate.Tripped)...)
	for _, subject := range []gate.Subject{gate.FailIf, gate.BaselineSubject} {
		for _, text := range gate.Texts(all, subject, gate.Doubtful) {
			env.Notef("warning: --%s: %s", subject, text)
		}
	}
	switch {
	case unknown:
		return errors.New(strings.Join(messages, "\n"))
	case len(messages) > 0:
		return cli.Fail(cli.ExitNo, "", errors.New(strings.Join(messages, "\n")))
	}
	return nil
}

// writeJUnit writes the findings to the file of --junit, if given.
func writeJUnit(env *cli.Env, path string, all []gate.Finding, ended error) error {
	if path == "" {
		return nil
	}
	text, err := gate.JUnit(all, ended)
	if err != nil {
		return err
	}
	return env.WriteTo(path, text)
}

// reportFailure writes an error before the first result to the file of --junit, if given, and returns it.
// Errors about flags are not written.
func reportFailure(env *cli.Env, junit string, err error) error {
	if junit == "" || isUsage(err) {
		return err
	}
	return errors.Join(err, writeJUnit(env, junit, nil, err))
}

// isUsage reports whether an error is about wrong flags or arguments.
func isUsage(err error) bool {
	e, ok := errors.AsType[*cli.Error](err)
	return ok && e.Exit == cli.ExitUsage
}
