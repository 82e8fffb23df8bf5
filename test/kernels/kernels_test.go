package kernels_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"fence/test/kernels"
)

// The harness itself: what a test is told of a command is what happened, on each kernel.
func TestBoot(t *testing.T) {
	for _, k := range append(kernels.Fetched(t), kernels.One(t, "trixie", "arm64")) {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			sh := func(script string) []string { return []string{"sh", "-c", script} }
			cases := []struct {
				what  string
				c     kernels.Command
				check func(o kernels.Outcome) bool
			}{
				{"an ordinary user", kernels.Command{Argv: sh("id -u; id -un; pwd; cat; echo err >&2; exit 3"), In: "in"},
					func(o kernels.Outcome) bool {
						return string(o.Stdout) == "1000\nalice\n/home/alice\nin" && string(o.Stderr) == "err\n" && o.Exit == 3
					}},
				{"the other user cannot enter", kernels.Command{Argv: sh("id -u; ls /home/alice"), User: kernels.Bob},
					func(o kernels.Outcome) bool {
						return strings.HasPrefix(string(o.Stdout), "1001\n") && o.Exit == 1 && bytes.Contains(o.Stderr, []byte("Permission denied"))
					}},
				{"a signal", kernels.Command{Argv: sh("kill -SEGV $$")}, func(o kernels.Outcome) bool { return o.Signal == 11 }},
				{"past its time", kernels.Command{Argv: sh("sleep 100"), Seconds: 1}, func(o kernels.Outcome) bool { return o.Killed && o.Exit == 0 }},
				{"a file brought along", kernels.Command{Argv: sh("stat -c '%a %u' /data/file; cat /data/file")},
					func(o kernels.Outcome) bool { return string(o.Stdout) == "640 1000\nhello" }},
				{"a sysctl between commands", kernels.Command{Argv: sh("cat /proc/sys/user/max_user_namespaces"), Set: map[string]string{"user.max_user_namespaces": "7"}},
					func(o kernels.Outcome) bool { return string(o.Stdout) == "7\n" }},
				{"left running", kernels.Command{Argv: sh("echo up; exec sleep 1000"), Background: true, User: kernels.Bob},
					func(o kernels.Outcome) bool { return o.Killed && string(o.Stdout) == "up\n" }},
				{"seen running", kernels.Command{Argv: sh("ps -o user,args | grep -c '^bob.*sleep 1000'")},
					func(o kernels.Outcome) bool { return string(o.Stdout) == "1\n" }},
				{"loopback and pty", kernels.Command{Argv: sh("ping -c1 127.0.0.1 2>&1 | grep -c 'Operation not permitted\\|1 packets received'; ls /dev/ptmx /dev/pts/ptmx"), User: kernels.Root},
					func(o kernels.Outcome) bool { return string(o.Stdout) == "1\n/dev/ptmx\n/dev/pts/ptmx\n" }},
			}
			spec := kernels.Spec{Kernel: k, Files: []kernels.File{{Path: "/data/file", Data: []byte("hello"), Mode: 0o640, UID: 1000}}}
			for _, c := range cases {
				spec.Commands = append(spec.Commands, c.c)
			}
			r := kernels.Boot(t, spec)
			t.Logf("%s, %v in all: %+v", k.Release, r.Took.Round(1e8), r.Facts)
			for i, c := range cases {
				if !c.check(r.Outcomes[i]) {
					t.Errorf("%s: %s", c.what, show(r.Outcomes[i]))
				}
			}
			for _, problem := range append(r.Facts.SetupProblems, r.Facts.ModuleErrors...) {
				t.Errorf("the guest is not whole: %s", problem)
			}
		})
	}
}

func show(o kernels.Outcome) string {
	return strings.NewReplacer("\n", "\n\t").Replace(
		"stdout: " + string(o.Stdout) + "\nstderr: " + string(o.Stderr) +
			"\nexit " + fmt.Sprintf("%d signal %d killed %v %s", o.Exit, o.Signal, o.Killed, o.Err))
}
