package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
	"fence/pkg/job"
	"fence/pkg/result"
)

// hostOf says who runs trials here and on what, for the operators. What cannot
// be told is left out.
func hostOf(ctx context.Context, h job.Here, apptainer, version string) *result.Host {
	out := result.Host{User: fmt.Sprintf("uid %d", os.Getuid()), Rollout: version, Landlock: host.DetectLandlock().ABI}
	if u, err := user.Current(); err == nil && u.Username != "" {
		out.User = u.Username + ", " + out.User
	}
	out.Job = h.Getenv("SLURM_JOB_ID")
	if array := h.Getenv("SLURM_ARRAY_JOB_ID"); array != "" {
		out.Job = array + "_" + h.Getenv("SLURM_ARRAY_TASK_ID")
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		out.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, apptainer, "--version")
	cmd.WaitDelay = time.Second
	if said, err := cmd.Output(); err == nil {
		out.Apptainer = strings.TrimPrefix(strings.TrimSpace(string(said)), "apptainer version ")
	}
	return &out
}

// serverOf is where a model's server is, without what could be a secret.
func serverOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}
