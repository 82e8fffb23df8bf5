package page

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"fence/pkg/internal/readfile"
	"fence/pkg/report"
	"fence/pkg/result"
)

// Of what a trial left, so much is shown: of a longer text both ends.
const (
	maxText     = 256 << 10 // of one text
	maxTurns    = 4 << 20   // of all texts of a trajectory
	maxCalls    = 500       // of one turn
	maxNotes    = 50        // of one turn
	maxCallText = 1 << 20   // of a turn's calls
	maxScreens  = 8 << 20   // of what a terminal was sent
	maxWork     = 64 << 20  // to draw that, in letters' (trajectory.Plain): about 6 s
	maxMark     = 200       // of a mark's name
	maxFile     = 512 << 20 // of a file that is read whole
	maxSeconds  = 9e9       // of a time: what a time.Duration has room for
)

// detail is one trial, with all that is shown of it.
type detail struct {
	Rows      [][2]string        `json:"rows"` // what is said of it, in order
	Phases    []phase            `json:"phases"`
	Fault     *result.Fault      `json:"fault"`
	Tainted   []result.Taint     `json:"tainted"`
	Warnings  []string           `json:"warnings"`
	Isolation []string           `json:"isolation"`
	Rewards   map[string]float64 `json:"rewards"`
	Parts     []part             `json:"parts"`
}

// phase is when one was, in seconds from the beginning of the trial.
type phase struct {
	Name string  `json:"name"`
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

// part is a trial, or one step of one that has several.
type part struct {
	Name     string   `json:"name"`  // "" for a trial without steps
	Facts    []string `json:"facts"` // what came of a step
	Turns    []turn   `json:"turns"`
	Cut      int      `json:"cut"` // turns that are not shown
	Replay   *cast    `json:"replay"`
	Verifier string   `json:"verifier"`
	Script   string   `json:"script"` // what the task's solution printed
	Note     string   `json:"note"`   // what could not be read
}

func details(t report.Trial) detail {
	d := detail{Fault: t.Fault, Tainted: t.Tainted, Warnings: t.Warnings, Phases: []phase{}, Parts: []part{}}
	facts := map[string][]string{}
	for i, b := range report.Show(t, 0) {
		switch {
		case i == 0:
			for _, r := range b.Rows {
				d.Rows = append(d.Rows, [2]string{r[0], r[1]})
			}
		case b.Heading == "Isolation":
			d.Isolation = b.Lines
		default:
			if step, ok := strings.CutPrefix(b.Heading, "Step "); ok {
				facts[step] = b.Lines
			}
		}
	}
	if t.VerifierResult != nil {
		d.Rewards = t.VerifierResult.Rewards
	}
	for _, p := range report.Phases(t) {
		if p.Time.FinishedAt != nil {
			d.Phases = append(d.Phases, phase{p.Name, p.Time.StartedAt.Sub(t.StartedAt).Seconds(), p.Time.FinishedAt.Sub(t.StartedAt).Seconds()})
		}
	}
	if t.Dir == "" {
		return d
	}
	if len(t.StepResults) == 0 {
		d.Parts = append(d.Parts, partOf("", t.Dir, t.AgentInfo.Name))
	}
	known := map[string]bool{}
	for _, s := range t.StepResults {
		if dir := t.StepDir(s.StepName); dir != "" && !known[dir] {
			known[dir] = true
			p := partOf(s.StepName, dir, t.AgentInfo.Name)
			p.Facts = facts[s.StepName]
			d.Parts = append(d.Parts, p)
		}
	}
	return d
}

// partOf reads what verifier and agent left. Commands in the container can put
// any file into an agent's folder, which is not one of ours already: of each
// agent only that is shown of which nobody else is the author.
func partOf(name, dir, agent string) part {
	p := part{Name: name, Turns: []turn{}, Verifier: text(filepath.Join(dir, "verifier", "test-stdout.txt"))}
	switch dir = filepath.Join(dir, "agent"); agent {
	case "nop":
	case "oracle":
		p.Script = text(filepath.Join(dir, "oracle.txt"))
	default:
		var err error
		if p.Turns, p.Cut, err = turnsOf(dir); err != nil {
			p.Note = err.Error()
		}
		p.Replay = recording(filepath.Join(dir, "recording.cast"))
	}
	return p
}

// text is a file for reading: both ends of a long one, "" of none.
func text(path string) string {
	begin, end, left, err := readfile.Ends(path, maxText/2, maxText/2)
	if err != nil {
		return ""
	}
	between := ""
	if left > 0 {
		between = leftOut(left)
	}
	return string(begin) + between + string(end)
}

// short is a text with both ends of a long one.
func short(s string, most int) string {
	if len(s) <= most {
		return s
	}
	from, to := most/2, len(s)-most/2
	for from > 0 && !utf8.RuneStart(s[from]) {
		from--
	}
	for to < len(s) && !utf8.RuneStart(s[to]) {
		to++
	}
	return s[:from] + leftOut(int64(to-from)) + s[to:]
}

func leftOut(n int64) string { return fmt.Sprintf("\n[... %d bytes are left out here ...]\n", n) }
