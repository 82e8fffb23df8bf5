package job

import (
	"fmt"
	"strconv"
	"strings"
)

// Shard is one of several equal shares of a job's work, the Index'th, from 1. The
// zero value is all of it.
type Shard struct{ Index, Of int }

func (s Shard) String() string { return fmt.Sprintf("%d/%d", s.Index, s.Of) }

// ParseShard reads I/N, or "slurm": this process's place in its array of jobs,
// and, in each, among the tasks that one srun started. "" is all.
func (h Here) ParseShard(s string) (Shard, error) {
	if s == "" {
		return Shard{}, nil
	}
	if s == "slurm" {
		return h.slurmShard()
	}
	index, of, ok := strings.Cut(s, "/")
	i, err1 := strconv.Atoi(index)
	n, err2 := strconv.Atoi(of)
	if !ok || err1 != nil || err2 != nil || i < 1 || i > n {
		return Shard{}, fmt.Errorf("%q is no share: the second of eight is 2/8", s)
	}
	return Shard{i, n}, nil
}

// slurmShard reads what sbatch(1) says of arrays (SLURM_ARRAY_TASK_*) and srun(1)
// of the tasks of a step (SLURM_PROCID of SLURM_STEP_NUM_TASKS, which a batch
// script itself does not have: its SLURM_NTASKS are not running).
func (h Here) slurmShard() (Shard, error) {
	s := Shard{1, 1}
	found := false
	number := func(name string, of int) (int, error) {
		n, err := strconv.Atoi(h.Getenv(name))
		if err != nil || n < of {
			return 0, fmt.Errorf("%s is %q, which is no place in an array or step", name, h.Getenv(name))
		}
		return n, nil
	}
	if h.Getenv("SLURM_ARRAY_TASK_ID") != "" {
		var v [5]int
		for i, name := range []string{"ID", "MIN", "MAX", "COUNT", "STEP"} {
			var err error
			if name == "STEP" && h.Getenv("SLURM_ARRAY_TASK_STEP") == "" {
				v[i] = 1
			} else if v[i], err = number("SLURM_ARRAY_TASK_"+name, 0); err != nil {
				return Shard{}, err
			}
		}
		id, first, last, count, step := v[0], v[1], v[2], v[3], max(v[4], 1)
		if count < 1 || id < first || id > last || (id-first)%step != 0 || (last-first)/step+1 != count {
			return Shard{}, fmt.Errorf("this is task %d of an array of %d that has gaps, so its place is not known", id, count)
		}
		s, found = Shard{(id-first)/step + 1, count}, true
	}
	if h.Getenv("SLURM_STEP_NUM_TASKS") != "" {
		n, err := number("SLURM_STEP_NUM_TASKS", 1)
		if err != nil {
			return Shard{}, err
		}
		i, err := number("SLURM_PROCID", 0)
		if err != nil || i >= n {
			return Shard{}, fmt.Errorf("SLURM_PROCID is %q of %d tasks", h.Getenv("SLURM_PROCID"), n)
		}
		s, found = Shard{(s.Index-1)*n + i + 1, s.Of * n}, true
	}
	if !found {
		return Shard{}, fmt.Errorf("this is no element of an array (sbatch --array), and no task of srun")
	}
	return s, nil
}
