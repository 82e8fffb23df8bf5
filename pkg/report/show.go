package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fence/pkg/internal/text"
	"fence/pkg/result"
)

// Show lays out one trial for a person. Of what the verifier printed the last
// lines are there.
func Show(t Trial, lines int) []Block {
	head := Block{Heading: t.TrialName, Level: 1, Header: []string{"", ""}, Left: 2, Words: true}
	row := func(what, value string) {
		if value != "" {
			head.Rows = append(head.Rows, []string{what, value})
		}
	}
	row("verdict", said(t))
	row("likely cause", Likely(t))
	row("task", strings.TrimPrefix(DatasetOf(t)+" / "+t.TaskName, "adhoc / "))
	row("task folder", t.Task)
	row("agent", strings.TrimSpace(t.AgentInfo.Name+" "+t.AgentInfo.Version+" "+ModelOf(t)))
	row("settings", settings(t.Settings))
	row("ended by", ended(t.Agent))
	row("reward from", from(t.Verify))
	if t.VerifierResult != nil && len(t.VerifierResult.Rewards) > 1 {
		row("rewards", rewards(t.VerifierResult.Rewards))
	}
	if t.Attempt > 1 || t.Tries > 1 {
		row("attempt", fmt.Sprintf("%d; %s", t.Attempt, times(t.Tries, "try", "tries")))
	}
	if a := result.TallyOf(t.Trial); a.Input != nil || a.Output != nil {
		row("tokens", fmt.Sprintf("%d in, %d out", deref(a.Input), deref(a.Output)))
	}
	if r := RepliesOf(t); r != (Replies{}) {
		row("replies", r.String())
	}
	row("time", phases(t))
	row("most used", usage(t.Usage))
	row("image", t.Image)
	row("node", t.Node)
	row("files", t.Dir)
	out := []Block{head}
	if f := t.Fault; f != nil {
		out = append(out, Block{Heading: "Fault", Level: 2, Lines: reasons(*f)})
	}
	for _, s := range t.StepResults {
		b := Block{Heading: "Step " + s.StepName, Level: 2, Lines: []string{"verdict: " + said(Trial{Trial: result.Trial{Reward: s.Reward, Fault: s.Fault}}), "ended by: " + ended(s.Agent)}}
		if s.Fault != nil {
			b.Lines = append(b.Lines, reasons(*s.Fault)...)
		}
		out = append(out, b)
	}
	if len(t.Tainted) > 0 {
		b := Block{Heading: "Tainted", Level: 2, Lines: []string{"the agent changed these files, and the verifier then executed or loaded them:"}}
		for _, x := range t.Tainted {
			b.Lines = append(b.Lines, x.Path+": "+x.Why)
		}
		out = append(out, b)
	}
	if len(t.Warnings) > 0 {
		out = append(out, Block{Heading: "Warnings", Level: 2, Lines: t.Warnings})
	}
	if t.Isolation != nil {
		out = append(out, ofIsolation(isolation([]Trial{t}), 1))
	}
	for _, p := range [][2]string{{"The verifier's last lines", t.Verifier}, {"The solution's last lines", t.Script}} {
		if last := lastLines(p[1], lines); len(last) > 0 {
			out = append(out, Block{Heading: p[0], Level: 2, Lines: last})
		}
	}
	return out
}

// said is a verdict in words.
func said(t Trial) string {
	switch k := Kind(t); {
	case k == "fault":
		f := Why(t)
		return "none: " + f.Class + " (" + f.Phase + ", cause: " + f.Cause + ")"
	case k == "solved":
		return "solved, reward " + number(*t.Reward)
	case k == "partly":
		return "solved in part, reward " + number(*t.Reward)
	default:
		return "failed, reward " + number(*t.Reward)
	}
}

func ended(a result.AgentEnd) string {
	out := a.Stop
	if a.Turns > 0 {
		out += ", " + times(a.Turns, "turn", "turns")
	}
	if a.ExitCode != nil {
		out += fmt.Sprintf(", exit code %d", *a.ExitCode)
	}
	return cmp.Or(strings.TrimPrefix(out, ", "), "it never began")
}

func from(v *result.VerifyEnd) string {
	if v == nil {
		return ""
	}
	out := cmp.Or(v.From, "no file")
	if v.ExitCode != nil {
		return out + fmt.Sprintf("; the tests ended with %d", *v.ExitCode)
	}
	return out + "; the tests did not end by themselves"
}

func rewards(m map[string]float64) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+" "+number(m[k]))
	}
	return strings.Join(all, ", ")
}

// Phase is one that a trial came to.
type Phase struct {
	Name string
	Time *result.Timing
}

// Phases are those of a trial, in their order.
func Phases(t Trial) []Phase {
	all := []Phase{{"start", t.EnvironmentSetup}, {"setup", t.AgentSetup}, {"agent", t.AgentExecution}, {"verifier", t.VerifierTiming}}
	return slices.DeleteFunc(all, func(p Phase) bool { return p.Time == nil })
}

func phases(t Trial) string {
	all := []string{duration(span(t.StartedAt, &t.FinishedAt))}
	for _, p := range Phases(t) {
		all = append(all, p.Name+" "+duration(span(p.Time.StartedAt, p.Time.FinishedAt)))
	}
	return strings.Join(all, "; ")
}

func usage(u result.Usage) string {
	if u == (result.Usage{}) {
		return ""
	}
	return fmt.Sprintf("%s of memory, %s of disk, %s, %s of CPU", text.Size(u.MemoryBytes), text.Size(u.DiskBytes), times(u.Processes, "process", "processes"), duration(u.CPUSec))
}

func reasons(f result.Fault) []string {
	out := []string{f.Class + " in the phase " + f.Phase + ", cause: " + f.Cause}
	if f.Message != "" {
		out = append(out, f.Message)
	}
	if f.Hint != "" {
		out = append(out, "hint: "+f.Hint)
	}
	return out
}

// lastLines are the last n lines that are not blank at the end.
func lastLines(s string, n int) []string {
	s = strings.TrimRight(s, " \t\r\n")
	if s == "" || n <= 0 {
		return nil
	}
	all := strings.Split(s, "\n")
	return all[max(0, len(all)-n):]
}
