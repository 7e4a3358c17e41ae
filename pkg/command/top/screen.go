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

// Config is what a live screen goes by.
type Config struct {
	Look     func(context.Context) (status.Status, error)
	Interval time.Duration
	Count    int // looks; 0 is until it is ended
	Color    bool
	In       io.Reader
	Out      io.Writer
}

// Run shows how everything stands until the user ends it or the context does. The
// error is that of the last look, if that failed.
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

// screen is what is shown.
type screen struct {
	config Config
	ctx    context.Context
	styles styles

	status status.Status
	fault  error // of the last look
	looks  int
	at     time.Time

	width, height int
	functions     view[status.Function]
	instances     view[status.Instance]
	below         bool // keys are for the instances
	filter        string
	typing        bool // the filter
	paused        bool
}

// view is a table as it is shown: in which order, and from which row on.
type view[T any] struct {
	columns []column[T]
	by      int // column
	upward  bool
	from    int
}

type styles struct{ title, dim, head, by, bar, fault ansi.Style }

func newStyles(c Config) (s styles) {
	if c.Color {
		s = styles{
			title: ansi.NewStyle(ansi.AttrBold), dim: ansi.NewStyle(ansi.AttrFaint), head: ansi.NewStyle(ansi.AttrBold),
			by: ansi.NewStyle(ansi.AttrBold, ansi.AttrUnderline), bar: ansi.NewStyle(ansi.AttrGreenForegroundColor), fault: ansi.NewStyle(ansi.AttrRedForegroundColor),
		}
	}
	return s
}

func newScreen(ctx context.Context, c Config) *screen {
	return &screen{config: c, ctx: ctx, styles: newStyles(c), width: 80, height: 24,
		functions: view[status.Function]{columns: functionColumns}, instances: view[status.Instance]{columns: instanceColumns}}
}

// looked is what a look gave.
type looked struct {
	status status.Status
	err    error
	at     time.Time
}

type again struct{}

func (s *screen) look() tea.Msg {
	ctx, cancel := context.WithTimeout(s.ctx, max(s.config.Interval, lookTime))
	defer cancel()
	now, err := s.config.Look(ctx)
	return looked{now, err, time.Now()}
}

// lookTime is for an answer, at least.
const lookTime = 2 * time.Second

// Init implements tea.Model.
func (s *screen) Init() tea.Cmd { return s.look }

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
	case looked:
		s.looks++
		if s.fault = msg.err; msg.err == nil && !s.paused {
			s.status, s.at = msg.status, msg.at
		}
		if s.config.Count > 0 && s.looks >= s.config.Count {
			return s, tea.Quit
		}
		return s, tea.Tick(s.config.Interval, func(time.Time) tea.Msg { return again{} })
	case again:
		return s, s.look
	}
	return s, nil
}

// key does what a key is for.
func (s *screen) key(k tea.KeyPressMsg) tea.Cmd {
	if s.typing {
		s.typed(k)
		return nil
	}
	switch k.String() {
	case "q", "ctrl+c", "esc":
		return tea.Quit
	case "tab":
		s.below = !s.below
	case "/":
		s.typing, s.filter = true, ""
	case "p", "space":
		s.paused = !s.paused
	default:
		if s.below {
			s.instances.key(k.String())
		} else {
			s.functions.key(k.String())
		}
	}
	return nil
}

// typed takes a key into the filter.
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

// key changes the order, or where the table begins.
func (v *view[T]) key(k string) {
	switch k {
	case "s", "right", "l", ">":
		v.by = (v.by + 1) % len(v.columns)
	case "S", "left", "h", "<":
		v.by = (v.by + len(v.columns) - 1) % len(v.columns)
	case "r":
		v.upward = !v.upward
	case "down", "j":
		v.from++
	case "up", "k":
		v.from = max(v.from-1, 0)
	case "home", "g":
		v.from = 0
	}
}

// sorted is the rows that a filter lets through, in order.
func (v *view[T]) sorted(values []T, has func(*T) bool) []T {
	var out []T
	for i := range values {
		if has(&values[i]) {
			out = append(out, values[i])
		}
	}
	slices.SortStableFunc(out, func(a, b T) int {
		if v.upward {
			a, b = b, a
		}
		return v.columns[v.by].order(&a, &b)
	})
	return out
}

// View implements tea.Model.
func (s *screen) View() tea.View {
	v := tea.NewView(s.text())
	v.AltScreen = true
	return v
}

// text is what the screen shows.
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
	room := max(s.height-len(lines)-1-4, 2) // the last line, two headers, two empty lines
	upper := min(len(functions), max(room-len(instances), (room+1)/2))
	lines = append(lines, "")
	lines = append(lines, show(s, &s.functions, functions, upper, !s.below)...)
	lines = append(lines, "")
	lines = append(lines, show(s, &s.instances, instances, max(room-upper, 1), s.below)...)
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
		parts = append(parts, "only "+s.filter)
	}
	return strings.Join(parts, "  ")
}

func (s *screen) help() string {
	if s.typing {
		return "only names with: " + s.filter + "▏"
	}
	return s.styles.dim.Styled("q end  tab other table  s/S order by  r reverse  / filter  p pause  ↑↓ scroll")
}

// gpu is a GPU as bars.
func (s *screen) gpu(g *status.GPU) string {
	width := min(max((s.width-66)/2, 5), 40)
	text := fmt.Sprintf("GPU %-8s", g.GPU)
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
	return text
}

// models are those that are on GPUs, in a line.
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

// bar is a part of 1 in so many cells.
func (s *screen) bar(part float64, width int) string {
	full := int(min(max(part, 0), 1)*float64(width) + 0.5)
	return s.styles.bar.Styled(strings.Repeat("█", full)) + s.styles.dim.Styled(strings.Repeat("░", width-full))
}

// show is a table in so many rows and its header.
func show[T any](s *screen, v *view[T], values []T, most int, focus bool) []string {
	v.from = min(v.from, max(len(values)-most, 0))
	shown := values[v.from:min(v.from+most, len(values))]
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
			case n == 0 && i == v.by && focus:
				cell = s.styles.by.Styled(cell)
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
	if left := len(values) - v.from - len(shown); left > 0 {
		out[len(out)-1] = s.styles.dim.Styled(fmt.Sprintf("… %d more", left+1))
	}
	return out
}
