// Command bench prints what the fence costs, beside the peers that are
// installed, as ratios of runs taken in turn: A B C A B C. It needs a quiet
// machine and judges nothing.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fence/test/bed"
)

var (
	runs = flag.Int("runs", 300, "starts of each command")
	bin  = flag.String("bin", "bin", "folder of the built fence")
)

// accepted makes the bare form possible on a bare host, where much is visible.
var accepted = []string{"--form", "bare", "--accept", "landlock-hide", "--accept", "host-tmp", "--accept", "sockets", "--why", "bench"}

func main() {
	flag.Parse()
	work, err := os.MkdirTemp("", "bench")
	must(err)
	defer os.RemoveAll(work)
	must(os.Chmod(work, 0o755))
	fence := filepath.Join(work, "fence")
	copyFile(filepath.Join(*bin, "fence"), fence)
	built := func(name string, build ...string) string {
		out := filepath.Join(work, name)
		c := exec.Command(build[0], append(append(build[1:], "-o", out), "./test/bench/src/"+name)...)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		c.Stderr = os.Stderr
		must(c.Run())
		must(os.Chmod(out, 0o755))
		return out
	}
	loops, floor := built("loops.c", "cc", "-O2", "-static"), built("floor.c", "cc", "-O2", "-static")
	sockets := built("sockets.c", "cc", "-O2", "-static")
	goexec := built("goexec", "go", "build", "-ldflags", "-s -w")

	copyFile(filepath.Join(*bin, "probe"), filepath.Join(work, "probe")) // fence env shows both
	bare := append(append([]string{fence}, accepted...), "--")
	// /tmp is private inside: the loops are shown there.
	shown := []string{fence, "--read", work, "--why", "bench", "--"}
	bareShown := append(append([]string{fence, "--read", work}, accepted...), "--")
	bwrap := []string{"bwrap", "--unshare-all", "--ro-bind", "/", "/"}
	fmt.Printf("Start and end of a command that does nothing (%d each, in turn; milliseconds)\n", *runs)
	starts(*runs, []contestant{
		{"bwrap --unshare-all", process(append(slices.Clone(bwrap), "/bin/true")...)},
		{"fence, namespace form", process(fence, "--", "/bin/true")},
		{"fence, bare form", process(append(slices.Clone(bare), "/bin/true")...)},
		{"a Go program that execs", process(goexec, "/bin/true")},
		{"nothing", process("/bin/true")},
	})

	fmt.Println("\nWork inside (time with it / time without it, median of pairs). Floor: one Landlock")
	fmt.Println("rule and a filter of one instruction, which allow everything; bwrap has neither.")
	fmt.Printf("%-28s %8s %8s %8s %8s\n", "", "fence", "bare", "floor", "bwrap")
	for _, l := range []struct {
		name, what string
		n          int
	}{{"getpid", "getpid", 3000000}, {"open", "openat+close", 400000}, {"stat", "stat", 800000}, {"pipe", "pipe ping-pong", 60000}, {"exec", "fork+exec", 1500}} {
		work := []string{loops, l.name, strconv.Itoa(l.n)}
		inside(l.what, 9, work, [][]string{shown, bareShown, {floor}, bwrap}, true)
	}
	// In /dev/shm, a tmpfs in every form: /tmp is a disk outside.
	for _, w := range []struct{ what, script string }{
		{"python3 imports", "for i in 1 2 3 4 5; do python3 -c 'import json, http.client, asyncio, unittest'; done"},
		{"git status, 2000 files", "git init -q; mkdir d; for i in $(seq 2000); do echo $i >d/$i; done; for i in 1 2 3 4 5 6 7 8 9 10; do git status --porcelain >/dev/null; done"},
		{"make, 40 C files", "for i in $(seq 40); do echo \"int f$i(void){return $i;}\" >$i.c; done; echo 'all: $(patsubst %.c,%.o,$(wildcard *.c))' >Makefile; make -s"},
	} {
		script := "set -e; d=$(mktemp -d -p /dev/shm); export TMPDIR=$d; cd $d; " + w.script + "; cd /; rm -r $d"
		inside(w.what, 7, []string{"/bin/sh", "-c", script}, [][]string{{fence, "--"}, bare, {floor}, append(bwrap, "--dev", "/dev", "--proc", "/proc")}, false)
	}
	box := startBox(fence, work)
	network(sockets, fence, work, box)
	if box != nil {
		box.commands(*runs / 3)
		box.stop()
	}
}

// network compares connections of a command's own, in a network namespace and
// through the supervisor, and in the peer's containers, which have the node's
// network. Only root can make a node without network namespaces.
func network(sockets, fence, work string, box *box) {
	loopback := []string{fence, "--net", "loopback", "--read", work, "--why", "bench", "--"}
	names, prefixes := []string{"own net"}, [][]string{loopback}
	if limit := filepath.Join(bed.Dir(), "bin", "limit-ns"); os.Geteuid() == 0 {
		if _, err := os.Stat(limit); err == nil {
			names, prefixes = append(names, "superv."), append(prefixes, append([]string{limit, "fencer", "max_net_namespaces=0", "--"}, loopback...))
		}
	}
	if box != nil {
		names, prefixes = append(names, "apptainer", "instance"), append(prefixes, box.exec, box.inside)
	}
	fmt.Println("\nConnections of its own (ns without it; time with it / without it, median of pairs)")
	fmt.Printf("%-28s %8s", "", "plain")
	for _, name := range names {
		fmt.Printf(" %9s", name)
	}
	fmt.Println()
	for _, w := range []struct {
		what, mode string
		n          int
	}{{"connect by TCP, median", "connect", 20000}, {"connect to a Unix socket", "unix", 20000}, {"1 MiB through a connection", "stream", 1000}} {
		argv := []string{sockets, w.mode, strconv.Itoa(w.n)}
		var plains []float64
		ratios := make([][]float64, len(prefixes))
		for range 7 {
			plain := figure(argv, true)
			plains = append(plains, plain)
			for i, p := range prefixes {
				ratios[i] = append(ratios[i], figure(append(slices.Clone(p), argv...), true)/plain)
			}
		}
		fmt.Printf("%-28s %8.0f", w.what, quantile(plains, .5))
		for _, r := range ratios {
			fmt.Printf(" %9.2f", quantile(r, .5))
		}
		fmt.Println()
	}
}

type contestant struct {
	name string
	do   func()
}

// process is a contestant's command.
func process(argv ...string) func() {
	return func() { must(wrap(argv, command(argv).Run())) }
}

// starts times whole processes in turn; ratios are to the first.
func starts(n int, cs []contestant) {
	times := make([][]float64, len(cs))
	for i := range n + 5 {
		for j, c := range cs {
			d := timed(c.do)
			if i >= 5 { // the first ones warm the caches
				times[j] = append(times[j], d)
			}
		}
	}
	fmt.Printf("%-28s %8s %8s %8s %8s\n", "", "min", "median", "p90", "ratio")
	for j, c := range cs {
		var ratios []float64
		for i := range times[j] {
			ratios = append(ratios, times[j][i]/times[0][i])
		}
		fmt.Printf("%-28s %8.2f %8.2f %8.2f %8.2f\n", c.name, quantile(times[j], 0), quantile(times[j], .5), quantile(times[j], .9), quantile(ratios, .5))
	}
}

// inside runs work plainly and behind each prefix, in turn. If the work
// prints its own figure (nanoseconds), that is what is compared.
func inside(what string, n int, work []string, prefixes [][]string, own bool) {
	ratios := make([][]float64, len(prefixes))
	for range n {
		plain := figure(work, own)
		for j, p := range prefixes {
			ratios[j] = append(ratios[j], figure(append(slices.Clone(p), work...), own)/plain)
		}
	}
	fmt.Printf("%-28s", what)
	for _, r := range ratios {
		fmt.Printf(" %8.3f", quantile(r, .5))
	}
	fmt.Println()
}

func figure(argv []string, own bool) float64 {
	if !own {
		return timed(process(argv...))
	}
	out, err := command(argv).Output()
	must(wrap(argv, err))
	v, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	must(wrap(argv, err))
	return v
}

func timed(do func()) float64 {
	start := time.Now()
	do()
	return float64(time.Since(start).Microseconds()) / 1000
}

var environment = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}

// command runs as an ordinary user, whoever we are.
func command(argv []string) *exec.Cmd {
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = append(slices.Clone(environment), "HOME=/nonexistent")
	c.Dir = "/"
	if os.Geteuid() == 0 && filepath.Base(argv[0]) != "limit-ns" { // which becomes that user
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if u, err := user.Lookup("fencer"); err == nil {
			uid, _ := strconv.Atoi(u.Uid)
			gid, _ := strconv.Atoi(u.Gid)
			c.Env = append(slices.Clone(environment), "HOME="+u.HomeDir) // where Apptainer keeps its instances
			c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return c
}

func quantile(v []float64, q float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func copyFile(from, to string) {
	data, err := os.ReadFile(from)
	must(err)
	must(os.WriteFile(to, data, 0o755))
}

func wrap(argv []string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return nil
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
