package job

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// End is when the Slurm job ends that this process is in; zero if there is none,
// or none has been set. Slurm says so in SLURM_JOB_END_TIME, in seconds since
// 1970; where it does not (22.05), squeue is asked how much time is left.
func (h Here) End(ctx context.Context) (time.Time, error) {
	if sec, err := strconv.ParseInt(h.Getenv("SLURM_JOB_END_TIME"), 10, 64); err == nil && sec > 0 {
		return time.Unix(sec, 0), nil
	}
	id := h.Getenv("SLURM_JOB_ID")
	if id == "" {
		return time.Time{}, nil
	}
	// The id of one element of an array stands for the whole array.
	if array, task := h.Getenv("SLURM_ARRAY_JOB_ID"), h.Getenv("SLURM_ARRAY_TASK_ID"); array != "" && task != "" {
		id = array + "_" + task
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "squeue", "-h", "-j", id, "-o", "%L")
	cmd.WaitDelay = time.Second // a site's script of that name may leave something that holds its output
	out, err := cmd.Output()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return time.Time{}, fmt.Errorf("asking squeue when the job %s ends: %w", id, err)
	}
	left, err := parseLeft(strings.TrimSpace(string(out)))
	if err != nil || left == 0 {
		return time.Time{}, err
	}
	return time.Now().Add(left), nil
}

// parseLeft reads squeue's %L: [[days-]hours:]minutes:seconds, see squeue(1).
// A job without an end is 0.
func parseLeft(s string) (time.Duration, error) {
	if s == "UNLIMITED" || s == "NOT_SET" {
		return 0, nil
	}
	days, rest, ok := strings.Cut(s, "-")
	if !ok {
		days, rest = "0", s
	}
	parts := strings.Split(days+":"+rest, ":")
	units := []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second}
	if len(parts) == 3 && !ok {
		parts = []string{days, "0", parts[1], parts[2]}
	}
	if len(parts) != len(units) {
		return 0, fmt.Errorf("squeue says of the time left: %q", s)
	}
	var sum time.Duration
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 20)
		if err != nil {
			return 0, fmt.Errorf("squeue says of the time left: %q", s)
		}
		sum += time.Duration(n) * units[i]
	}
	return max(sum, time.Second), nil
}
