// Package tasks has small tasks in Harbor's format, each for something that a
// trial must get right, and what comes of them: see README.md.
package tasks

import (
	_ "embed"
	"regexp"
)

//go:embed README.md
var readme string

var row = regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| .+ \\| ([a-z0-9._/]+) \\| ([a-z0-9._/]+) \\|$")

// Want is what comes of one task: a reward to four places, the class of a
// fault, or "n/a" where there is nothing to run.
type Want struct{ Oracle, Nop string }

// Wants is the table of README.md, by the task's name.
func Wants() map[string]Want {
	all := map[string]Want{}
	for _, m := range row.FindAllStringSubmatch(readme, -1) {
		all[m[1]] = Want{m[2], m[3]}
	}
	return all
}
