package build

import (
	"encoding/json"
	"os"

	"fence/pkg/check"
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
	Cached    bool            `json:"cached"`    // it was there: nothing was done
	Built     int             `json:"built"`     // steps that were done
	Reused    int             `json:"reused"`    // steps that this run or an earlier one had done
	Installed []string        `json:"installed"` // commands that --require brought
	Bytes     int64           `json:"bytes"`
	Seconds   float64         `json:"seconds"` // of the build that made it
	Attempts  int             `json:"attempts"`
	Log       string          `json:"log"` // "" if nothing was begun
	Warnings  []string        `json:"warnings"`
	Findings  []check.Finding `json:"findings"` // of looking at the image
	Smoke     string          `json:"smoke"`    // of starting it: "ok", "not run: WHY", or "" if it did not come to that
	Checked   []string        `json:"checked"`  // names the tests and solutions that were looked for in it, by content
	Bases     []BaseUse       `json:"bases"`
	Fault     *Fault          `json:"fault,omitempty"`
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
	if r.Findings == nil {
		r.Findings = []check.Finding{}
	}
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}
