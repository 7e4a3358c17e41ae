package events

import (
	"encoding/csv"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/number"
)

// Write writes events as Read reads them. The column gpu is there when an
// event names models.
func Write(w io.Writer, all []Event) error {
	header := []string{"time_s", "action", "instance", "function", "kind", "gpus", "sm_request", "sm_limit", "mem_mib"}
	named := slices.ContainsFunc(all, func(e Event) bool { return len(e.Models) > 0 })
	if named {
		header = append(header, "gpu")
	}
	out := csv.NewWriter(w)
	if err := out.Write(header); err != nil {
		return err
	}
	for _, e := range all {
		row := []string{number.Plain(e.Time), stop, e.Instance, e.Function, e.Kind, "", "", "", ""}
		if e.Start {
			row = []string{number.Plain(e.Time), start, e.Instance, e.Function, e.Kind, strconv.Itoa(e.GPUs),
				number.Plain(e.SMRequest), number.Plain(e.SMLimit), number.Plain(e.MemMiB)}
		}
		if named {
			row = append(row, strings.Join(e.Models, "|"))
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
