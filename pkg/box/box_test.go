package box

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/result"
)

func valid() Options {
	return Options{Apptainer: "/bin/true", Fence: "/f", Probe: "/p", Image: "/i,x.sif", Scratch: "/s", Network: "loopback", Private: []string{"/tests"}}
}

// What Apptainer and fence are started with.
func TestArguments(t *testing.T) {
	o := valid()
	o.Network, o.Why = "host", "weights"
	o.Binds = []Bind{{Source: "/wheels", Target: "/w"}}
	o.Opens = []Open{{Syscall: "ptrace", Why: "gdb"}, {Path: "/d", Access: "write", Why: "data"}}
	o.Limits.Processes = 500
	got := strings.Join(slices.Concat(o.container(false), o.serve(people{in: map[string]Account{Agent: {UID: 7, GID: 8}, Verifier: {}}})), "\n")
	want := strings.Join([]string{
		"--silent exec --fakeroot --ignore-subuid --ignore-fakeroot-command --containall --cleanenv --pid --ipc --no-eval --no-umask",
		"--no-mount bind-paths,home,cwd,hostfs --pwd / --overlay /s/overlay --workdir /s/tmp",
		"--hostname task --bind /s/hosts:/etc/hosts --bind /f:/.fence/fence:ro --bind /p:/.fence/probe:ro --bind /wheels:/w:ro /i,x.sif",
		"/.fence/fence serve --stdio --domain verifier=verifier --domain agent=strict --below agent=verifier --private verifier=/tests",
		"--flag agent:net=host --flag agent:why=weights --flag agent:read=/w --flag agent:why=bound_read-only_by_whoever_runs_the_trial",
		"--flag agent:syscall=ptrace --flag agent:why=gdb --flag agent:write=/d --flag agent:why=data --flag agent:user=7:8 --flag agent:limit=nproc=1524",
		"--flag verifier:net=host --flag verifier:why=weights --flag verifier:read=/w --flag verifier:why=bound_read-only_by_whoever_runs_the_trial",
		"--flag verifier:syscall=ptrace --flag verifier:why=gdb --flag verifier:write=/d --flag verifier:why=data --flag verifier:user=0:0 --flag verifier:limit=nproc=3048",
	}, " ")
	want = strings.ReplaceAll(strings.ReplaceAll(want, " ", "\n"), "_", " ")
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	o = valid()
	got = strings.Join(slices.Concat(o.container(true), o.serve(people{in: map[string]Account{Agent: {}, Verifier: {}}})), " ")
	for what, there := range map[string]bool{"--net --network none": true, "/s/resolv.conf:/etc/resolv.conf": true, ":why=": false, ":user=": false, "nproc": false} {
		if strings.Contains(got, what) != there {
			t.Errorf("%q: %t in %s", what, !there, got)
		}
	}
}

// What srun is started with: the job's own settings for steps do not count.
func TestStep(t *testing.T) {
	o := valid()
	if o.step(nil) != nil {
		t.Error("a step that nobody asked for")
	}
	o.Step = &Step{Srun: "/usr/bin/srun", Job: "7", Node: "n1"}
	for memory, want := range map[int64]string{0: "0", 1: "1M", 300 << 20: "300M", 300<<20 + 1: "301M"} {
		o.Limits.Memory = memory
		got := o.step([]string{"PATH=/bin", "SLURM_CPU_BIND=x", "SLURM_MEM_PER_CPU=1", "SRUN_CPUS_PER_TASK=9", "SLURMD_NODENAME=n1", "SLURM_CONF=/c"})
		argv := "/usr/bin/srun --jobid=7 --overlap --nodes=1 --ntasks=1 --nodelist=n1 --mem=" + want + " --gres=none --mpi=none --input=none --export=NONE --job-name=trial --chdir=/"
		if strings.Join(got.Argv, " ") != argv {
			t.Errorf("%q, want %s", got.Argv, argv)
		}
		if env := []string{"PATH=/bin", "SLURM_CONF=/c"}; !slices.Equal(got.Env, env) {
			t.Errorf("%q, want %q", got.Env, env)
		}
	}
}

// What Slurm says of a step that was beyond its memory, and what it says of others.
func TestOOMSaid(t *testing.T) {
	for line, want := range map[string]bool{
		"slurmstepd-vm: error: StepId=773.1 exceeded memory limit (379908096 > 104857600), being killed":                           true,
		"slurmstepd: error: Detected 1 oom_kill event in StepId=6959634.0. Some of the step tasks have been OOM Killed.":           true,
		"slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup. Some of your processes may have been killed by the": true,
		"srun: error: holy8a24101: task 0: Out Of Memory":                                                                          true,
		"slurmstepd-vm: error: Exceeded job memory limit":                                                                          false,
		"srun: error: vm: task 0: Killed":                                                                                          false,
	} {
		if got := oomSaid.FindString("srun: x\n" + line + "\nlast\n"); (got == line) != want {
			t.Errorf("%q of %q", got, line)
		}
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	good := func() Options {
		o := valid()
		o.Scratch = dir
		return o
	}
	if err := good().check(); err != nil {
		t.Fatalf("the control: %v", err)
	}
	for text, change := range map[string]func(*Options){
		`"s" is not an absolute path`:                         func(o *Options) { o.Scratch = "s" },
		`"t" is not an absolute path`:                         func(o *Options) { o.Private = []string{"t"} },
		"cannot be handed to Apptainer: /f:x":                 func(o *Options) { o.Fence = "/f:x" },
		"cannot be handed to Apptainer: /w,":                  func(o *Options) { o.Binds = []Bind{{Source: "/w,", Target: "/w"}} },
		`network mode "" is not known (none, loopback, host)`: func(o *Options) { o.Network = "" },
		"network is opened without a reason":                  func(o *Options) { o.Network = "host" },
		`syscall "ptrace" is opened without`:                  func(o *Options) { o.Opens = []Open{{Syscall: "ptrace"}} },
		`read "" is opened without`:                           func(o *Options) { o.Opens = []Open{{Why: "x"}} },
		`workdir "w" is not an absolute path`:                 func(o *Options) { o.Workdir = "w" },
		"is not empty":                                        func(o *Options) { o.Scratch = "/usr" },
	} {
		o := good()
		change(&o)
		if err := o.check(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAccount(t *testing.T) {
	passwd := []byte("root:x:0:0::/root:/bin/sh\n# a comment\napp:x:1000:1001::/home/app:/bin/sh\nodd:x:5:6::relative:/bin/sh\nbroken\n")
	group := []byte("root:x:0:\nstaff:x:50:app\n")
	for spec, want := range map[string]Account{
		"": {0, 0, "/root"}, "root": {0, 0, "/root"}, "0:50": {0, 50, "/root"}, "app": {1000, 1001, "/home/app"}, "app:staff": {1000, 50, "/home/app"},
		"1000": {1000, 1001, "/home/app"}, "1234": {1234, 0, "/"}, "1234:5": {1234, 5, "/"}, "odd": {5, 6, "/"},
	} {
		if got, err := account(spec, passwd, group); err != nil || got != want {
			t.Errorf("%q: %+v %v, want %+v", spec, got, err, want)
		}
	}
	for _, spec := range []string{"nobody", "app:nobody", "-1", "4294967296"} {
		if got, err := account(spec, passwd, group); err == nil {
			t.Errorf("%q: %+v", spec, got)
		}
	}
	if got, err := account("", nil, nil); err != nil || got != (Account{0, 0, "/root"}) {
		t.Errorf("an image without users: %+v %v", got, err)
	}
}

func FuzzAccount(f *testing.F) {
	f.Add("app:staff", []byte("app:x:1000:1001::/home/app:/bin/sh\n"), []byte("staff:x:50:app\n"))
	f.Fuzz(func(t *testing.T, spec string, passwd, group []byte) {
		a, err := account(spec, passwd, group)
		if err == nil && (a.UID < 0 || a.GID < 0 || !filepath.IsAbs(a.Home)) || err != nil && a != (Account{}) {
			t.Errorf("%+v %v", a, err)
		}
	})
}

// Why a container has ended, by who ended it and what it said.
func TestWhy(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "overlay"), 0o700); err != nil {
		t.Fatal(err)
	}
	full := &Error{Class: "memory_limit"}
	for _, c := range []struct {
		begin, end, cause error
		said, class, hint string
	}{
		{cause: errClosed, class: ""},
		{cause: full, class: "memory_limit"},
		{begin: errors.New("no such file"), class: "start_failed"},
		{end: errors.New("exit status 255"), class: "container_killed"},
		{said: "fence: reading: no such device\n", class: "session_lost"},
		{said: "fence: not fenced: domain agent: x\n", class: "not_isolated"},
		{said: "fence: domain verifier: not fenced: /opt/x is opened by the policy and does not exist (--read)\n", class: "not_isolated", hint: "--open and --policy"},
		{said: "FATAL:   while x: No space left on device\n", class: "scratch_full"},
		{said: "Error for command \"exec\": unknown flag: --no-eval\n\nOptions:\n", class: "start_failed", hint: "Apptainer 1.2 or later"},
		{said: "FATAL:   --fakeroot requires either being in /etc/subuid, unprivileged user namespaces, or the fakeroot command\n", class: "start_failed", hint: "they may be switched off"},
	} {
		b := &Box{o: Options{Scratch: dir}}
		b.said.Most = 1000
		b.said.Write([]byte(c.said))
		err := b.why(c.begin, c.end, c.cause)
		var e *Error
		if c.class == "" && err != nil || c.class != "" && (!errors.As(err, &e) || e.Class != c.class || !strings.HasPrefix(e.Hint, c.hint)) {
			t.Errorf("%+v: %+v", c, err)
		}
	}
	b := &Box{o: Options{Scratch: dir + "/gone"}}
	var e *Error
	if err := b.why(nil, nil, nil); !errors.As(err, &e) || e.Class != "scratch_gone" {
		t.Errorf("%v", err)
	}
}

// Only where Apptainer cannot have a network is a box started without.
func TestNoNetwork(t *testing.T) {
	for said, want := range map[string]bool{
		"the container of /i.sif did not start: Failed to create network namespace: maximum number of network namespaces exceeded": true,
		"the container of /i.sif did not start: network setup failed: no configuration found for network none":                     true,
		"the container of /network/i.sif did not start: image format not recognized":                                               false,
		"the network mode \"x\" is not known": false,
	} {
		if got := noNetwork.MatchString(said); got != want {
			t.Errorf("%q: %t", said, got)
		}
	}
}

func TestParseRollup(t *testing.T) {
	pss, shm := parseRollup("5604f8c5b000-7ffe2d3f1000 ---p 00000000 00:00 0    [rollup]\nRss:     884 kB\nPss:     385 kB\nPss_Shmem:   7 kB\nPss_x\nPss: 1 MB\n")
	if pss != 385<<10 || shm != 7<<10 {
		t.Errorf("%d %d", pss, shm)
	}
	if own, _, err := proportional(os.Getpid()); err != nil || own < 1<<20 || own > resident(os.Getpid())+64<<20 {
		t.Errorf("this process: %d of %d, %v", own, resident(os.Getpid()), err)
	}
}

// Every file counts once, also those that are out of sight.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) *os.File {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(p)
		if err == nil {
			_, err = f.Write(make([]byte, 1<<20))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	count := func(d disk) disk {
		d.seen = map[uint64]bool{}
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		d.folder(fd, 0)
		if d.closer {
			d.nameless([]int{os.Getpid()})
		}
		return d
	}
	write("a/b/c")
	if err := errors.Join(os.Link(dir+"/a/b/c", dir+"/d"), os.Symlink("/usr", dir+"/e")); err != nil {
		t.Fatal(err)
	}
	gone := write("f")
	if err := os.Remove(gone.Name()); err != nil {
		t.Fatal(err)
	}
	near := func(got, mega int64) bool { return got >= mega<<20 && got < mega<<20+1<<18 }
	if d := count(disk{}); !near(d.bytes, 1) {
		t.Errorf("%d", d.bytes)
	}
	if d := count(disk{closer: true}); !near(d.bytes, 2) {
		t.Errorf("with a file that was removed: %d", d.bytes)
	}
	deep := strings.Repeat("x/", deepest+1)
	if err := os.MkdirAll(filepath.Join(dir, deep), 0o755); err != nil {
		t.Fatal(err)
	}
	if d := count(disk{}); !d.deep {
		t.Error("not too deep")
	}
}

func TestVerdict(t *testing.T) {
	got := verdict([]byte(`{"answer": "no", "results": [{"id": "a", "answer": "yes"}, {"id": "b", "answer": "no"}, {"id": "c", "answer": "could not tell"}, {"id": "b", "answer": "no"}]}`))
	if want := `whether the agent's domain is as it must be, probe answers "no": "could not tell" to c; "no" to b`; got != want {
		t.Errorf("%s", got)
	}
}

func TestSmall(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 999: "999 bytes", 1500: "1.5 kB", 2e6: "2.0 MB", 3.25e9: "3.2 GB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Millisecond: 1, 1500 * time.Microsecond: 2} {
		if got := milliseconds(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
	o := valid()
	o.Network, o.Why = "host", "w"
	o.Binds, o.Opens = []Bind{{Target: "/b", Why: "x"}}, []Open{{Syscall: "s", Why: "y"}}
	if got, want := o.opened(), []result.Opened{{What: "network host", Why: "w"}, {What: "read /b", Why: "x"}, {What: "syscall s", Why: "y"}}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
