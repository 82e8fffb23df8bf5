package job

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// here is a node of files, and a process there with an environment.
func here(t *testing.T, files, env map[string]string) Here {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Here{Root: root, Getenv: func(name string) string { return env[name] }}
}

const (
	mountsV2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountsV1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	node = "MemTotal: 64000000 kB\nMemAvailable:   32000000 kB\n"
)

func TestMemory(t *testing.T) {
	pid := strconv.Itoa(os.Getpid())
	stat := func(parent string, pages string) string {
		return " (a ) b) S " + parent + " 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 1000 " + pages + " 0\n"
	}
	page := int64(os.Getpagesize())
	for _, c := range []struct {
		name       string
		files, env map[string]string
		want       Memory
	}{
		{name: "the node alone", files: map[string]string{"proc/meminfo": node}, want: Memory{32000000 << 10, "the node"}},
		{name: "the second version: a parent is the tighter one", want: Memory{700, "its control group"}, files: map[string]string{
			"proc/meminfo": node, "proc/self/mountinfo": mountsV2, "proc/self/cgroup": "0::/slurm/job_1/step_0\n",
			"sys/fs/cgroup/slurm/job_1/step_0/memory.max": "max\n", "sys/fs/cgroup/slurm/job_1/step_0/memory.current": "400\n",
			"sys/fs/cgroup/slurm/job_1/memory.max": "1000\n", "sys/fs/cgroup/slurm/job_1/memory.current": "500\n",
			"sys/fs/cgroup/slurm/job_1/memory.stat": "anon 100\ninactive_file 200\nactive_file 9\n",
		}},
		{name: "the first version", want: Memory{600, "its control group"}, files: map[string]string{
			"proc/meminfo": node, "proc/self/mountinfo": mountsV1, "proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/\n0::/\n",
			"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1000\n", "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "500\n",
			"sys/fs/cgroup/memory/job/memory.stat":       "inactive_file 1\ntotal_inactive_file 100\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "5000\n",
		}},
		{name: "the path begins above what a container sees", want: Memory{10, "its control group"}, files: map[string]string{
			"proc/meminfo": node, "proc/self/cgroup": "0::/docker/abc\n",
			"proc/self/mountinfo":      "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory.max": "100\n", "sys/fs/cgroup/memory.current": "90\n",
		}},
		{name: "more than the limit", want: Memory{0, "its control group"}, files: map[string]string{
			"proc/meminfo": node, "proc/self/mountinfo": mountsV2, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "100\n", "sys/fs/cgroup/a/memory.current": "150\n",
		}},
		{name: "Slurm's accounting: what is below this process counts", want: Memory{(10 << 20) - 30*page, "the Slurm job"},
			env: map[string]string{"SLURM_MEM_PER_NODE": "10"}, files: map[string]string{
				"proc/meminfo": node, "proc/" + pid + "/stat": pid + stat("1", "10"),
				"proc/4000001/stat": "4000001" + stat(pid, "15"), "proc/4000002/stat": "4000002" + stat("4000001", "5"), "proc/4000003/stat": "4000003" + stat("1", "1000"),
			}},
		{name: "Slurm, by processor", want: Memory{20 << 20, "the Slurm job"}, files: map[string]string{"proc/meminfo": node},
			env: map[string]string{"SLURM_MEM_PER_CPU": "5", "SLURM_CPUS_ON_NODE": "4"}},
		{name: "Slurm, all of the node", want: Memory{32000000 << 10, "the node"}, files: map[string]string{"proc/meminfo": node},
			env: map[string]string{"SLURM_MEM_PER_NODE": "0"}},
	} {
		if got := here(t, c.files, c.env).Memory(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestCPUs(t *testing.T) {
	all := runtime.GOMAXPROCS(64)
	defer runtime.GOMAXPROCS(all)
	for _, c := range []struct {
		name       string
		files, env map[string]string
		want       int
	}{
		{name: "no limit", want: 64},
		{name: "a parent's quota", want: 3, files: map[string]string{
			"proc/self/mountinfo": mountsV2, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "250000 100000\n",
		}},
		{name: "the first version", want: 1, files: map[string]string{
			"proc/self/mountinfo": mountsV1, "proc/self/cgroup": "2:cpu,cpuacct:/a\n",
			"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
		}},
		{name: "Slurm", want: 4, env: map[string]string{"SLURM_CPUS_ON_NODE": "4"}},
	} {
		if got := here(t, c.files, c.env).CPUs(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestEnd(t *testing.T) {
	bin := t.TempDir()
	for name, says := range map[string]string{"1": "1-02:03:04", "2": "UNLIMITED", "3": "oops", "4": "exit 1", "5_2": "1:00:00", "6": "59:00"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(says), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fifo := filepath.Join(bin, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() { // lets the cat go that waits for it
		if f, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
	}()
	script := "#!/bin/sh\n[ \"$*\" = \"-h -j $3 -o %L\" ] || exit 2\nread line < " + bin + "/$3 || :\n[ \"$line\" = 'exit 1' ] && exit 1\n[ \"$3\" = 6 ] && cat < " + bin + "/fifo &\necho \"$line\"\n"
	if err := os.WriteFile(filepath.Join(bin, "squeue"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	for _, c := range []struct {
		name string
		env  map[string]string
		left time.Duration
		err  bool
	}{
		{name: "no job"},
		{name: "Slurm's variable", env: map[string]string{"SLURM_JOB_END_TIME": strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10), "SLURM_JOB_ID": "4"}, left: time.Hour},
		{name: "squeue", env: map[string]string{"SLURM_JOB_ID": "1"}, left: 26*time.Hour + 3*time.Minute + 4*time.Second},
		{name: "one of an array", env: map[string]string{"SLURM_JOB_ID": "5", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}, left: time.Hour},
		{name: "no end", env: map[string]string{"SLURM_JOB_ID": "2"}},
		{name: "an odd answer", env: map[string]string{"SLURM_JOB_ID": "3"}, err: true},
		{name: "what squeue has begun holds its output", env: map[string]string{"SLURM_JOB_ID": "6"}, left: 59 * time.Minute},
		{name: "no answer", env: map[string]string{"SLURM_JOB_ID": "4"}, err: true},
	} {
		end, err := here(t, nil, c.env).End(t.Context())
		if (err != nil) != c.err || end.IsZero() != (c.left == 0) {
			t.Errorf("%s: %v, %v", c.name, end, err)
		} else if c.left > 0 {
			if off := time.Until(end) - c.left; off > 0 || off < -time.Minute {
				t.Errorf("%s: off by %v", c.name, off)
			}
		}
	}
}

func FuzzParseLeft(f *testing.F) {
	for s, want := range map[string]time.Duration{"59:30": 59*time.Minute + 30*time.Second, "1:00:00": time.Hour, "2-00:00:01": 48*time.Hour + time.Second, "0:00": time.Second} {
		if got, err := parseLeft(s); got != want || err != nil {
			f.Errorf("%q: %v, %v", s, got, err)
		}
		f.Add(s)
	}
	for _, s := range []string{"", "INVALID", "1:2:3:4", "-1:00", "1-1-1:00:00", "1-5", "99999999:00"} {
		if got, err := parseLeft(s); err == nil || got != 0 {
			f.Errorf("%q: %v", s, got)
		}
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := parseLeft(s); got < 0 || err != nil && got != 0 {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	})
}

func TestOOMKills(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int
	}{
		"the second version": {map[string]string{
			"proc/self/mountinfo": mountsV2, "proc/7/cgroup": "0::/job_1/step_0/user/task_0\n",
			"sys/fs/cgroup/job_1/step_0/user/task_0/memory.events": "low 0\noom 4\noom_kill 2\noom_group_kill 0\n",
			"sys/fs/cgroup/job_1/memory.events":                    "oom_kill 9\n",
		}, 2},
		"the first version": {map[string]string{
			"proc/self/mountinfo": mountsV1, "proc/7/cgroup": "4:memory:/job/step\n0::/\n",
			"sys/fs/cgroup/memory/job/step/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		}, 3},
		"none":             {map[string]string{"proc/self/mountinfo": mountsV2, "proc/7/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.events": "oom 1\noom_kill 0\n"}, 0},
		"no control group": {nil, 0},
	} {
		if group, got := here(t, c.files, nil).OOMKills(7); got != c.want || (group == "") != (c.files == nil) {
			t.Errorf("%s: %d in %q, want %d", name, got, group, c.want)
		}
	}
}
