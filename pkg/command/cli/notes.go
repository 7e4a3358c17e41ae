package cli

import "strings"

// Note is a section that every help text and man page ends with.
type Note struct{ Title, Text string }

// Notes are all of them.
var Notes = []Note{
	{"SETTINGS", `Every flag can be given as GFAAS_FLAG in the environment (GFAAS_GPU_MEM is
--gpu-mem), or as a line of the settings file (gpu-mem: 16GiB); a flag wins
over the environment, the environment over the file. The file is for all
programs; a line that none of them knows is an error.`},
	{"EXIT STATUS", `0 done; 1 failed (bad input included); 2 wrong usage; 3 the answer is no;
4 something needed is missing; 5 timed out; 6 state locked; 7 partly done,
can be resumed; 130, 143 ended by SIGINT, SIGTERM`},
}

// notesHelp is the notes as a help text has them.
func notesHelp() string {
	var b strings.Builder
	for _, n := range Notes {
		b.WriteString("\n" + n.Title + "\n  " + strings.ReplaceAll(n.Text, "\n", "\n  ") + "\n")
	}
	return b.String()
}
