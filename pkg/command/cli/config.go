package cli

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/textfile"
)

// settings.txt has the settings of all programs, which share a config file:
// what one of them does not know may be another's. Gendocs writes it.
//
//go:embed settings.txt
var settings string

// unset are flags that no setting stands for.
var unset = []string{"help", "version", "config"}

// SettingsOf adds the names of a command's settings to a list.
func SettingsOf(flags *pflag.FlagSet, to []string) []string {
	flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(unset, f.Name) {
			to = append(to, f.Name)
		}
	})
	return to
}

// Settings are the settings of all programs, in order.
func Settings() []string { return strings.Fields(settings) }

// readConfig reads the one config file that applies, if any, and returns where
// it has each setting, as FILE:LINE.
func readConfig(v *viper.Viper, flags *pflag.FlagSet, named string) (map[string]string, error) {
	if named == "" && !flags.Changed("config") {
		named = os.Getenv("GFAAS_CONFIG")
	}
	paths := []string{named}
	if named == "" {
		paths = []string{filepath.Join(configHome(), "gfaas", "config.yaml"), "/etc/gfaas/config.yaml"}
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if named == "" && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, Fail(ExitFailure, "", fmt.Errorf("config file: %w", err))
		}
		v.SetConfigType("yaml")
		if err := v.ReadConfig(bytes.NewReader(data)); err != nil {
			return nil, configFault(path, err)
		}
		places, err := checkSettings(path, data, SettingsOf(flags, Settings()))
		return places, Fail(ExitFailure, "", err)
	}
	return nil, nil
}

// checkSettings returns where each setting is. It refuses the first key that is
// none: nobody would see that a misspelt one does nothing.
func checkSettings(path string, data []byte, known []string) (map[string]string, error) {
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil || len(doc.Content) == 0 {
		return nil, nil // nothing in it: viper has read it
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, &textfile.Fault{File: path, Line: max(second.Line, 1), What: "a second document, expected one"}
	}
	places := map[string]string{}
	for i := 0; i+1 < len(doc.Content[0].Content); i += 2 {
		key := doc.Content[0].Content[i]
		if name := strings.ToLower(key.Value); slices.Contains(known, name) {
			places[name] = fmt.Sprintf("%s:%d", path, key.Line)
			continue
		}
		return nil, &textfile.Fault{File: path, Line: key.Line, Where: key.Value,
			What: fmt.Sprintf("unknown setting in version %s, expected the long name of a flag%s", Version, meant(key.Value, known))}
	}
	return places, nil
}

// meant asks whether a word was meant that is near to what stands there.
func meant(what string, words []string) string {
	if near := textfile.Near(strings.ToLower(what), words); near != "" {
		return ": " + near + "?"
	}
	return ""
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// configFault says what is wrong with the config file as for any other file:
// FILE:LINE: what.
func configFault(path string, err error) error {
	var parse viper.ConfigParseError
	if !errors.As(err, &parse) {
		return Fail(ExitFailure, "", fmt.Errorf("config file: %w", err))
	}
	text := strings.TrimPrefix(parse.Unwrap().Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n  ")
	line := "1"
	if m := yamlLine.FindStringSubmatchIndex(text); m != nil {
		line = text[m[2]:m[3]]
		text = text[:m[0]] + text[m[1]:]
	}
	return Fail(ExitFailure, "", fmt.Errorf("%s:%s: %s", path, line, text))
}
