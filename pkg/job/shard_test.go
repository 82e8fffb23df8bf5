package job

import (
	"strings"
	"testing"
)

func TestParseShard(t *testing.T) {
	array := func(id, first, last, count, step string) map[string]string {
		return map[string]string{"SLURM_ARRAY_TASK_ID": id, "SLURM_ARRAY_TASK_MIN": first, "SLURM_ARRAY_TASK_MAX": last, "SLURM_ARRAY_TASK_COUNT": count, "SLURM_ARRAY_TASK_STEP": step}
	}
	with := func(env map[string]string, more ...string) map[string]string {
		for i := 0; i < len(more); i += 2 {
			env[more[i]] = more[i+1]
		}
		return env
	}
	step := []string{"SLURM_PROCID", "3", "SLURM_STEP_NUM_TASKS", "4"}
	for _, tc := range []struct {
		flag string
		env  map[string]string
		want string // or what the error has
	}{
		{"", array("3", "0", "7", "8", "1"), "0/0"}, // never implied
		{"2/8", array("3", "0", "7", "8", "1"), "2/8"},
		{"1/1", nil, "1/1"},
		{"8/8", nil, "8/8"},
		{"0/8", nil, "is no share"},
		{"9/8", nil, "is no share"},
		{"-1/8", nil, "is no share"},
		{"1", nil, "is no share"},
		{"1/2/3", nil, "is no share"},
		{"1/", nil, "is no share"},
		{"slurm", nil, "no element of an array"},
		{"slurm", map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "no element of an array"}, // a batch script of 4 tasks runs once
		{"slurm", array("0", "0", "7", "8", "1"), "1/8"},
		{"slurm", array("7", "0", "7", "8", "1"), "8/8"},
		{"slurm", array("1", "1", "8", "8", ""), "1/8"},
		{"slurm", array("4", "0", "6", "4", "2"), "3/4"},
		{"slurm", array("3", "3", "3", "1", "1"), "1/1"},
		{"slurm", array("3", "1", "7", "3", "1"), "that has gaps"}, // --array=1,3,7
		{"slurm", array("9", "0", "7", "8", "1"), "that has gaps"},
		{"slurm", array("x", "0", "7", "8", "1"), `SLURM_ARRAY_TASK_ID is "x"`},
		{"slurm", map[string]string{"SLURM_ARRAY_TASK_ID": "1"}, `SLURM_ARRAY_TASK_MIN is ""`},
		{"slurm", with(map[string]string{}, step...), "4/4"},
		{"slurm", with(array("1", "0", "2", "3", "1"), step...), "8/12"},
		{"slurm", map[string]string{"SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "4"}, "of 4 tasks"},
	} {
		s, err := here(t, nil, tc.env).ParseShard(tc.flag)
		if got := s.String(); err == nil && got != tc.want || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q with %v: %s, %v; want %s", tc.flag, tc.env, got, err, tc.want)
		}
	}
}
