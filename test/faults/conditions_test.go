package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/test/bed"
	"fence/test/faults/inject"
)

// through makes p start with a program that execs the rest: "prlimit --as=N --".
func through(wrapper ...string) func(*inject.Process) {
	return func(p *inject.Process) {
		p.Path = wrapper[0]
		p.Argv = append(slices.Clone(wrapper), p.Argv...)
	}
}

// forms are a scene on the machine in each of the two.
func forms(s *stage) []*scene {
	return slices.DeleteFunc(scenes(s), func(sc *scene) bool { return sc.name != "namespace" && sc.name != "machine-bare" })
}

// Limits from nothing to everything, on everything that can be limited.
func TestLimits(t *testing.T) {
	s := newStage(t)
	limits := map[string][]string{
		"nofile": {"0", "1", "3", "4", "5", "6", "7", "8", "9", "10", "12", "16", "64"},
		"as":     {"0", "1M", "16M", "64M", "256M", "1G", "2G", "4G", "unlimited"},
		"data":   {"0", "64K", "1M", "4M", "16M", "64M"},
		"stack":  {"0", "16K", "64K", "1M", "unlimited"},
		"nproc":  {"0", "1", "2"},
		"fsize":  {"0", "1"}, "core": {"0", "unlimited"}, "cpu": {"1", "unlimited"}, "memlock": {"0"}, "msgqueue": {"0"},
		"sigpending": {"0"}, "nice": {"0"}, "rtprio": {"0"}, "locks": {"0"}, "rss": {"0"},
	}
	units := map[byte]int{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}
	type item struct{ limit, value string }
	var list []item
	for limit, values := range limits {
		for _, v := range values {
			if u := units[v[len(v)-1]]; u > 0 {
				n, err := strconv.Atoi(v[:len(v)-1])
				if err != nil {
					t.Fatal(err)
				}
				v = strconv.Itoa(n * u)
			}
			list = append(list, item{limit, v})
		}
	}
	for _, sc := range forms(s) {
		t.Run(sc.name, func(t *testing.T) {
			counts := tally{}
			each(list, func(i item) {
				o, err := sc.start(t, sc.args(sc.config()), nil, func(p *inject.Process) {
					through("/usr/bin/prlimit", fmt.Sprintf("--%s=%s:%s", i.limit, i.value, i.value), "--")(p)
				})
				if err != nil {
					t.Errorf("%v: %v", i, err)
					return
				}
				o.mayDie = true // Go's runtime, for want of memory or threads
				if o.Ran && o.facts == nil {
					// The checker wants memory, threads and descriptors as well.
					counts.add(o, "ran, and could not say what it sees")
					if !slices.Contains([]string{"as", "data", "stack", "nproc", "nofile"}, i.limit) {
						t.Errorf("%v: %s %s", i, o.exit(), o.stderr)
					}
					return
				}
				counts.add(o, "")
				if bad := sc.judge(o, nil); len(bad) > 0 {
					t.Errorf("%s=%s:\n\t%s", i.limit, i.value, strings.Join(bad, "\n\t"))
				}
			})
			t.Log(counts)
		})
	}
}

// Any of the standard descriptors can be closed or be odd.
func TestDescriptors(t *testing.T) {
	s := newStage(t)
	uid, gid, _ := bed.User(t)
	out := filepath.Join(s.dir, "out")
	if err := os.WriteFile(out, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(out, uid, gid); err != nil {
		t.Fatal(err)
	}
	open := func(path string, flags int) uintptr {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return uintptr(fd)
	}
	// full is a pipe without room for more than room bytes.
	full := func(flags, room int) uintptr {
		p := make([]int, 2)
		if err := unix.Pipe2(p, unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
		page := make([]byte, 4096)
		for {
			if _, err := unix.Write(p[1], page); err != nil {
				break
			}
		}
		for ; room >= len(page); room -= len(page) {
			unix.Read(p[0], page)
		}
		if _, err := unix.FcntlInt(uintptr(p[1]), unix.F_SETFL, flags); err != nil {
			t.Fatal(err)
		}
		return uintptr(p[1])
	}
	gone := func() uintptr { // a pipe that nobody reads
		p := make([]int, 2)
		if err := unix.Pipe2(p, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		unix.Close(p[0])
		t.Cleanup(func() { unix.Close(p[1]) })
		return uintptr(p[1])
	}()

	type change map[int]uintptr
	for _, c := range []struct {
		name string
		fds  change
		ends string // how a launch that may not run ends
		odd  bool   // it may end with 2 as well, or say nothing
	}{
		{"0 closed", change{0: inject.None}, "", false},
		{"1 closed", change{1: inject.None}, "", false},
		{"2 closed", change{2: inject.None}, "", false},
		{"0, 1 and 2 closed", change{0: inject.None, 1: inject.None, 2: inject.None}, "", false},
		{"all but the status closed", change{0: inject.None, 1: inject.None, 2: inject.None, 7: inject.None, 8: inject.None}, "", false},
		{"0 is a folder", change{0: open(s.config.Decoy, unix.O_RDONLY)}, "125", false},
		{"0 is the root", change{0: open("/", unix.O_RDONLY)}, "125", false},
		{"0 is a folder's O_PATH", change{0: open(s.config.Decoy, unix.O_PATH)}, "125", false},
		{"1 is a folder", change{1: open(s.config.Decoy, unix.O_RDONLY)}, "125", false},
		{"2 is a folder", change{2: open(s.config.Decoy, unix.O_RDONLY)}, "125", true},
		{"0 is a hidden file's O_PATH", change{0: open(s.config.Decoy+"/secret", unix.O_PATH)}, "125", false},
		{"the status is closed", change{3: inject.None}, "125", true}, // 3 is fence's own by then: it fails when it is written
		{"the status cannot be written", change{3: open(os.DevNull, unix.O_RDONLY)}, "125", false},
		{"the status is a folder", change{3: open("/", unix.O_RDONLY)}, "125", false},
		{"the status is full", change{3: full(unix.O_NONBLOCK, 0)}, "125", false},
		{"the status has room for a part", change{3: full(unix.O_NONBLOCK, 4096)}, "125", false},
		{"the status is full and waits", change{3: full(0, 0)}, "hung", false},
		{"the status is read by nobody", change{3: gone}, "125", false},
		{"the status is /dev/full", change{3: open("/dev/full", unix.O_WRONLY)}, "125", false},
	} {
		for _, sc := range forms(s) {
			t.Run(c.name+"/"+sc.name, func(t *testing.T) {
				config := sc.config()
				config.Out = out
				if err := os.Truncate(out, 0); err != nil {
					t.Fatal(err)
				}
				args := sc.args(config)
				if strings.Contains(c.name, "room for a part") {
					// A line longer than the room, which a pipe takes in parts.
					args = append([]string{"--why", strings.Repeat("a long reason ", 1000)}, args...)
				}
				o, err := sc.start(t, args, nil, func(p *inject.Process) {
					for fd, to := range c.fds {
						p.Files[fd] = to
					}
					if c.ends == "hung" {
						p.Timeout = 2 * time.Second
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				o.mayBeUsage, o.mayBeSilent, o.mayHang = c.odd, c.odd, c.ends == "hung"
				if data, err := os.ReadFile(out); err != nil || o.parse(data) != nil && len(data) > 0 {
					t.Fatalf("the checker's answer: %v %.100q", err, data)
				}
				if c.ends != "" && (o.Ran || o.ended() != c.ends) {
					t.Errorf("ran: %v, %s: %s", o.Ran, o.exit(), o.stderr)
				}
				if c.ends == "" && !o.Ran {
					t.Errorf("did not run: %s: %s", o.exit(), o.stderr)
				}
				if bad := sc.judge(o, nil); len(bad) > 0 {
					t.Errorf("%s", strings.Join(bad, "\n"))
				}
				if o.message() != "" {
					t.Log(o.message())
				}
			})
		}
	}
}

func TestArguments(t *testing.T) {
	s := newStage(t)
	for _, sc := range forms(s) {
		t.Run(sc.name, func(t *testing.T) {
			run := func(name string, usage bool, args []string, change func(*inject.Process)) *outcome {
				t.Helper()
				o, err := sc.start(t, args, nil, change)
				if err != nil {
					t.Fatal(err)
				}
				o.mayBeUsage = usage
				if bad := sc.judge(o, nil); len(bad) > 0 {
					t.Errorf("%s: %s", name, strings.Join(bad, "\n"))
				}
				t.Logf("%s: ran %v, %s, %.150s", name, o.Ran, o.exit(), o.stderr)
				return o
			}
			o := run("no arguments at all", true, nil, func(p *inject.Process) {
				p.Path, p.Argv = s.checker, []string{"checker", "exec0", s.fence}
			})
			if o.Ran || o.ended() != "usage" {
				t.Errorf("no arguments at all: %s %s", o.exit(), o.stderr)
			}
			args := sc.args(sc.config())
			word := strings.Repeat("x", 100_000)
			if o := run("1.5 MB of arguments of the command", false, append(slices.Clone(args), slices.Repeat([]string{word}, 15)...), nil); !o.Ran {
				t.Errorf("1.5 MB of arguments of the command: %s %s", o.exit(), o.stderr)
			}
			flags := func(more ...string) []string {
				return slices.Insert(slices.Clone(args), slices.Index(args, "--"), more...)
			}
			run("1.5 MB of flags", false, flags(slices.Repeat([]string{"--why", word}, 15)...), nil)
			// userns.c reads only the first of them.
			run("20 KB of flags", false, flags("--why", word[:20_000]), nil)
			run("an empty command", false, append(args[:len(args)-2:len(args)-2], ""), nil)
			run("a command that is a folder", false, append(args[:len(args)-2:len(args)-2], "/usr"), nil)
		})
	}
}

// A policy need not let the command see /proc: what fence looks up there to
// test itself it must have looked up before.
func TestNothingOpenedButPrograms(t *testing.T) {
	s := newStage(t)
	narrow := filepath.Join(s.dir, "narrow.toml")
	text := `version = 1
[filesystem]
read = ["/usr", "/lib", "/lib64", "/bin"]
why = "only programs"
hide = ["@shared", "@home", "@sockets"]
`
	if err := os.WriteFile(narrow, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, sc := range forms(s) {
		t.Run(sc.name, func(t *testing.T) {
			args := append([]string{"--status-fd", "3", "--policy", narrow}, sc.flags...)
			if len(sc.flags) > 0 {
				args = append(args, "--why", "the fault tests")
			}
			o, err := sc.start(t, append(args, "--", "/bin/sh", "-c", "echo ran; read x </proc/self/status"), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !o.Ran || string(o.stdout) != "ran\n" || !strings.Contains(string(o.stderr), "Permission denied") || o.claims == nil {
				t.Errorf("ran %v, %s, %q, %s", o.Ran, o.exit(), o.stdout, o.stderr)
			}
		})
	}
}

// SIGTERM at any moment of the launch.
func TestSignals(t *testing.T) {
	s := newStage(t)
	for _, sc := range forms(s) {
		t.Run(sc.name, func(t *testing.T) {
			sc.traced = time.Now()
			sc.base = sc.launch(t, nil)
			var list []injection
			for i, c := range sc.base.Calls {
				if i%12 == 0 || full && !sc.shaky && i%3 == 0 {
					list = append(list, injection{c, inject.Fault{Address: c.Address, Signal: syscall.SIGTERM}})
				}
			}
			counts, absent := tally{}, absences{}
			each(list, func(i injection) {
				o := sc.launch(t, &i.Fault)
				if !o.Hit {
					absent.add(t, sc, i, o)
					return
				}
				if o.Ran && o.facts == nil && o.Status.Signaled() {
					counts.add(o, "the command had it")
					return
				}
				counts.add(o, "")
				if bad := sc.judge(o, &i.Fault); len(bad) > 0 {
					t.Errorf("%v:\n\t%s", i, strings.Join(bad, "\n\t"))
				}
			})
			t.Logf("%d moments: %s; not reached: %v", len(list), counts, absent)
			absent.check(t, list)
		})
	}
}

// Folders for temporary files that are full, or cannot be written.
func TestTmp(t *testing.T) {
	s := newStage(t)
	// The launcher in a mount namespace of its own with script's mounts.
	within := func(sc *scene, script string) func(*inject.Process) {
		who := bed.Person(t)
		return func(p *inject.Process) {
			rest := p.Argv
			p.Sys = syscall.SysProcAttr{}
			p.Path = "/usr/bin/unshare"
			p.Argv = append([]string{"unshare", "--mount", "--propagation", "private", "sh", "-ec", script + `; exec "$@"`, "sh",
				"setpriv", "--reuid", strconv.Itoa(who.UID), "--regid", strconv.Itoa(who.GID), "--clear-groups", "--"}, rest...)
		}
	}
	for _, c := range []struct {
		name, script string
	}{
		{"read-only", "for d in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o ro x $d; done"},
		{"full", "for d in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o size=4k,nr_inodes=2,mode=1777 x $d; head -c 4096 /dev/zero >$d/all; done"},
		{"of another", "for d in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o mode=700 x $d; done"},
		{"everything read-only", "for d in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o ro x $d; done; mount -o remount,bind,ro /"},
	} {
		for _, sc := range forms(s) {
			t.Run(c.name+"/"+sc.name, func(t *testing.T) {
				o, err := sc.start(t, sc.args(sc.config()), nil, within(sc, c.script))
				if err != nil {
					t.Fatal(err)
				}
				if o.facts != nil {
					// What cannot be written is refused before Landlock is asked.
					for what, got := range o.facts.Tried {
						if strings.HasPrefix(what, "mknod.") && got == "EROFS" {
							o.facts.Tried[what] = "EACCES"
						}
					}
				}
				if bad := sc.judge(o, nil); len(bad) > 0 {
					t.Errorf("%s", strings.Join(bad, "\n"))
				}
				t.Logf("ran %v, %s, %.200s", o.Ran, o.exit(), o.stderr)
			})
		}
	}
}
