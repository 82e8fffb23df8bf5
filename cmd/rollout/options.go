package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/box"
	"fence/pkg/cli"
	"fence/pkg/policy"
	"fence/pkg/trial"
	"fence/policies"
)

// fenceFlags are those that say what a trial's commands can reach and use.
func fenceFlags() []urfave.Flag {
	return []urfave.Flag{
		&urfave.StringFlag{Name: "net", Usage: "the most that a task gets: `MODE` none, loopback (its own servers) or host, which needs --why; a task may ask for less", Value: "loopback"},
		&urfave.StringFlag{Name: "why", Usage: "`TEXT`: the reason for --net host"},
		&urfave.StringSliceFlag{Name: "open", Usage: "`PATH:WHY`, PATH:write:WHY or syscall=NAME:WHY: opened to agent and tests; PATH is one in the container, nothing of the node's is put there"},
		&urfave.StringFlag{Name: "policy", Usage: "open what the [[open]] entries of `FILE` say"},
		&urfave.StringFlag{Name: "wheelhouse", Usage: "packages for pip and uv, without a network: `DIR` of sifbuild wheelhouse, or a folder of wheels"},
		&urfave.StringFlag{Name: "grader", Usage: "what tests need to run: `DIR` of sifbuild wheelhouse --grader"},
		&urfave.StringFlag{Name: "memory", Usage: "end a trial that takes more than `SIZE` (8G); a task's memory_mb counts where it is less", DefaultText: "the task's"},
		&urfave.IntFlag{Name: "processes", Usage: "end a trial that has more than `N` processes", Value: 4096},
		&urfave.StringFlag{Name: "disk", Usage: "end a trial that writes more than `SIZE`; a task's storage_mb counts where it is less", Value: "64G", DefaultText: "64G, or its share of what is free where that is less"},
		&urfave.BoolFlag{Name: "trial-step", Usage: "each trial in a Slurm step of its own (srun --overlap), which keeps the limit of memory; inside a job"},
		&urfave.Float64Flag{Name: "timeout-multiplier", Usage: "`F` times the times that tasks allow", Value: 1},
		&urfave.Float64Flag{Name: "build-timeout-multiplier", Usage: "`F` times for the start of a container alone", DefaultText: "as all"},
		&urfave.Float64Flag{Name: "agent-timeout-multiplier", Usage: "`F` times for the agent alone", DefaultText: "as all"},
		&urfave.Float64Flag{Name: "verifier-timeout-multiplier", Usage: "`F` times for the tests alone", DefaultText: "as all"},
		&urfave.StringFlag{Name: "scratch", Usage: "containers write to `DIR`, on a disk of this node (default: $TMPDIR, else /tmp)"},
		&urfave.BoolFlag{Name: "strict-verdict", Usage: "a verdict for which tests ran or loaded what the agent had changed is a fault"},
		&urfave.StringFlag{Name: "no-gate", Usage: "do not have probe try each image on this node first, because of `WHY`"},
	}
}

// Where bundles are in a container.
const (
	wheelhouseAt = "/.wheelhouse"
	graderAt     = "/.grader"
)

// common is what all trials of a run share.
func common(c *urfave.Context) (trial.Options, error) {
	o := trial.Options{Network: c.String("net"), Why: c.String("why"), StrictVerdict: c.Bool("strict-verdict"), Env: map[string]string{}, VerifierEnv: map[string]string{}}
	switch {
	case !slices.Contains([]string{"none", "loopback", "host"}, o.Network):
		return o, cli.Usagef("--net none, loopback or host", "--net: %q is not known", o.Network)
	case o.Network == "host" && o.Why == "":
		return o, cli.Usagef("--why 'TEXT'", "--net host opens the network without a reason")
	case o.Network != "host" && o.Why != "":
		return o, cli.Usagef("--open PATH:WHY has its own", "--why is the reason for --net host, and that is not there")
	}
	if c.IsSet("no-gate") && c.String("no-gate") == "" {
		return o, cli.Usagef("--no-gate 'WHY'", "--no-gate has no reason")
	}
	all := c.Float64("timeout-multiplier")
	for _, t := range []struct {
		flag string
		to   *float64
	}{{"timeout-multiplier", &all}, {"build-timeout-multiplier", &o.Times.Build}, {"agent-timeout-multiplier", &o.Times.Agent}, {"verifier-timeout-multiplier", &o.Times.Verifier}} {
		*t.to = all
		if c.IsSet(t.flag) {
			*t.to = c.Float64(t.flag)
		}
		if !(*t.to > 0 && *t.to < 1e6) {
			return o, cli.Usagef("--"+t.flag+" 2", "--%s: %v is no factor", t.flag, *t.to)
		}
	}
	var err error
	if o.Box.Limits.Memory, err = size(c, "memory"); err != nil {
		return o, err
	}
	if o.Box.Limits.Disk, err = size(c, "disk"); err != nil {
		return o, err
	}
	if o.Box.Limits.Processes = c.Int("processes"); o.Box.Limits.Processes < 0 {
		return o, cli.Usagef("--processes 1000; 0 is no limit", "--processes: %d is no number of them", o.Box.Limits.Processes)
	}
	if o.Box.Opens, err = opens(c); err != nil {
		return o, err
	}
	if err := bundles(c, &o); err != nil {
		return o, err
	}
	if o.Box.Fence, err = beside("fence"); err != nil {
		return o, err
	}
	if o.Box.Probe, err = beside("probe"); err != nil {
		return o, err
	}
	at, err := exec.LookPath("apptainer")
	if err == nil {
		o.Box.Apptainer, err = filepath.Abs(at)
	}
	if err != nil {
		return o, cli.Usagef("load a module that has it", "apptainer is not on this node's PATH")
	}
	if c.Bool("trial-step") {
		if o.Box.Step, err = box.ThisStep(); err != nil {
			return o, cli.Usagef("sbatch, or srun in a job; without the flag rollout looks after the limits itself", "--trial-step: %w", err)
		}
	}
	scratch := c.String("scratch")
	if scratch == "" {
		scratch = os.TempDir()
	}
	if o.Box.Scratch, err = filepath.Abs(scratch); err != nil {
		return o, err
	}
	if st, err := os.Stat(o.Box.Scratch); err != nil || !st.IsDir() {
		return o, cli.Usagef("--scratch DIR on a disk of this node", "the folder for containers (--scratch) %s is not there", o.Box.Scratch)
	}
	return o, nil
}

// size reads a flag such as 8G; 0 is no limit.
func size(c *urfave.Context, flag string) (int64, error) {
	s := c.String(flag)
	if s == "" {
		return 0, nil
	}
	units := map[byte]int{'K': 10, 'M': 20, 'G': 30, 'T': 40}
	number, shift := s, 0
	if u, ok := units[s[len(s)-1]&^0x20]; ok {
		number, shift = s[:len(s)-1], u
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n >= 0 && n*float64(int64(1)<<shift) < 1<<60) {
		return 0, cli.Usagef("--"+flag+" 8G", "--%s: %q is not a size", flag, s)
	}
	return int64(n * float64(int64(1)<<shift)), nil
}

// opens are the loosenings that a person asks for, each with its reason.
func opens(c *urfave.Context) (all []box.Open, err error) {
	for _, text := range c.StringSlice("open") {
		what, why, ok := strings.Cut(text, ":")
		w := box.Open{Path: what, Access: "read", Why: why}
		if name, is := strings.CutPrefix(what, "syscall="); is {
			w = box.Open{Syscall: name, Why: why}
		} else if access, rest, is := strings.Cut(why, ":"); is && (access == "read" || access == "write") {
			w.Access, w.Why = access, rest
		}
		if !ok || strings.TrimSpace(w.Why) == "" || w.Path+w.Syscall == "" {
			return nil, cli.Usagef("--open '/opt/data:the tasks read it'", "--open: %q is not PATH:WHY", text)
		}
		if w.Syscall == "" && !filepath.IsAbs(w.Path) {
			return nil, cli.Usagef("--open '/opt/data:the tasks read it'", "--open: %s is not a path in the container", w.Path)
		}
		all = append(all, w)
	}
	name := c.String("policy")
	if name == "" {
		return all, nil
	}
	data, err := readFile(name)
	if err != nil {
		return nil, cli.Usagef("", "--policy: %w", err)
	}
	p, err := policy.Parse(name, data, policy.Options{Base: policies.Get, Syscall: func(string) bool { return true }}) // fence knows which there are
	if err != nil {
		return nil, cli.Usagef("", "--policy: %w", err)
	}
	for _, w := range p.Open {
		switch {
		case w.Syscall != "":
			all = append(all, box.Open{Syscall: w.Syscall, Why: w.Why})
		case w.Access == policy.AccessRead || w.Access == policy.AccessWrite:
			all = append(all, box.Open{Path: w.Path, Access: string(w.Access), Why: w.Why})
		default:
			return nil, cli.Usagef("paths to read or write, and system calls", "--policy: %s: %s cannot be opened to a trial", w.From, w)
		}
	}
	return all, nil
}

// digests are those of the files that flags name, as far as they are given:
// their content is what trials have in common.
func digests(c *urfave.Context, flags ...string) (map[string]string, error) {
	all := map[string]string{}
	for _, flag := range flags {
		name := c.String(flag)
		if name == "" {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, cli.Usagef("", "--%s: %w", flag, err)
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		f.Close()
		if err != nil {
			return nil, cli.Usagef("", "--%s: %w", flag, err)
		}
		all[flag] = fmt.Sprintf("sha256:%x", sum.Sum(nil))
	}
	return all, nil
}

// bundles are folders of the node's that trials read, and the variables that
// lead there (docs/wheelhouse.md).
func bundles(c *urfave.Context, o *trial.Options) error {
	folder := func(flag string) (string, error) {
		dir, err := filepath.Abs(c.String(flag))
		if err == nil {
			if st, serr := os.Stat(dir); serr != nil || !st.IsDir() {
				err = fmt.Errorf("%s is not a folder", dir)
			}
		}
		if err != nil {
			return "", cli.Usagef("sifbuild wheelhouse makes it", "--%s: %w", flag, err)
		}
		return dir, nil
	}
	if c.String("wheelhouse") != "" {
		dir, err := folder("wheelhouse")
		if err != nil {
			return err
		}
		links := wheelhouseAt
		if st, err := os.Stat(filepath.Join(dir, "wheels")); err == nil && st.IsDir() {
			links += "/wheels"
		}
		o.Box.Binds = append(o.Box.Binds, box.Bind{Source: dir, Target: wheelhouseAt, Why: "--wheelhouse: packages without a network"})
		for name, value := range map[string]string{
			"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links, "PIP_DISABLE_PIP_VERSION_CHECK": "1",
			"UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": links,
		} {
			o.Env[name] = value
		}
	}
	if c.String("grader") == "" {
		return nil
	}
	dir, err := folder("grader")
	if err != nil {
		return err
	}
	data, err := readFile(filepath.Join(dir, "grader.env"))
	if err != nil {
		return cli.Usagef("sifbuild wheelhouse --grader makes it", "--grader: %w", err)
	}
	o.Box.Binds = append(o.Box.Binds, box.Bind{Source: dir, Target: graderAt, Why: "--grader: what tests need to run"})
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		value = strings.ReplaceAll(value, "${GRADER}", graderAt)
		if name == "PATH" {
			o.VerifierPath = strings.Split(strings.TrimSuffix(value, ":${PATH}"), ":")
			continue
		}
		o.VerifierEnv[name] = value
	}
	return nil
}

// beside is a program that comes with this one.
func beside(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		at := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return at, nil
		}
	}
	if at, err := exec.LookPath(name); err == nil {
		return filepath.Abs(at)
	}
	return "", cli.Usagef("put it beside rollout, or on PATH", "%s is not there, and no trial runs without it", name)
}
