package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fence/pkg/job"
)

// Who runs trials and on what is known without asking anybody but Apptainer.
func TestHost(t *testing.T) {
	apptainer := filepath.Join(t.TempDir(), "apptainer")
	if err := os.WriteFile(apptainer, []byte("#!/bin/sh\necho apptainer version 1.4.2-5\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"SLURM_JOB_ID": "78"}
	here := job.Here{Root: "/", Getenv: func(name string) string { return env[name] }}
	h := hostOf(t.Context(), here, apptainer, "v1")
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(h.User, "uid 0") && os.Getuid() == 0 || h.Job != "78" || h.Rollout != "v1" || h.Apptainer != "1.4.2-5" || h.Kernel != strings.TrimSpace(string(release)) {
		t.Errorf("%+v", h)
	}
	env["SLURM_ARRAY_JOB_ID"], env["SLURM_ARRAY_TASK_ID"] = "77", "2"
	if h := hostOf(t.Context(), here, "/nonexistent", "v1"); h.Job != "77_2" || h.Apptainer != "" {
		t.Errorf("%+v", h)
	}
	for base, want := range map[string]string{"http://gpu01:8000/v1": "http://gpu01:8000/v1", "unix:/tmp/x/model.sock": "unix:/tmp/x/model.sock", "https://u:secret@h/v1?key=secret": "https://h/v1"} {
		if got := serverOf(base); got != want {
			t.Errorf("%s: %s", base, got)
		}
	}
}
