package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/textfile"
)

const variablePrefix = "GFAAS_"

// settingVariable returns the environment variable of a setting: GFAAS_GPU_MEM for gpu-mem.
func settingVariable(name string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// Variables returns the environment variables that do not correspond to a flag. The man page
// gfaas-environment(7) describes them.
func Variables() []string {
	return []string{"GFAAS_CONFIG", "GFAAS_RUN_DIR", "GFAAS_STATE", "GFAAS_LIB_DIR", "GFAAS_SIM_GPU", "GFAAS_SIM_DIR", "GFAAS_SIM_NOTED",
		"GFAAS_NO_NVML", "GFAAS_OVERSUBSCRIBE", "GFAAS_FUNCTION", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_GRANT", "GFAAS_SOCKET", "GFAAS_DEVICES",
		"GFAAS_MODEL_SOCKET", "GFAAS_USER", "GFAAS_JOB"}
}

// testVariables lists variables, without the prefix, that tests read and programs ignore.
var testVariables = strings.Fields("BROWSER DEMANDS EDITS KILLS LOCALITY PICTURES RATIOS SOAK")

// completionSuffixes lists suffixes of the variables that cobra reads during shell completion.
var completionSuffixes = []string{"_ACTIVE_HELP", "_COMPLETION_DESCRIPTIONS"}

// unknownVariables returns notes about unknown variables with the prefix GFAAS_, since they have no effect.
func unknownVariables(flags *pflag.FlagSet, environ []string) (notes []string) {
	known := append(Variables(), lists.Map(SettingsOf(flags, Settings()), settingVariable)...)
	plain := lists.Map(known, withoutSigns)
	var unknown []string
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		if !strings.HasPrefix(name, variablePrefix) || value == "" || slices.Contains(known, name) ||
			slices.Contains(testVariables, strings.TrimPrefix(name, variablePrefix)) ||
			slices.ContainsFunc(completionSuffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) }) {
			continue
		}
		if meant := textfile.Slip(withoutSigns(name), plain); meant != "" {
			notes = append(notes, fmt.Sprintf("note: unknown environment variable %s: %s?", name, known[slices.Index(plain, meant)]))
		} else {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		notes = append(notes, "note: unknown environment variables: "+strings.Join(unknown, ", "))
	}
	return notes
}

func withoutSigns(name string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, variablePrefix), "_", ""))
}
