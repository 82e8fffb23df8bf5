package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"fence/pkg/box"
	"fence/pkg/cli"
	"fence/pkg/report"
	"fence/pkg/result"
	"fence/pkg/runner"
	"fence/pkg/trial"
)

// wider are the things that a fence keeps from commands and that a solution may
// need, one each: the network, and system calls that programs are known to use,
// then those together that are of little use alone.
var wider = []string{
	network, "ptrace", "perf_event_open", "userfaultfd", "personality", "unshare", "chroot", "bpf", "fanotify_init", "setpriority",
	"syslog", "quotactl", "vhangup", "acct",
	"process_vm_readv process_vm_writev", "io_uring_setup io_uring_enter io_uring_register", "add_key request_key keyctl",
	"unshare setns mount umount2 chroot pivot_root", "name_to_handle_at open_by_handle_at", "kcmp pidfd_getfd",
	"sched_setscheduler sched_setattr sched_setparam", "settimeofday clock_settime", "swapon swapoff",
}

// network stands for --net host.
const network = "the network"

// needs finds what of a list has to be there so that passes says yes: one thing
// where one is enough, else as few as halving finds; nil if not even all of them
// are. It asks about twice as often as the list can be halved.
func needs(list []string, passes func(some []string) (bool, error)) ([]string, error) {
	if ok, err := passes(list); err != nil || !ok {
		return nil, err
	}
	for len(list) > 1 {
		half := len(list) / 2
		ok, err := passes(list[:half])
		if err != nil {
			return nil, err
		}
		if ok {
			list = list[:half]
			continue
		}
		if ok, err = passes(list[half:]); err != nil {
			return nil, err
		}
		if !ok {
			return list, nil // something of each half
		}
		list = list[half:]
	}
	return list, nil
}

// suggest runs the oracles that failed again: as they were, and then with more
// opened, until it is known what each needs.
func (j *setup) suggest(ctx context.Context, trials []report.Trial) {
	for _, t := range trials {
		if t.AgentInfo.Name != "oracle" || t.Reward != nil && *t.Reward >= 1 || t.Fault != nil && t.Fault.Phase != "verify" {
			continue
		}
		var it *item
		for n := range j.items {
			if j.items[n].Task.Dir == t.Task {
				it = &j.items[n]
			}
		}
		if it == nil || ctx.Err() != nil {
			continue
		}
		n := 0
		passes := func(some []string) (bool, error) {
			n++
			r, err := j.widened(ctx, *it, fmt.Sprintf("%s-%d", t.TrialName, n), some)
			if err == nil && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return r.Reward != nil && *r.Reward >= 1, err
		}
		again, err := passes(nil)
		var found []string
		if err == nil && !again {
			found, err = needs(wider, passes)
		}
		switch {
		case err != nil:
			fmt.Fprintf(os.Stderr, "rollout: %s: what its solution needs is not known: %s\n", cli.Printable(it.Task.Name), cli.Printable(err.Error()))
		case again:
			fmt.Fprintf(os.Stderr, "rollout: %s: its solution passes now, with nothing opened: it does not always\n", cli.Printable(it.Task.Name))
		case found == nil:
			fmt.Fprintf(os.Stderr, "rollout: %s: its solution fails with the network and every system call, too: it is not the fence\n", cli.Printable(it.Task.Name))
		default:
			propose(os.Stderr, it.Task.Name, found)
		}
	}
}

// propose prints what to open.
func propose(w io.Writer, name string, found []string) {
	name = cli.Printable(name)
	fmt.Fprintf(w, "rollout: %s: its solution passes with this\n", name)
	for _, what := range found {
		if what == network {
			fmt.Fprintf(w, "    --net host --why '%s needs the network'    (if it is for packages: --wheelhouse)\n", name)
			continue
		}
		for _, call := range strings.Fields(what) {
			fmt.Fprintf(w, "    [[open]]\n    syscall = %q\n    why = %q\n", call, name+": its solution calls it")
		}
	}
}

// widened runs an oracle once with more opened than the person has.
func (j *setup) widened(ctx context.Context, it item, name string, some []string) (result.Trial, error) {
	wide := *j
	const why = "validate --suggest: what a solution needs"
	wide.options.Box.Opens = append([]box.Open{}, j.options.Box.Opens...)
	for _, what := range some {
		if what == network {
			wide.options.Network, wide.options.Why = "host", why
			continue
		}
		for _, call := range strings.Fields(what) {
			wide.options.Box.Opens = append(wide.options.Box.Opens, box.Open{Syscall: call, Why: why})
		}
	}
	wide.gates = &gates{why: why}
	all := filepath.Join(j.out, ".rollout", "suggest")
	if err := os.MkdirAll(all, 0o755); err != nil {
		return result.Trial{}, err
	}
	dir, err := os.MkdirTemp(all, name+"-")
	if err != nil {
		return result.Trial{}, err
	}
	return wide.try(ctx, it, trial.Oracle{}, runner.Item{Spec: it.Spec, Phase: func(string) {}}, dir), nil
}
