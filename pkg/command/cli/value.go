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

// argsFault is an error of counting arguments, with those that the command's
// usage line names.
func argsFault(cmd *cobra.Command, err error) error {
	_, expected, some := strings.Cut(cmd.Use, " ")
	if err == nil || !some {
		return err
	}
	return fmt.Errorf("%w: expected %s", err, expected)
}
