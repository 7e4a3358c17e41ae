package cli

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// settingKey marks the flags whose value is a setting's.
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
		if f.Changed || first != nil || f.Name == "help" || f.Name == "version" || f.Name == "config" {
			return
		}
		// Inside `gfaas run` these variables are the preload library's, not ours.
		if (f.Name == "socket" || f.Name == "oversubscribe") && os.Getenv("GFAAS_INSTANCE") != "" {
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
		if err := flags.Set(f.Name, v.GetString(f.Name)); err != nil {
			place := places[f.Name]
			if name := "GFAAS_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")); os.Getenv(name) != "" {
				place = name
			}
			first = Usagef("%s: setting %s: %w", place, f.Name, flagFault(err))
			return
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[settingKey] = nil
	})
	return first
}

func isSetting(f *pflag.Flag) bool {
	_, ok := f.Annotations[settingKey]
	return ok
}

// putAside has a flag as if there were no setting for it.
func putAside(f *pflag.Flag) error {
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

// Both says whether two flags are given that exclude each other. A setting
// gives way to a flag on the command line.
func Both(flags *pflag.FlagSet, one, other string) bool {
	a, b := flags.Lookup(one), flags.Lookup(other)
	switch {
	case !a.Changed || !b.Changed:
		return false
	case isSetting(a) == isSetting(b):
		return true
	case isSetting(b):
		a = b
	}
	return putAside(a) != nil
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

// RunDir is the folder of the daemons' sockets: $GFAAS_RUN_DIR, else
// $XDG_RUNTIME_DIR/gfaas, else /run/gfaas.
func RunDir() string {
	if dir := os.Getenv("GFAAS_RUN_DIR"); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "gfaas")
	}
	return "/run/gfaas"
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
