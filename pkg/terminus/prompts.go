package terminus

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// The messages to the model are ours; the names of fields, what they mean and
// when each message is sent are Terminus-2's.

const rules = `You carry out a task in a Linux terminal. You see what the terminal shows, you answer with what is to be typed next, and so on until the task is done.

Answer with one JSON object and nothing else:

{
  "analysis": "What does the terminal show? What is done, and what is not done yet?",
  "plan": "What will you do next and why? What do you expect each command to do?",
  "commands": [
    {"keystrokes": "cd /app\n", "duration": 0.1},
    {"keystrokes": "make\n", "duration": 20.0}
  ],
  "task_complete": false
}

"analysis", "plan" and "commands" are required, in this order. "commands" may be empty: then you only see the terminal again. "task_complete" may be left out and is then false; set it to true when all of the task is done and checked.

Of each command:
- "keystrokes" (required) is typed exactly as it stands. A line is carried out only when it ends with a newline, \n. Keys without a character are written by their names in tmux, alone in a command: C-c is Ctrl+C, C-d is Ctrl+D, Escape, Up, Enter.
- "duration" is how many seconds to wait before the next command is typed or the terminal is shown; 1.0 if left out. 0.1 is enough for what ends at once (cd, ls, cat), 1.0 for most others; give builds, downloads and long scripts what they need. More than 60 seconds are never waited. Rather wait too short than too long: {"keystrokes": "", "duration": 10.0} waits on.

The JSON must be valid: within strings write \" for a quote, \\ for a backslash and \n for a newline.
`

// opening is the first message.
func opening(instruction, terminal string) string {
	return rules + "\nThe task:\n" + instruction + "\n\nThe terminal now:\n" + terminal
}

// broken answers a reply that could not be read.
func broken(p Parsed) string {
	s := "Your reply could not be read, and nothing of it was done.\nERROR: " + p.Error
	if len(p.Warnings) > 0 {
		s += "\nWARNINGS: " + list(p.Warnings)
	}
	return s + "\n\nSend the whole JSON object again, without these mistakes."
}

// cutShort answers a reply that reached a limit of n tokens, or of an unknown
// number if n is 0.
func cutShort(n int, p Parsed) string {
	limit := "the longest reply that is possible"
	if n > 0 {
		limit = fmt.Sprintf("%d tokens", n)
	}
	s := "ERROR: your reply was cut off at " + limit + ", and NOTHING of it was done. Do the same in smaller steps, each in a reply that is well below that."
	if len(p.Warnings) > 0 {
		s += "\nWARNINGS: " + list(p.Warnings)
	}
	return s
}

// warned puts warnings before what the terminal shows.
func warned(warnings []string, terminal string) string {
	if len(warnings) == 0 {
		return terminal
	}
	return "WARNINGS about your reply: " + list(warnings) + "\n\n" + terminal
}

// confirm asks once more when the model says that it is done.
func confirm(terminal string) string {
	return "The terminal now:\n" + terminal + "\n\nDo you want to end here? Your work is then graded as it is, and you cannot change it any more. " +
		`If all is done, send "task_complete": true once more; if not, go on.`
}

// mostWarnings and mostWarning bound what a model is told of its mistakes: a
// reply has as many as it likes, and each may quote it.
const (
	mostWarnings = 8
	mostWarning  = 200 // bytes
)

// list is warnings, a line each if there are several.
func list(warnings []string) string {
	var all []string
	for _, w := range warnings[:min(len(warnings), mostWarnings)] {
		if len(w) > mostWarning {
			w = strings.ToValidUTF8(w[:mostWarning], "") + " ..."
		}
		all = append(all, w)
	}
	if more := len(warnings) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("... and %d more", more))
	}
	if len(all) == 1 {
		return all[0]
	}
	return "\n- " + strings.Join(all, "\n- ")
}

// summaryRequest, questionsRequest and answersRequest are the messages of a
// hand-over, and continuation the one after it.
func summaryRequest(instruction string) string {
	return `This conversation is about to become too long, and another agent will go on with the task. Write down for it, in plain text and not as JSON, all that it has to know:

1. What has been done: every command that mattered, and what came of it.
2. What was found out: files and where they are, settings, versions, error messages.
3. What went wrong, and how it was solved.
4. How things stand now, and what is left to do.

It sees nothing of this conversation but what you write. The task was:
` + instruction
}

func questionsRequest(instruction, summary, screen string) string {
	return "You take over a task from another agent.\n\nThe task:\n" + instruction +
		"\n\nWhat the other agent wrote down for you:\n" + summary +
		"\n\nThe terminal's screen now:\n" + screen +
		"\n\nAsk the other agent, in plain text and not as JSON, what you need to know and is not said here: five questions or more. You can ask only this once."
}

func answersRequest(questions string) string {
	return "The other agent asks you this. Answer each question in full, in plain text and not as JSON:\n\n" + questions
}

func continuation(answers string) string {
	return "These are the other agent's answers:\n\n" + answers +
		"\n\nGo on with the task from here. No more questions can be asked: from now on reply with the JSON object that was described."
}

// MaxOutput is how many bytes of the terminal a model is shown at once, at most.
const MaxOutput = 10_000

// clip keeps the first and the last half of a limit, and says what is missing,
// with what was missing before.
func clip(s string, limit, omitted int) string {
	if len(s) <= limit {
		return s
	}
	first, last := s[:limit/2], s[len(s)-limit/2:]
	for len(first) > 0 && !utf8.ValidString(lastRune(first)) {
		first = first[:len(first)-1]
	}
	for len(last) > 0 && !utf8.RuneStart(last[0]) {
		last = last[1:]
	}
	return fmt.Sprintf("%s\n[... only %d bytes are shown: %d bytes in between are left out ...]\n%s",
		first, limit, len(s)+omitted-len(first)-len(last), last)
}

func lastRune(s string) string {
	i := len(s) - 1
	for i > 0 && !utf8.RuneStart(s[i]) {
		i--
	}
	return s[i:]
}

// fenceWords are what programs print when a door is closed. They print them
// for other reasons too, so a turn that has one only may have met the fence.
var fenceWords = []string{
	"Permission denied",
	"Operation not permitted",
	"Read-only file system",
	"Network is unreachable",
	"Network unreachable",
	"Could not resolve",
	"Temporary failure in name resolution",
	"Temporary failure resolving",
	"Name or service not known",
	"Connection refused",
	"Cannot allocate memory",
	"No space left on device",
}

func metFence(output string) []string {
	var met []string
	low := strings.ToLower(output)
	for _, w := range fenceWords {
		if strings.Contains(low, strings.ToLower(w)) {
			met = append(met, w)
		}
	}
	return met
}
