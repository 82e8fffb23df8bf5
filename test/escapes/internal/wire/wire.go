// Package wire is what the test says to the program that runs attempts, and what comes back.
package wire

import "slices"

// Spec says which rows to run, and how.
type Spec struct {
	Attempt string            // path of the attempt program
	Base    string            // folder for fixtures, the user's own
	Prefix  []string          // what stands before the program: the fence; {hidden} and {work} are replaced
	Args    map[string]string // more arguments for the attempts
	Rows    []Row
}

// Row is one row to run and the fixtures it needs besides the usual ones.
type Row struct {
	Name string
	With []string
}

// Has says whether the row needs a fixture.
func (r Row) Has(fixture string) bool { return slices.Contains(r.With, fixture) }

// Result is what came of a row.
type Result struct {
	Row     string
	Steps   []Step
	Changed []string // parts of the victim's state that differ afterwards
	Details []string // how
	Said    string   // on standard error, and how it ended if not with status 0
	Broken  string   // the row could not be run
}

// Step is one attempt and its outcome: "OK", the name of an error number or of a signal.
type Step struct {
	Row   string `json:"row"`
	Step  string `json:"step"`
	Errno string `json:"errno"`
	Note  string `json:"note"`
	What  string `json:"what,omitempty"` // the path that the row was told of, if it was
}

// Outcome is errno and note as the table has them.
func (s Step) Outcome() string {
	if s.Note != "" {
		return s.Errno + " " + s.Note
	}
	return s.Errno
}
