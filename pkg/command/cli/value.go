package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// expected says by the type of a flag what it takes. Types of our own say it
// themselves.
var expected = map[string]string{
	"bool": "true or false", "duration": "a duration like 1.5s", "float64": "a number like 12.5",
	"int": "a whole number", "int64": "a whole number", "uint": "a whole number from 0", "uint64": "a whole number from 0",
}

// flagFault is an error of reading flags, told in the terms of the command line
// and not of the library that read the value.
func flagFault(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	want, known := expected[bad.GetFlag().Value.Type()]
	if !known {
		return err
	}
	if errors.Is(err, strconv.ErrRange) {
		want += " nearer to 0"
	}
	return fmt.Errorf("invalid argument %q for \"--%s\" flag: expected %s", bad.GetValue(), bad.GetFlag().Name, want)
}

// unknownFlag adds to the error of a flag that a command has not the one that was
// meant.
func unknownFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
	return fmt.Errorf("%w%s", err, meant("--"+unknown.GetSpecifiedName(), flags))
}

// argsFault is an error of counting arguments, with those that the command's
// usage line names, or the command that was meant.
func argsFault(cmd *cobra.Command, args []string, err error) error {
	_, expected, some := strings.Cut(cmd.Use, " ")
	switch {
	case err == nil:
		return nil
	case some:
		return fmt.Errorf("%w: expected %s", err, expected)
	case len(args) > 0:
		return fmt.Errorf("%w%s", err, meant(args[0], verbs(cmd)))
	}
	return err
}

// verbs are the names of a command's own commands.
func verbs(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}
