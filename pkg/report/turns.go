package report

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"fence/pkg/internal/text"
	"fence/pkg/trajectory"
)

// Turns lays out what the model did in a trial: a row a call, or with n its
// nth turn in full, of each step that has one. Nothing is laid out of an agent
// that left no turns.jsonl; what cannot be read is an error, with those blocks
// that could be made.
func Turns(t Trial, n int) (out []Block, err error) {
	parts := map[string]string{"": t.Dir}
	order := []string{""}
	for _, s := range t.StepResults {
		if dir := t.StepDir(s.StepName); dir != "" {
			parts[s.StepName] = dir
			order = append(order, s.StepName)
		}
	}
	for _, name := range order {
		turns, failed := trajectory.ReadFile(filepath.Join(parts[name], "agent", "turns.jsonl"))
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
		of := ""
		if name != "" {
			of = " of step " + name
		}
		switch {
		case n > 0:
			for _, x := range turns {
				if x.Turn == n {
					out = append(out, inFull(x, of)...)
				}
			}
		case len(turns) > 0:
			out = append(out, listed(turns, of))
		}
	}
	return out, err
}

func listed(turns []trajectory.Turn, of string) Block {
	b := Block{Heading: "Turns" + of, Level: 2, Header: []string{"Turn", "Note", "Seconds", "Typed first"}, Left: 2, Words: true}
	for _, x := range turns {
		b.Rows = append(b.Rows, []string{fmt.Sprint(x.Turn), noteOf(x), fmt.Sprintf("%.1f", x.ModelSec+x.TerminalSec), typedFirst(x)})
	}
	b.Lines = []string{"fence?: its output has words that a closed door may have caused. --turn N shows one in full"}
	return b
}

// noteOf is what sets a turn apart, in a word or two.
func noteOf(x trajectory.Turn) string {
	switch {
	case x.Kind != trajectory.Act:
		return x.Kind
	case x.Finish == "length":
		return "cut off"
	case x.Error != "":
		return "not read"
	case len(x.Fence) > 0:
		return "fence?"
	case x.TaskComplete:
		return "done"
	}
	return ""
}

// typedFirst is the first line that was typed, cut to a row's room.
func typedFirst(x trajectory.Turn) string {
	if len(x.Commands) == 0 {
		return ""
	}
	line, _, _ := strings.Cut(x.Commands[0].Keystrokes, "\n")
	return text.Short(text.Printable(line), 48)
}

func inFull(x trajectory.Turn, of string) []Block {
	head := Block{Heading: fmt.Sprintf("Turn %d%s", x.Turn, of), Level: 1, Lines: []string{fmt.Sprintf("the model took %.1fs, the terminal %.1fs", x.ModelSec, x.TerminalSec)}}
	line := func(what, value string) {
		if value != "" {
			head.Lines = append(head.Lines, what+value)
		}
	}
	if x.Kind != trajectory.Act {
		line("a call that hands the conversation over: ", x.Kind)
	}
	if x.PromptTokens != nil && x.CompletionTokens != nil {
		line("tokens: ", fmt.Sprintf("%d in, %d out", *x.PromptTokens, *x.CompletionTokens))
	}
	line("nothing of the reply was done: ", x.Error)
	line("warnings: ", strings.Join(x.Warnings, "; "))
	line("may have met the fence: ", strings.Join(x.Fence, ", "))
	line("the agent ended: ", x.Stop)
	out := []Block{head}
	whole := func(heading, s string) {
		if s = strings.TrimRight(s, "\n"); s != "" {
			out = append(out, Block{Heading: heading, Level: 2, Lines: strings.Split(s, "\n")})
		}
	}
	whole("What it was asked", x.Prompt)
	whole("What it thought", x.Reasoning)
	whole("What it replied", x.Reply)
	for _, c := range x.Commands {
		whole(fmt.Sprintf("Typed, then a wait of %gs", c.Duration), fmt.Sprintf("%q", c.Keystrokes))
	}
	whole("What the terminal showed", x.Output)
	return out
}
