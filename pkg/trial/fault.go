package trial

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"fence/pkg/box"
	"fence/pkg/result"
)

// Fault is an error that ends a trial without a reward.
type Fault struct{ result.Fault }

func (f *Fault) Error() string { return f.Message }

// Faultf is a fault of that phase, class and cause, see docs/records.md.
func Faultf(phase, class, cause, hint, format string, a ...any) error {
	return &Fault{result.Fault{Phase: phase, Class: class, Cause: cause, Hint: hint, Message: fmt.Sprintf(format, a...)}}
}

// because is what an error in a phase means. What is known of the container
// goes before what the caller makes of it, class and cause: a command fails
// when its container is gone, and that is why.
func (r *run) because(ctx context.Context, b Box, phase, class, cause string, err error) error {
	var f *Fault
	var be *box.Error
	switch {
	case err == nil:
		return nil
	case b != nil && !alive(b) && b.Err() != nil:
		err = b.Err()
	case errors.As(err, &f):
		return f
	}
	hint, full := r.outFull(err)
	switch {
	case ctx.Err() != nil:
		return Faultf("stopped", "stopped", "infra", "the same command again runs it", "%s: %v", phase, context.Cause(ctx))
	case full:
		return Faultf(phase, result.OutFull, "infra", hint, "%v", err)
	case errors.As(err, &be):
		f = &Fault{result.Fault{Phase: phase, Class: be.Class, Cause: be.Cause, Message: be.Message, Hint: be.Hint}}
		if be.Class == "not_isolated" || be.Class == "gate_failed" {
			f.Phase = "isolation"
		}
	default:
		f = &Fault{result.Fault{Phase: phase, Class: class, Cause: cause, Message: err.Error()}}
	}
	switch f.Class {
	case "memory_limit", "process_limit", "disk_limit":
		if f.Cause == "agent" { // whoever ran
			f.Cause = r.blame()
		}
	case "session_lost":
		if phase == "verify" { // no agent reaches that domain
			f.Cause = "unknown"
		}
	}
	if f.Cause == "" {
		f.Cause = "unknown"
	}
	return f
}

// outFull says that the trial's folder cannot be written to. In an os.Root, the
// paths of errors are relative.
func (r *run) outFull(err error) (hint string, is bool) {
	var at *fs.PathError
	if !errors.As(err, &at) || filepath.IsAbs(at.Path) && !strings.HasPrefix(at.Path, r.Dir+"/") {
		return "", false
	}
	return result.Unwritable(at)
}

// blame is whose doing it is that a limit was passed: a model's, since it began
// to act, for what it leaves runs on; else the task's.
func (r *run) blame() string {
	if r.acted && !r.Agent.Scripted() {
		return "agent"
	}
	return "task"
}

// harborNames are Harbor's names for classes of faults, by which its tools tell
// them apart.
var harborNames = map[string]string{
	"start_timeout":    "EnvironmentStartTimeoutError",
	"healthcheck":      "HealthcheckError",
	"verifier_timeout": "VerifierTimeoutError",
	"upload_failed":    "AddTestsDirError",
	"download_failed":  "DownloadVerifierDirError",
	"reward_missing":   "RewardFileNotFoundError",
	"reward_empty":     "RewardFileEmptyError",
	"reward_invalid":   "VerifierOutputParseError",
	"memory_limit":     "MemoryLimitExceededError",
	"solution_missing": "FileNotFoundError",
	"stopped":          "CancelledError",
}

// exception is a fault as Harbor's tools read it.
func exception(f result.Fault) string {
	if name := harborNames[f.Class]; name != "" {
		return name
	}
	return "RuntimeError"
}
