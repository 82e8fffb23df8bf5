package kernels_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"fence/test/kernels"
)

const proxySocket = "/home/alice/proxy.sock"

// modes are what is run on a node beside strict: the networks, and sessions.
func (n node) modes() []kernels.Command {
	flags := ""
	var domains []string
	for _, d := range []string{"agent", "verifier"} {
		domains = append(domains, "--domain "+d+"="+map[string]string{"agent": "strict", "verifier": "verifier"}[d])
		if n.accept {
			flags = " --accept landlock-hide --accept host-tmp --accept sockets --why test"
			domains = append(domains, fmt.Sprintf("--flag %[1]s:accept=landlock-hide --flag %[1]s:accept=host-tmp --flag %[1]s:accept=sockets --flag %[1]s:why=test", d))
		}
	}
	serve := "session 'fence serve --socket /srv/alice/s " + strings.Join(domains, " ")
	var out []kernels.Command
	for _, words := range []string{
		"fence --net loopback" + flags + " --status-fd 1 -- attempts net",
		"fence --net proxy=" + proxySocket + " --why w" + flags + " --status-fd 1 -- attempts net",
		serve + "' try",
		serve + " --below agent=verifier --private verifier=/tests' place",
	} {
		out = append(out, kernels.Command{Argv: n.argv(words), Set: n.set(), Dir: "/"})
	}
	return out
}

// sessions is a program of the guest's: a session, and commands in it.
const sessions = `#!/bin/sh
s=/srv/alice/s
rm -f /srv/alice/*
(sh -c 'echo $$ >/srv/alice/pid; exec '"$1"; echo $? >/srv/alice/ended) &
until [ -S $s ] || [ -e /srv/alice/ended ]; do usleep 20000; done
fence run --socket $s --status >/srv/alice/status 2>/dev/null || { wait; exit $(cat /srv/alice/ended); }
at() { domain=$1; shift; fence run --socket $s --domain $domain -- "$@"; }
case $2 in
try)
	at agent attempts try $(cat /tmp/victim.pid) ;;
place)
	grep -oE '"(below|beside)": "[a-z]*' /srv/alice/status
	at verifier sh -c 'echo a test >/tests/test; sleep 1000 >/dev/null 2>&1 & until killall -0 sleep 2>/dev/null; do usleep 10000; done' || exit
	at agent sh -c 'ls -A /tests; echo x >/tests/planted || echo cannot write; killall sleep 2>/dev/null || echo cannot kill'
	at verifier sh -c 'cat /tests/*; killall sleep && echo ended; rm /tests/test'
esac
kill $(cat /srv/alice/pid)
wait
exit $(cat /srv/alice/ended)
`

// Networks and sessions work on every kernel, or say what is missing.
func TestModes(t *testing.T) {
	for _, k := range append(kernels.Fetched(t), kernels.One(t, "trixie", "arm64")) {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel() // a guest has one CPU
			facts := factsOf(t, k, "")
			var list []node
			for yama := 1; yama < 3; yama++ {
				if yama == 2 && k.Arch != "amd64" {
					continue // the slowest guest; Yama is no different there
				}
				n := node{abi: facts.LandlockABI, yama: yama, pidns: facts.LandlockABI < 6}
				for name, change := range map[string]func(*node){
					"plain":                        func(*node) {},
					"no network namespaces":        func(n *node) { n.noNetNS = true },
					"no user namespaces, accepted": func(n *node) { n.noUserNS, n.accept, n.pidns = "user.max_user_namespaces", true, false },
				} {
					m := n
					change(&m)
					m.name = fmt.Sprintf("yama %d, %s", yama, name)
					list = append(list, m)
				}
			}
			spec := kernels.Spec{Kernel: k, Files: append(files(t, k),
				kernels.File{Path: "/usr/bin/session", Data: []byte(sessions)},
				kernels.File{Path: "/srv/alice", Mode: fs.ModeDir | 0o700, UID: 1000},
				kernels.File{Path: "/tests", Mode: fs.ModeDir | 0o755, UID: 1000})}
			spec.Commands = []kernels.Command{{Argv: []string{"/usr/bin/attempts", "victim"}, Background: true}, {Argv: []string{"/usr/bin/attempts", "proxy", proxySocket}, Background: true}, {Argv: []string{"/usr/bin/attempts", "net"}}} // the last is the control
			for _, n := range list {
				spec.Commands = append(spec.Commands, n.modes()...)
			}
			r := kernels.Boot(t, spec)
			t.Logf("%s: %d nodes in %v", k.Release, len(list), r.Took.Round(1e8))
			if o := r.Outcomes[2]; string(o.Stdout) != `{"own server":"ok","own server, IPv6":"ok","the host's server":"ok","the proxy":"ECONNREFUSED"}`+"\n" {
				t.Errorf("the control: %s", show(o))
			}
			for i, n := range list {
				t.Run(n.name, func(t *testing.T) { n.judgeModes(t, r.Outcomes[3+4*i:7+4*i]) })
			}
		})
	}
}

func (n node) judgeModes(t *testing.T, o []kernels.Outcome) {
	missing := n.refusals()
	own := missing // and what a network of its own is made of
	switch {
	case !n.noNetNS && n.noUserNS == "":
	case n.abi < 4:
		own = append(slices.Clone(missing), fmt.Sprintf("Landlock (ABI %d) does not deny TCP", n.abi))
	case n.bare() && n.yama == 2:
		own = append(slices.Clone(missing), "kernel.yama.ptrace_scope is 2")
	}
	for i, what := range []string{"loopback", "proxy"} {
		if len(own) > 0 {
			refused(t, what, o[i], own)
			continue
		}
		s, rest, ok := launched(t, what, o[i])
		if !ok {
			continue
		}
		want := `{"own server":"ok","own server, IPv6":"ok","the host's server":"ECONNREFUSED","the proxy":"` + map[string]string{"loopback": "ECONNREFUSED", "proxy": "ok"}[what] + `"}` + "\n"
		supervised := strings.Contains(strings.Join(s.Lost, "\n"), "only a supervisor of its connections")
		if string(rest) != want || supervised != (n.noNetNS || n.noUserNS != "") {
			t.Errorf("%s: %s lost: %q, want %s", what, rest, s.Lost, want)
		}
	}
	session, place := o[2], o[3]
	if len(missing) > 0 {
		for i, o := range o[2:] {
			sentence, hints, _ := strings.Cut(string(o.Stderr), "\n")
			for _, m := range missing {
				if o.Exit != 125 || len(o.Stdout) > 0 || !strings.HasPrefix(hints, "hint: ") || !strings.Contains(sentence, m) {
					t.Errorf("session %d, to be refused for %q: %s", i, m, show(o))
				}
			}
		}
		return
	}
	said := map[string]string{}
	if err := json.Unmarshal(session.Stdout, &said); err != nil || session.Exit != 0 {
		t.Errorf("session: %v %s", err, show(session))
	}
	for what, errnos := range denied {
		if n.accept && what == "socket in /tmp" {
			continue // accepted by name
		}
		if !slices.Contains(errnos, said[what]) {
			t.Errorf("session: %s: %q, want one of %v", what, said[what], errnos)
		}
	}
	if n.bare() {
		if place.Exit != 125 || !strings.Contains(string(place.Stdout), `"beside"`) || !strings.Contains(string(place.Stderr), "/tests") || !strings.Contains(string(place.Stderr), "hint: ") {
			t.Errorf("places of one domain alone: %s", show(place))
		}
		return
	}
	if !strings.Contains(string(place.Stdout), `"below": "verifier`) || !strings.HasSuffix(string(place.Stdout), "\ncannot write\ncannot kill\na test\nended\n") || place.Exit != 0 {
		t.Errorf("an agent below: %s", show(place))
	}
}
