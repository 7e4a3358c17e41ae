package cli

import (
	"bytes"
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

// settings.txt has the settings of all programs, which share a config file:
// what one of them does not know may be another's. Gendocs writes it.
//
//go:embed settings.txt
var settings string

// unsettable are flags that no setting stands for.
var unsettable = []string{"help", "version", "config"}

// SettingsOf adds the names of a command's settings to a list.
func SettingsOf(flags *pflag.FlagSet, to []string) []string {
	flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(unsettable, f.Name) {
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
		data, err := readBounded(path)
		if named == "" && errors.Is(err, fs.ErrNotExist) {
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
		places, err := checkSettings(path, data, SettingsOf(flags, Settings()))
		return places, Fail(ExitFailure, "", err)
	}
	return nil, nil
}

// maxConfig is the largest config file, in bytes.
const maxConfig = 1 << 20

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return textfile.ReadAll(f, &textfile.Checker{Name: path, Is: "YAML", Total: maxConfig})
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
			What: fmt.Sprintf("unknown setting in version %s, expected the long name of a flag%s", Version, suggestion(key.Value, known))}
	}
	return places, nil
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

// settingKey is the annotation of flags whose value came from a setting.
const settingKey = "gfaas-setting"

// applySettings sets each flag that was not given on the command line from
// GFAAS_<FLAG> or the config file.
func applySettings(flags *pflag.FlagSet, config string) error {
	v := viper.New()
	v.SetEnvPrefix("GFAAS")
	v.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	v.AutomaticEnv()
	places, err := readConfig(v, flags, config)
	if err != nil {
		return err
	}
	var first error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || first != nil || slices.Contains(unsettable, f.Name) {
			return
		}
		// Inside `gfaas run` these variables are the preload library's, not ours.
		if slices.Contains([]string{"socket", "oversubscribe", "no-nvml"}, f.Name) && os.Getenv("GFAAS_INSTANCE") != "" {
			return
		}
		if !v.IsSet(f.Name) {
			return
		}
		switch v.Get(f.Name).(type) {
		case map[string]any, []any:
			first = Usagef("%s: setting %s: expected one value", places[f.Name], f.Name)
			return
		}
		place := places[f.Name]
		if name := "GFAAS_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")); os.Getenv(name) != "" {
			place = name
		}
		if err := flags.Set(f.Name, v.GetString(f.Name)); err != nil {
			first = Usagef("%s: setting %s: %w", place, f.Name, flagFault(err))
			return
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[settingKey] = []string{place}
	})
	return first
}

func isSetting(f *pflag.Flag) bool {
	_, ok := f.Annotations[settingKey]
	return ok
}

// settingsIn names the settings, as --FLAG, which a message is about: where they come from,
// since the flag itself is not on the command line.
func settingsIn(flags *pflag.FlagSet, message string) string {
	var from []string
	flags.VisitAll(func(f *pflag.Flag) {
		at := regexp.MustCompile(`(^|[^-\w])--` + regexp.QuoteMeta(f.Name) + `($|[^-\w])`)
		if place := f.Annotations[settingKey]; len(place) > 0 && f.Changed && at.MatchString(message) {
			from = append(from, fmt.Sprintf("--%s is set by %s", f.Name, place[0]))
		}
	})
	return strings.Join(from, ", ")
}

// dropSetting gives a flag its default again, as if there were no setting for it.
func dropSetting(f *pflag.Flag) error {
	f.Changed = false
	delete(f.Annotations, settingKey)
	return f.Value.Set(f.DefValue)
}

// Given says whether a flag is on the command line. A setting, which is for
// all commands, is no reason to refuse one to which it means nothing.
func Given(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	return f != nil && f.Changed && !isSetting(f)
}

// Conflict says whether two flags that exclude each other are both set. Where
// only one of them is on the command line, the other, a setting, is dropped.
func Conflict(flags *pflag.FlagSet, one, other string) bool {
	a, b := flags.Lookup(one), flags.Lookup(other)
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

// Reread sets the flags that were not given on the command line from the
// environment and the config file as they are now: what a daemon does on
// SIGHUP.
func (env *Env) Reread(flags *pflag.FlagSet) error {
	var first error
	flags.VisitAll(func(f *pflag.Flag) {
		if _, ok := f.Annotations[settingKey]; !ok || first != nil {
			return
		}
		first = reset(f)
		f.Changed = false
		delete(f.Annotations, settingKey)
	})
	if first != nil {
		return first
	}
	return applySettings(flags, env.config)
}

// NoteRestart says of settings that were read again which of them changed and cannot
// take effect before a restart.
func NoteRestart(log *slog.Logger, changed map[string]bool) {
	var names []string
	for name, is := range changed {
		if is {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		log.Warn("these settings count after a restart only", "settings", names)
	}
}

// reset gives a flag its default. What a list is set to, once it has been, is
// added to it, and its default is printed as none is read.
func reset(f *pflag.Flag) error {
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

func configHome() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "/etc/xdg"
	}
	return filepath.Join(home, ".config")
}

// StatePath is the state file: $GFAAS_STATE, else
// $XDG_STATE_HOME/gfaas/state.db, else ~/.local/state/gfaas/state.db.
func StatePath() string {
	if path := os.Getenv("GFAAS_STATE"); path != "" {
		return path
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "gfaas", "state.db")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "/var/lib/gfaas/state.db"
	}
	return filepath.Join(home, ".local", "state", "gfaas", "state.db")
}
