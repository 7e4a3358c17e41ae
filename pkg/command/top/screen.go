package top

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gfaas/gfaas/pkg/status"
)

// Config holds the settings of a live screen.
type Config struct {
	Snapshot func(context.Context) (status.Status, error)
	Interval time.Duration
	Count    int // number of snapshots after which Run returns; 0 means no limit
	Color    bool
	In       io.Reader
	Out      io.Writer
}

// Run shows snapshots of the state until the user quits, c.Count snapshots were taken, or ctx is
// cancelled. If the last snapshot failed, Run returns its error.
func Run(ctx context.Context, c Config) error {
	m := newScreen(ctx, c)
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(c.In), tea.WithOutput(c.Out), tea.WithWindowSize(m.width, m.height), tea.WithoutSignalHandler()).Run()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	}
	return m.fault
}

// screen is the model of the bubbletea program.
type screen struct {
	config Config
	ctx    context.Context
	styles styles

	status status.Status
	fault  error     // error of the last snapshot
	taken  int       // number of snapshots
	at     time.Time // time of status; zero before the first snapshot

	width, height int
	functions     view[status.Function]
	instances     view[status.Instance]
	lowerFocused  bool   // keys apply to the lower table (instances), not to the upper one (functions)
	filter        string // both tables show only names that contain it
	typing        bool   // the user is editing the filter
	paused        bool   // new snapshots are not shown
}

// view describes how a table is shown: its columns, its sort order and its scroll position.
type view[T any] struct {
	columns  []column[T]
	sortedBy int  // index of the column that the rows are sorted by
	reversed bool // the column's order is reversed
	first    int  // index of the first row shown
}

type styles struct{ title, dim, head, sorted, bar, fault ansi.Style }

func newStyles(c Config) (s styles) {
	if c.Color {
		s = styles{
			title: ansi.NewStyle(ansi.AttrBold), dim: ansi.NewStyle(ansi.AttrFaint), head: ansi.NewStyle(ansi.AttrBold),
			sorted: ansi.NewStyle(ansi.AttrBold, ansi.AttrUnderline), bar: ansi.NewStyle(ansi.AttrGreenForegroundColor), fault: ansi.NewStyle(ansi.AttrRedForegroundColor),
		}
	}
	return s
}

func newScreen(ctx context.Context, c Config) *screen {
	return &screen{config: c, ctx: ctx, styles: newStyles(c), width: 80, height: 24,
		functions: view[status.Function]{columns: functionColumns}, instances: view[status.Instance]{columns: instanceColumns}}
}

// snapshotMsg is the message with a new snapshot.
type snapshotMsg struct {
	status status.Status
	err    error
	at     time.Time
}

// tickMsg is the message that triggers the next snapshot.
type tickMsg struct{}

func (s *screen) snapshot() tea.Msg {
	ctx, cancel := context.WithTimeout(s.ctx, max(s.config.Interval, snapshotTime))
	defer cancel()
	now, err := s.config.Snapshot(ctx)
	return snapshotMsg{now, err, time.Now()}
}

// snapshotTime is the minimum time limit for a snapshot.
const snapshotTime = 2 * time.Second

// Init implements tea.Model.
func (s *screen) Init() tea.Cmd { return s.snapshot }

// Update implements tea.Model.
func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return s, s.key(msg)
	case tea.PasteMsg:
		if s.typing {
			s.filter += msg.Content
		}
	case snapshotMsg:
		s.taken++
		if s.fault = msg.err; msg.err == nil && !s.paused {
			s.status, s.at = msg.status, msg.at
		}
		if s.config.Count > 0 && s.taken >= s.config.Count {
			return s, tea.Quit
		}
		return s, tea.Tick(s.config.Interval, func(time.Time) tea.Msg { return tickMsg{} })
	case tickMsg:
		return s, s.snapshot
	}
	return s, nil
}

// key handles a key press.
func (s *screen) key(k tea.KeyPressMsg) tea.Cmd {
	if s.typing {
		s.typed(k)
		return nil
	}
	switch k.String() {
	case "q", "ctrl+c", "esc":
		return tea.Quit
	case "tab":
		s.lowerFocused = !s.lowerFocused
	case "/":
		s.typing, s.filter = true, ""
	case "p", "space":
		s.paused = !s.paused
	default:
		if s.lowerFocused {
			s.instances.key(k.String())
		} else {
			s.functions.key(k.String())
		}
	}
	return nil
}

// typed handles a key press while the user edits the filter.
func (s *screen) typed(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter":
		s.typing = false
	case "esc", "ctrl+c":
		s.typing, s.filter = false, ""
	case "backspace":
		if r := []rune(s.filter); len(r) > 0 {
			s.filter = string(r[:len(r)-1])
		}
	default:
		s.filter += k.Text
	}
}

// key changes the sort order or the scroll position of a table, if k is one of its keys.
func (v *view[T]) key(k string) {
	switch k {
	case "s", "right", "l", ">":
		v.sortedBy = (v.sortedBy + 1) % len(v.columns)
	case "S", "left", "h", "<":
		v.sortedBy = (v.sortedBy + len(v.columns) - 1) % len(v.columns)
	case "r":
		v.reversed = !v.reversed
	case "down", "j":
		v.first++
	case "up", "k":
		v.first = max(v.first-1, 0)
	case "home", "g":
		v.first = 0
	}
}

// sorted returns the values for which match returns true, in the view's sort order.
func (v *view[T]) sorted(values []T, match func(*T) bool) []T {
	out := slices.DeleteFunc(slices.Clone(values), func(value T) bool { return !match(&value) })
	slices.SortStableFunc(out, func(a, b T) int {
		if v.reversed {
			a, b = b, a
		}
		return v.columns[v.sortedBy].order(&a, &b)
	})
	return out
}

// View implements tea.Model.
func (s *screen) View() tea.View {
	v := tea.NewView(s.text())
	v.AltScreen = true
	return v
}

// text returns the content of the screen.
func (s *screen) text() string {
	functions := s.functions.sorted(s.status.Functions, func(f *status.Function) bool { return strings.Contains(f.Function, s.filter) })
	instances := s.instances.sorted(s.status.Instances, func(i *status.Instance) bool {
		return strings.Contains(i.ID, s.filter) || strings.Contains(i.Function, s.filter)
	})
	lines := []string{s.title()}
	for i := range s.status.GPUs {
		lines = append(lines, s.gpu(&s.status.GPUs[i]))
	}
	if len(s.status.Models) > 0 {
		lines = append(lines, s.models())
	}
	// room is the number of rows for both tables, without the help line (1), and the header and
	// the empty line of each table (4). The functions get half of it, or more if the instances
	// do not need their half.
	room := max(s.height-len(lines)-1-4, 2)
	upper := min(len(functions), max(room-len(instances), (room+1)/2))
	lines = append(lines, "")
	lines = append(lines, show(s, &s.functions, functions, upper, !s.lowerFocused)...)
	lines = append(lines, "")
	lines = append(lines, show(s, &s.instances, instances, max(room-upper, 1), s.lowerFocused)...)
	for len(lines) < s.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(min(len(lines), s.height-1), 1)], s.help())
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], s.width, "…")
	}
	return strings.Join(lines, "\n")
}

func (s *screen) title() string {
	parts := []string{s.styles.title.Styled("gfaas top")}
	switch {
	case s.fault != nil:
		parts = append(parts, s.styles.fault.Styled(s.fault.Error()))
	case s.at.IsZero():
		parts = append(parts, "…")
	case s.paused:
		parts = append(parts, s.at.Format(time.TimeOnly), "paused")
	default:
		parts = append(parts, s.at.Format(time.TimeOnly))
	}
	if s.filter != "" && !s.typing {
		parts = append(parts, "filter: "+s.filter)
	}
	return strings.Join(parts, "  ")
}

func (s *screen) help() string {
	if s.typing {
		return "filter by name: " + s.filter + "▏"
	}
	return s.styles.dim.Styled("q quit  tab other table  s/S sort by  r reverse  / filter  p pause  ↑↓ scroll")
}

// gpu returns the line of a GPU, with bars for its utilization and its memory.
func (s *screen) gpu(g *status.GPU) string {
	width := min(max((s.width-66)/2, 5), 40)
	name := 8
	for _, other := range s.status.GPUs {
		name = max(name, len(other.GPU)) // a GPU of a swarm has the name of its node
	}
	text := fmt.Sprintf("GPU %-*s", name, g.GPU)
	if g.BusyPct != nil {
		text += fmt.Sprintf(" busy %s %3.0f%%", s.bar(*g.BusyPct/100, width), *g.BusyPct)
	}
	if g.MemUsedMiB != nil {
		text += " mem "
		if g.MemMiB != nil && *g.MemMiB > 0 {
			text += fmt.Sprintf("%s %s/%s GiB", s.bar(*g.MemUsedMiB / *g.MemMiB, width), rounded(*g.MemUsedMiB/1024), rounded(*g.MemMiB/1024))
		} else {
			text += rounded(*g.MemUsedMiB/1024) + " GiB"
		}
	}
	if g.Running != nil && g.Slots != nil {
		text += fmt.Sprintf("  runs %d of %d", *g.Running, *g.Slots)
	}
	if g.Closed {
		text += "  closed"
	}
	return text
}

// models returns the line that lists the models.
func (s *screen) models() string {
	text := "models"
	for _, m := range s.status.Models {
		text += fmt.Sprintf("  %s %s MiB", m.Name, rounded(m.MemMiB))
		if m.State != "gpu" {
			text += " (" + m.State + ")"
		} else if m.Refs > 0 {
			text += fmt.Sprintf(" held by %d", m.Refs)
		}
	}
	return text
}

// bar returns a bar of the given width. The filled fraction is from 0 to 1.
func (s *screen) bar(fraction float64, width int) string {
	full := int(min(max(fraction, 0), 1)*float64(width) + 0.5)
	return s.styles.bar.Styled(strings.Repeat("█", full)) + s.styles.dim.Styled(strings.Repeat("░", width-full))
}

// show returns a table's header and up to most rows, from the scroll position on. If more rows
// follow, the last line shows their number instead. If focus is true, the header marks the
// column that the rows are sorted by.
func show[T any](s *screen, v *view[T], values []T, most int, focus bool) []string {
	v.first = min(v.first, max(len(values)-most, 0))
	shown := values[v.first:min(v.first+most, len(values))]
	table := rows(v.columns, shown)
	widths := make([]int, len(v.columns))
	for _, row := range table {
		for i, cell := range row {
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	out := make([]string, 0, len(table))
	for n, row := range table {
		var line strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-ansi.StringWidth(cell))
			switch {
			case n == 0 && i == v.sortedBy && focus:
				cell = s.styles.sorted.Styled(cell)
			case n == 0:
				cell = s.styles.head.Styled(cell)
			}
			if v.columns[i].words {
				cell += space
			} else {
				cell = space + cell
			}
			line.WriteString(cell + "  ")
		}
		out = append(out, strings.TrimRight(line.String(), " "))
	}
	if hidden := len(values) - v.first - len(shown); hidden > 0 {
		out[len(out)-1] = s.styles.dim.Styled(fmt.Sprintf("… %d more", hidden+1))
	}
	return out
}
