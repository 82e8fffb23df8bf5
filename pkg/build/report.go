package build

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fence/pkg/check"
	"fence/pkg/dockerfile"
)

// ReportSchema names the record of one image.
const ReportSchema = "sifbuild.image/v1"

// Report is all that is known about the build of one image. Its lists are
// never nil.
type Report struct {
	Schema    string          `json:"schema"`
	Name      string          `json:"name"`  // of the task
	Task      string          `json:"task"`  // its folder
	Key       string          `json:"key"`   // names the image by everything that went into it
	Image     string          `json:"image"` // path of the SIF, "" after a fault
	Arch      string          `json:"arch"`
	Engine    string          `json:"engine"`    // that did its steps, or began to: "native", "sandbox", or "" if nothing was begun
	Cached    bool            `json:"cached"`    // it was there: nothing was done
	Built     int             `json:"built"`     // steps that were done
	Reused    int             `json:"reused"`    // steps that this run or an earlier one had done
	Installed []string        `json:"installed"` // commands that --require brought
	Bytes     int64           `json:"bytes"`
	Seconds   float64         `json:"seconds"` // of the build that made it
	Attempts  int             `json:"attempts"`
	Tries     []Try           `json:"tries"` // that failed, before the last attempt
	Log       string          `json:"log"`   // "" if nothing was begun
	Warnings  []string        `json:"warnings"`
	Findings  []check.Finding `json:"findings"` // of looking at the image
	Smoke     string          `json:"smoke"`    // of starting it: "ok", "not run: WHY", or "" if it did not come to that
	Checked   []string        `json:"checked"`  // names the tests and solutions that were looked for in it, by content
	Bases     []BaseUse       `json:"bases"`
	Fault     *Fault          `json:"fault,omitempty"`

	// made are the warnings of making the image, as the cache keeps them: a
	// line of a Dockerfile is a step of the plan there, for others have other
	// Dockerfiles of the same image.
	made []string
	rest time.Duration // of the step that failed: it is not tried again for so long
}

// Try is an attempt that failed, in a way that might pass.
type Try struct {
	Class   string  `json:"class"`
	Message string  `json:"message"`
	Seconds float64 `json:"seconds"`
	Pause   float64 `json:"pause"` // seconds until the next attempt
}

// warn notes a warning of the nth step of a plan, from 1; 0: of none.
func (r *Report) warn(p *dockerfile.Plan, nth int, text string) {
	r.Warnings = append(r.Warnings, placed(p, nth)+text)
	if nth > 0 {
		text = fmt.Sprintf("step %d: %s", nth, text)
	}
	r.made = append(r.made, text)
}

// placed is where a step stands in a plan's Dockerfile.
func placed(p *dockerfile.Plan, nth int) string {
	if nth == 0 {
		return ""
	}
	n := nth - 1
	for _, st := range p.Stages {
		if n < len(st.Steps) {
			return fmt.Sprintf("%s:%d: ", p.File, st.Steps[n].Line)
		}
		n -= len(st.Steps)
	}
	return ""
}

// keep writes the record that lies beside an image.
func (b *Builder) keep(r *Report) error {
	kept := *r
	kept.Warnings = append([]string{}, r.made...)
	return writeJSON(b.reportFile(r.Key), kept)
}

// there fills in the report of an image that is in the cache.
func (b *Builder) there(w Want, r *Report) bool {
	var made Report
	if readJSON(b.reportFile(w.Key), &made) != nil {
		return false
	}
	// Of another size it is not what was looked at: a lost write of the storage, a copy that was cut short.
	if info, err := os.Stat(b.Image(w.Key)); err != nil || info.Size() != made.Bytes {
		return false
	}
	// What it says of the work was true when that was done.
	made.Name, made.Cached, made.Built, made.Reused, made.Seconds = r.Name, true, 0, made.Built+made.Reused, 0
	made.Image, made.Log = r.Image, b.logFile(w.Key) // a cache can be moved
	made.made, made.Warnings = made.Warnings, r.Warnings
	for _, text := range made.made {
		var nth int
		if _, err := fmt.Sscanf(text, "step %d:", &nth); err == nil {
			_, text, _ = strings.Cut(text, ": ")
		}
		made.Warnings = append(made.Warnings, placed(w.Plan, nth)+text)
	}
	made.lists()
	*r = made
	use(r.Image)
	return true
}

// BaseUse is an image that a build took from.
type BaseUse struct {
	Name   string   `json:"name"` // as in the Dockerfile
	Digest string   `json:"digest"`
	From   []string `json:"from"` // who gave any of it to the run that built: a registry, mirrors; empty if it was all in the cache
}

func newReport(name, key, image, arch string) *Report {
	r := &Report{Schema: ReportSchema, Name: name, Key: key, Image: image, Arch: arch}
	r.lists()
	return r
}

// PlanReport is the report of a Dockerfile that cannot be planned.
func PlanReport(arch string, err error) *Report {
	r := newReport("", "", "", arch)
	r.Fault = planFault(err)
	return r
}

// lists makes empty lists of those that are missing.
func (r *Report) lists() {
	for _, l := range []*[]string{&r.Installed, &r.Warnings, &r.Checked} {
		if *l == nil {
			*l = []string{}
		}
	}
	if r.Bases == nil {
		r.Bases = []BaseUse{}
	}
	if r.Tries == nil {
		r.Tries = []Try{}
	}
	if r.Findings == nil {
		r.Findings = []check.Finding{}
	}
}

// readJSON reads a record of the cache. One that is cut short may only look so to
// a node that remembers the size of the one before it: a new name shows it whole.
func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err = json.Unmarshal(data, v); err == nil {
		return nil
	}
	look := filepath.Join(filepath.Dir(path), ".look-"+rand.Text())
	if os.Link(path, look) != nil {
		return err
	}
	defer os.Remove(look)
	if data, err = os.ReadFile(look); err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}
