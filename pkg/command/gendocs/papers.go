package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/sim/figure"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// paperTables returns the tables of results and published figures: papers/NAME is that of NAME.csv
// in the folder. It returns an error if a large difference from a published figure has no reason.
func paperTables(folder string) (map[string]func() string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.csv"))
	if err != nil {
		return nil, err
	}
	found := map[string]func() string{}
	for _, file := range files {
		rows, err := readFigures(file)
		if err != nil {
			return nil, err
		}
		found["papers/"+strings.TrimSuffix(filepath.Base(file), ".csv")] = func() string { return figure.Markdown(rows) }
	}
	return found, nil
}

func readFigures(file string) ([]figure.Row, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := figure.Read(f, file)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		if !r.Explained() {
			return nil, &textfile.Fault{File: file, Line: r.Line, Where: "reason", What: fmt.Sprintf(
				"empty, expected a sentence: %s differs from the published %s by more than %g%%", r.WithUnit(r.Ours), r.Published(), 100*figure.NeedsReason)}
		}
	}
	return rows, nil
}
