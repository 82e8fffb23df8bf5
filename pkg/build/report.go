package build

import (
	"encoding/json"
	"os"
)

// ReportSchema names the record of one image.
const ReportSchema = "sifbuild.image/v1"

// Report is all that is known about the build of one image.
type Report struct {
	Schema    string   `json:"schema"`
	Name      string   `json:"name"`  // of the task
	Task      string   `json:"task"`  // its folder
	Key       string   `json:"key"`   // names the image by everything that went into it
	Image     string   `json:"image"` // path of the SIF, "" after a fault
	Arch      string   `json:"arch"`
	Cached    bool     `json:"cached"` // it was there: nothing was done
	Built     int      `json:"built"`  // steps that were done
	Reused    int      `json:"reused"` // steps that this run or an earlier one had done
	Installed []string `json:"installed,omitempty"`
	Bytes     int64    `json:"bytes"`
	Seconds   float64  `json:"seconds"`
	Attempts  int      `json:"attempts"`
	Log       string   `json:"log,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
	Fault     *Fault   `json:"fault,omitempty"`
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}
