package cli

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/textfile"
	"github.com/gfaas/gfaas/pkg/yamlfile"
)

// settings lists the settings of all programs, because they share one config file and each must accept
// the settings of the others. Package gendocs writes the file.
//
//go:embed settings.txt
var settings string

// unsettable lists the flags that cannot be set in the config file or by a variable.
var unsettable = []string{"help", "version", "config"}

// SettingsOf appends the names of a command's settings to a list and returns it.
func SettingsOf(flags *pflag.FlagSet, list []string) []string {
	flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(unsettable, f.Name) {
			list = append(list, f.Name)
		}
	})
	return list
}

// Settings returns the names of the settings of all programs, in order.
func Settings() []string { return strings.Fields(settings) }

// readConfig reads the config file: configFlag (the value of --config), $GFAAS_CONFIG or, if both are
// empty, the first default path at which there is a file, if any. It returns the position of each
// setting as FILE:LINE.
func readConfig(v *viper.Viper, flags *pflag.FlagSet, configFlag string) (map[string]string, error) {
	chosen := configFlag
	if chosen == "" && !flags.Changed("config") {
		chosen = os.Getenv("GFAAS_CONFIG")
	}
	paths := []string{chosen}
	if chosen == "" {
		paths = []string{filepath.Join(xdgFolder("XDG_CONFIG_HOME", ".config", "/etc/xdg"), "gfaas", "config.yaml"), "/etc/gfaas/config.yaml"}
	}
	for _, path := range paths {
		data, err := readBounded(path)
		if chosen == "" && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, Fail(ExitFailure, "", fmt.Errorf("config file: %w", err))
		}
		v.SetConfigType("yaml")
		if err := yamlfile.Check(data, path); err != nil {
			return nil, Fail(ExitFailure, "", err)
		}
		if err := v.ReadConfig(bytes.NewReader(data)); err != nil {
			return nil, configFault(path, err)
		}
		positions, err := checkSettings(path, data, SettingsOf(flags, Settings()))
		return positions, Fail(ExitFailure, "", err)
	}
	return nil, nil
}

// maxConfig is the size limit of the config file, in bytes.
const maxConfig = 1 << 20

// readBounded reads a config file of at most maxConfig bytes.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return textfile.ReadAll(f, &textfile.Checker{Name: path, Is: "YAML", Total: maxConfig})
}

// checkSettings returns the position of each setting as FILE:LINE. It returns an error for an unknown
// key, because a misspelt one would silently have no effect.
func checkSettings(path string, data []byte, known []string) (map[string]string, error) {
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil || len(doc.Content) == 0 {
		return nil, nil // an empty file; viper has reported syntax errors
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, &textfile.Fault{File: path, Line: max(second.Line, 1), What: "a second document, expected one"}
	}
	positions := map[string]string{}
	for i := 0; i+1 < len(doc.Content[0].Content); i += 2 {
		key := doc.Content[0].Content[i]
		if name := strings.ToLower(key.Value); slices.Contains(known, name) {
			positions[name] = fmt.Sprintf("%s:%d", path, key.Line)
			continue
		}
		return nil, &textfile.Fault{File: path, Line: key.Line, Where: key.Value,
			What: fmt.Sprintf("unknown setting in version %s, expected the long name of a flag%s", Version, suggestion(key.Value, known))}
	}
	return positions, nil
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// configFault converts an error of viper to the form FILE:LINE: fault, in which gfaas reports faults
// of all files.
func configFault(path string, err error) error {
	parse, ok := errors.AsType[viper.ConfigParseError](err)
	if !ok {
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

// settingKey is the annotation of a flag whose value came from a setting. It holds the origin of the
// setting: FILE:LINE or the name of an environment variable.
const settingKey = "gfaas-setting"

// applySettings sets each flag that is not on the command line from GFAAS_<FLAG> or the config file.
func applySettings(flags *pflag.FlagSet, config string) error {
	v := viper.New()
	v.SetEnvPrefix("GFAAS")
	v.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	v.AutomaticEnv()
	positions, err := readConfig(v, flags, config)
	if err != nil {
		return err
	}
	var first error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || first != nil || slices.Contains(unsettable, f.Name) {
			return
		}
		// Inside `gfaas run`, these variables configure the preload library instead.
		if slices.Contains([]string{"socket", "oversubscribe", "no-nvml"}, f.Name) && os.Getenv("GFAAS_INSTANCE") != "" {
			return
		}
		if !v.IsSet(f.Name) {
			return
		}
		switch v.Get(f.Name).(type) {
		case map[string]any, []any:
			first = Usagef("%s: setting %s: expected one value", positions[f.Name], f.Name)
			return
		}
		origin := positions[f.Name]
		if name := settingVariable(f.Name); os.Getenv(name) != "" {
			origin = name
		}
		if err := flags.Set(f.Name, v.GetString(f.Name)); err != nil {
			first = Usagef("%s: setting %s: %w", origin, f.Name, flagFault(err))
			return
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[settingKey] = []string{origin}
	})
	return first
}

// isSetting reports whether the value of a flag came from a setting.
func isSetting(f *pflag.Flag) bool {
	_, ok := f.Annotations[settingKey]
	return ok
}

// originsOfSettings explains the flags that a message mentions but that are not on the command line: it
// returns the origin of each setting that the message mentions as --FLAG.
func originsOfSettings(flags *pflag.FlagSet, message string) string {
	var origins []string
	flags.VisitAll(func(f *pflag.Flag) {
		mention := regexp.MustCompile(`(^|[^-\w])--` + regexp.QuoteMeta(f.Name) + `($|[^-\w])`)
		if origin := f.Annotations[settingKey]; len(origin) > 0 && f.Changed && mention.MatchString(message) {
			origins = append(origins, fmt.Sprintf("--%s is set by %s", f.Name, origin[0]))
		}
	})
	return strings.Join(origins, ", ")
}

// dropSetting resets a flag to its default, as if it had no setting. A list needs Replace, because Set
// appends to a list that has been set before, and because pflag prints the default of a list in a form
// that Set does not parse.
func dropSetting(f *pflag.Flag) error {
	f.Changed = false
	delete(f.Annotations, settingKey)
	list, ok := f.Value.(pflag.SliceValue)
	if !ok {
		return f.Value.Set(f.DefValue)
	}
	var words []string
	if text := strings.Trim(f.DefValue, "[]"); text != "" {
		words = strings.Split(text, ",")
	}
	return list.Replace(words)
}

// OnCommandLine reports whether a flag is on the command line. It returns false for a setting: settings apply
// to all commands, so a command must not fail because of one that it does not support.
func OnCommandLine(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	return f != nil && f.Changed && !isSetting(f)
}

// Conflict reports whether two mutually exclusive flags are both set. If one of them is on the command
// line and the other is a setting, the command line takes precedence: Conflict resets the other to its
// default and returns false.
func Conflict(flags *pflag.FlagSet, first, second string) bool {
	a, b := flags.Lookup(first), flags.Lookup(second)
	switch {
	case !a.Changed || !b.Changed:
		return false
	case isSetting(a) == isSetting(b):
		return true
	case isSetting(b):
		a = b
	}
	return dropSetting(a) != nil
}

// Reread updates the flags that are not on the command line from the current environment and config
// file. Daemons call it on SIGHUP.
func (env *Env) Reread(flags *pflag.FlagSet) error {
	var first error
	flags.VisitAll(func(f *pflag.Flag) {
		if isSetting(f) && first == nil {
			first = dropSetting(f)
		}
	})
	if first != nil {
		return first
	}
	return applySettings(flags, env.config)
}

// NoteRestart logs the names of the changed settings. It is called for settings that take effect only
// after a restart. changed holds, by name, whether the value of the setting differs from the old one.
func NoteRestart(log *slog.Logger, changed map[string]bool) {
	var names []string
	for name, isChanged := range changed {
		if isChanged {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		log.Warn("these settings count after a restart only", "settings", names)
	}
}

// xdgFolder returns the folder that a variable like XDG_CONFIG_HOME names. If it is not set, xdgFolder
// returns the folder inHome of the home folder or, if the user has no home folder, system.
func xdgFolder(variable, inHome, system string) string {
	if dir := os.Getenv(variable); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return system
	}
	return filepath.Join(home, inHome)
}

// StatePath returns the path of the state file: $GFAAS_STATE, $XDG_STATE_HOME/gfaas/state.db or
// ~/.local/state/gfaas/state.db, in this order.
func StatePath() string {
	return cmp.Or(os.Getenv("GFAAS_STATE"), filepath.Join(xdgFolder("XDG_STATE_HOME", ".local/state", "/var/lib"), "gfaas", "state.db"))
}
