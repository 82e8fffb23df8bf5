package main

import (
	"fmt"
	"strings"
	"testing"

	"fence/pkg/build"
)

// What all tasks of a dataset lack is said once; another reason is not lost
// behind it.
func TestSayUnplanned(t *testing.T) {
	var rows []unplanned
	for i := range 30 {
		rows = append(rows, unplanned{name: fmt.Sprintf("t%02d", i), text: fmt.Sprintf("/d/t%02d/Dockerfile:1: no base", i), same: "Dockerfile:1: no base", hint: "name it"})
	}
	rows = append(rows, unplanned{name: "own", text: "/d/own/Dockerfile:2: RUNN", same: "Dockerfile:2: RUNN"})
	var out strings.Builder
	sayUnplanned(&out, rows)
	if want := "sifbuild: t00: no plan: /d/t00/Dockerfile:1: no base (and 29 tasks more)\nhint: name it\nsifbuild: own: no plan: /d/own/Dockerfile:2: RUNN\n"; out.String() != want {
		t.Errorf("said:\n%swant:\n%s", out.String(), want)
	}
	for i := range 12 {
		rows = append(rows, unplanned{name: "x", text: fmt.Sprint(i), same: fmt.Sprint(i)})
	}
	out.Reset()
	sayUnplanned(&out, rows)
	if want := "sifbuild: and 4 more have no plan\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("said:\n%swant at the end: %s", out.String(), want)
	}
}

// A failure of many tasks is one row, with the log of one of them.
func TestSummary_SameFailure(t *testing.T) {
	o := recorder{}
	for i := range 25 {
		o.reports = append(o.reports, build.Report{Name: fmt.Sprintf("t%02d", i), Task: fmt.Sprintf("/d/t%02d", i), Log: fmt.Sprintf("/logs/%d.log", i), Fault: &build.Fault{Class: "require", Message: "no tmux"}})
	}
	o.reports = append(o.reports, build.Report{Name: "own", Task: "/d/own", Fault: &build.Fault{Class: "step", Message: "/d/own/Dockerfile:2: false"}})
	o.failed = len(o.reports)
	var out strings.Builder
	o.summary(&out, 80)
	for _, want := range []string{"t00       require  no tmux (and 24 tasks more)\n", "log: /logs/0.log\n", "own       step     Dockerfile:2: false\n", "no image for 26 tasks: require 25, step 1\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "/logs/1.log") {
		t.Errorf("the same is said twice:\n%s", out.String())
	}
}
