package cli

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/textfile"
)

const variablePrefix = "GFAAS_"

// Variables are those of the environment that stand for no flag; gfaas-environment(7)
// says what each is for.
func Variables() []string {
	return []string{"GFAAS_CONFIG", "GFAAS_RUN_DIR", "GFAAS_STATE", "GFAAS_LIB_DIR", "GFAAS_SIM_GPU", "GFAAS_SIM_DIR", "GFAAS_SIM_NOTED",
		"GFAAS_NO_NVML", "GFAAS_OVERSUBSCRIBE", "GFAAS_FUNCTION", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_SOCKET", "GFAAS_DEVICES",
		"GFAAS_MODEL_SOCKET", "GFAAS_USER"}
}

// ofTests are those, without the prefix, that the tests read and the programs under them
// do not.
var ofTests = strings.Fields("BROWSER DEMANDS EDITS KILLS LOCALITY PICTURES RATIOS SOAK")

// ofShells are how those end that cobra reads when a shell completes a command line.
var ofShells = []string{"_ACTIVE_HELP", "_COMPLETION_DESCRIPTIONS"}

// noteStray tells of variables with our prefix that are none of ours: nobody would see
// that they do nothing.
func (env *Env) noteStray(flags *pflag.FlagSet, environ []string) {
	known := Variables()
	for _, name := range SettingsOf(flags, Settings()) {
		known = append(known, variablePrefix+strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
	}
	plain := make([]string, len(known))
	for i, name := range known {
		plain[i] = withoutSigns(name)
	}
	var others []string
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		if !strings.HasPrefix(name, variablePrefix) || value == "" || slices.Contains(known, name) ||
			slices.Contains(ofTests, strings.TrimPrefix(name, variablePrefix)) ||
			slices.ContainsFunc(ofShells, func(end string) bool { return strings.HasSuffix(name, end) }) {
			continue
		}
		if meant := textfile.Slip(withoutSigns(name), plain); meant != "" {
			env.Notef("note: the environment has %s, which means nothing: %s?", name, known[slices.Index(plain, meant)])
		} else {
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		slices.Sort(others)
		env.Notef("note: the environment has variables that mean nothing: %s", strings.Join(others, ", "))
	}
}

func withoutSigns(name string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, variablePrefix), "_", ""))
}
