package profile

import (
	"errors"
	"slices"
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
	type topic struct {
		verdict gate.Verdict
		subject gate.Subject
	}
	titles := map[topic]string{
		{gate.Unknown, gate.FailIf}:          "a condition of --fail-if cannot be checked:",
		{gate.Tripped, gate.FailIf}:          "a condition of --fail-if holds:",
		{gate.Unknown, gate.BaselineSubject}: "the comparison with --baseline is not possible:",
		{gate.Tripped, gate.BaselineSubject}: "the results are worse than --baseline:",
	}
	messages := map[gate.Verdict][]string{}
	for _, v := range []gate.Verdict{gate.Unknown, gate.Tripped} {
		for _, subject := range []gate.Subject{gate.FailIf, gate.BaselineSubject, gate.Search} {
			lines := gate.Texts(all, subject, v)
			switch {
			case len(lines) == 0:
			case subject == gate.Search:
				messages[v] = append(messages[v], strings.Join(lines, "\n"))
			default:
				messages[v] = append(messages[v], titles[topic{v, subject}]+"\n  "+strings.Join(lines, "\n  "))
			}
		}
	}
	for _, subject := range []gate.Subject{gate.FailIf, gate.BaselineSubject} {
		for _, text := range gate.Texts(all, subject, gate.Doubtful) {
			env.Notef("warning: --%s: %s", subject, text)
		}
	}
	lines := slices.Concat(messages[gate.Unknown], messages[gate.Tripped])
	switch {
	case len(messages[gate.Unknown]) > 0:
		return errors.New(strings.Join(lines, "\n"))
	case len(lines) > 0:
		return cli.Fail(cli.ExitNo, "", errors.New(strings.Join(lines, "\n")))
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
