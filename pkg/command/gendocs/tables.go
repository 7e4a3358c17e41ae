package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/gfaas"
	"github.com/gfaas/gfaas/pkg/command/place/manifest"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/daemon/kernel"
	tokend "github.com/gfaas/gfaas/pkg/daemon/token"
	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/model"
	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/policy/place/pack"
	"github.com/gfaas/gfaas/pkg/policy/placement"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/reason"
)

// tables maps the names of tables in docs/ to their generators. A page marks a table with <!-- table NAME --> before
// and <!-- end --> after it.
var tables = map[string]func() string{
	"policies": func() string {
		return list("| `--policy` | dispatches next | parameters (`--set`) |", queue.Kinds(), func(k queue.Kind) []string { return row(k.Name, k.Help, "", k.Parameters) })
	},
	"scalers": func() string {
		return list("| `--scaler` | | parameters (`--scaler-set`; in `gfaas-sim scale`, `--set`) |", scale.Kinds(), func(k scale.Kind) []string { return row(k.Name, k.Help, "", k.Parameters) })
	},
	"estimators": func() string {
		return list("| `--estimator` | | parameters (`--scaler-set`; in `gfaas-sim scale`, `--set`) |", scale.EstimatorKinds(), func(k scale.EstimatorKind) []string { return row(k.Name, k.Help, "", k.Parameters) })
	},
	"algorithms": func() string {
		return list("| `--algorithm` | | flags |", place.Kinds(), func(k place.Kind) []string { return row(k.Name, k.Help, "--", k.Parameters) })
	},
	"schedulers": func() string {
		return list("| `--scheduler` | |", online.Kinds(), func(k online.Kind) []string { return []string{"`" + k.Name + "`", k.Help} })
	},
	"placements": func() string {
		return list("| `--placement` | where an instance goes | parameters (`--placement-set`) |", placement.Kinds(), func(k placement.Kind) []string { return row(k.Name, k.Help, "", k.Parameters) })
	},
	"exporters": func() string {
		return list("| `gfaas-place export` | |", manifest.Kinds(), func(k manifest.Kind) []string { return []string{"`" + k.Name + "`", k.Help} })
	},
	"reasons_queue":     func() string { return reasons(queue.Reasons) },
	"reasons_gateway":   func() string { return reasons(slices.Concat(refusal.Reasons, kernel.Reasons)) },
	"reasons_token":     func() string { return reasons(slices.Concat(token.Reasons, tokend.Reasons)) },
	"reasons_scale":     func() string { return reasons(scale.Reasons) },
	"reasons_place":     func() string { return reasons(place.Reasons) },
	"reasons_online":    func() string { return reasons(online.Reasons) },
	"reasons_placement": func() string { return reasons(placement.Reasons) },
	"reasons_pack":      func() string { return reasons(pack.Reasons) },
	"reasons_models":    func() string { return reasons(model.Reasons) },
	"templates": func() string {
		return list("| `--template` | |", gfaas.Templates(), func(e cli.Entry) []string { return []string{"`" + e.Name + "`", e.Help} })
	},
}

// row returns a table row: a name, its help, and its parameters with their defaults, each after a prefix.
func row[T any](name, help, prefix string, parameters []policy.Parameter[T]) []string {
	var keys []string
	for _, p := range parameters {
		key := prefix + p.Key
		if p.Default != "" {
			key += "=" + p.Default
		}
		keys = append(keys, "`"+key+"`")
	}
	return []string{"`" + name + "`", strings.TrimSuffix(help, "."), strings.Join(keys, ", ")}
}

// reasons returns the table of codes. It explains a parameter of several codes once.
func reasons(all reason.Table) string {
	explained := map[reason.ParamDoc]bool{}
	return list("| code | meaning | parameters |", all, func(e reason.Entry) []string {
		var params []string
		for _, d := range e.Params {
			text := "`" + d.Key + "`"
			if !explained[d] {
				text += ": " + d.Help
			}
			explained[d] = true
			params = append(params, text)
		}
		return []string{"`" + string(e.Code) + "`", e.Help, strings.Join(params, "; ")}
	})
}

// marked matches a table with its markers.
var marked = regexp.MustCompile(`(?s)(<!-- table ([\w/-]+) -->\n).*?(<!-- end -->)`)

// writeTables copies the pages that contain marked tables from one folder to another and updates the tables. It
// returns an error if a page has an unknown table, or if no page has a table.
func writeTables(from, to string, tables map[string]func() string) error {
	pages, err := filepath.Glob(filepath.Join(from, "*.md"))
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		found := marked.FindAllSubmatch(text, -1)
		if len(found) == 0 {
			continue
		}
		for _, m := range found {
			name := string(m[2])
			if tables[name] == nil {
				return fmt.Errorf("%s: unknown table %s", page, name)
			}
			seen[name] = true
		}
		now := marked.ReplaceAllStringFunc(string(text), func(table string) string {
			m := marked.FindStringSubmatch(table)
			return m[1] + tables[m[2]]() + m[3]
		})
		if err := os.WriteFile(filepath.Join(to, filepath.Base(page)), []byte(now), 0o644); err != nil {
			return err
		}
	}
	for name := range tables {
		if !seen[name] {
			return fmt.Errorf("no page in %s has the table %s", from, name)
		}
	}
	return nil
}

// list formats a table with a row for each item.
func list[T any](header string, all []T, row func(T) []string) string {
	var b strings.Builder
	b.WriteString(header + "\n" + strings.Repeat("|---", strings.Count(header, "|")-1) + "|\n")
	for _, e := range all {
		b.WriteByte('|')
		for _, cell := range row(e) {
			if cell != "" {
				b.WriteString(" " + strings.ReplaceAll(cell, "|", `\|`))
			}
			b.WriteString(" |")
		}
		b.WriteByte('\n')
	}
	return b.String()
}
