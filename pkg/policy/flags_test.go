package policy_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"fence/pkg/policy"
)

func TestWithFlags(t *testing.T) {
	base := mustParse(t, v1+"extends = \"strict\"\n")
	before := format(base)
	p, err := base.WithFlags(policy.Flags{
		Read: []string{"/wheels"}, Write: []string{"/out"}, Hide: []string{"/proj", "@tmp2"[:4]},
		Env: []string{"X", "Y=1=2", "Z_*", "Y="}, Syscall: []string{"ptrace"}, Limit: []string{"core=unlimited", "nproc=9"},
		Accept: []string{"landlock-hide"}, Net: "host", Why: []string{"one", "two"},
	}, options())
	if err == nil || err.Error() != "p.toml: @tmp is opened here, and is hidden at --hide" {
		t.Errorf("got %v", err)
	}
	p, err = base.WithFlags(policy.Flags{
		Read: []string{"/wheels"}, Write: []string{"/out"}, Hide: []string{"/proj"},
		Env: []string{"X", "Y=1=2", "Z_*"}, Syscall: []string{"ptrace"}, Limit: []string{"core=unlimited", "nproc=9"},
		Accept: []string{"landlock-hide"}, Net: "host", Why: []string{"one", "two"},
	}, options())
	if err != nil {
		t.Fatal(err)
	}
	const why = "one; two"
	want := base
	want.Filesystem.Hide = append(slices.Clone(base.Filesystem.Hide), "/proj")
	want.Network = policy.Network{Mode: policy.NetworkHost, Why: why}
	want.Environment.Keep = append(slices.Clone(base.Environment.Keep), "X", "Z_*")
	want.Environment.Set = []policy.Variable{{Name: "Y", Value: "1=2"}}
	want.Environment.Why = why
	want.Limits = []policy.Limit{{Name: "core", Value: policy.Unlimited}, {Name: "nofile", Value: 4096}, {Name: "nproc", Value: 9}}
	want.Open = []policy.Open{{Path: "/wheels", Access: policy.AccessRead, Why: why, From: "--read"},
		{Path: "/out", Access: policy.AccessWrite, Why: why, From: "--write"}, {Syscall: "ptrace", Why: why, From: "--syscall"}}
	want.Accept = []policy.Accept{{Name: "landlock-hide", Why: why, From: "--accept"}}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
	if format(base) != before {
		t.Error("the policy below was changed")
	}
	// Tightening needs no reason.
	if p, err = p.WithFlags(policy.Flags{Net: "none", Hide: []string{"/other"}, Limit: []string{"core=0"}}, policy.Options{}); err != nil || p.Network != (policy.Network{}) {
		t.Errorf("got %v, %v", p.Network, err)
	}
}

func TestWithFlags_Refuses(t *testing.T) {
	why := []string{"w"}
	tests := []struct {
		flags policy.Flags
		want  string
	}{
		{policy.Flags{Read: []string{"/x"}}, "--read: /x is opened without a reason"},
		{policy.Flags{Read: []string{"x"}, Why: why}, `--read: "x" is not an absolute path`},
		{policy.Flags{Read: []string{""}, Why: why}, `--read: an opening needs a path or a syscall`},
		{policy.Flags{Read: []string{"@home"}, Why: why}, `--read: set "@home" does not belong here`},
		{policy.Flags{Read: []string{"/a\xff"}, Why: why}, `--read: path "/a\xff" has bytes that are not UTF-8`},
		{policy.Flags{Write: []string{"/x"}}, "--write: /x is opened without a reason"},
		{policy.Flags{Write: []string{"/.exec"}, Why: why}, "--write: /.exec is never writable: what lies there runs before the fence the next time"},
		{policy.Flags{Write: []string{"/dev/nvidia*"}, Why: why}, `--write: "/dev/nvidia*": a pattern is only for access = "device" below /dev`},
		{policy.Flags{Hide: []string{"@hme"}}, `--hide: set "@hme" is not known (@tmp, @shared, @home, @sockets)`},
		{policy.Flags{Env: []string{"A"}}, "--env: A is opened without a reason"},
		{policy.Flags{Env: []string{"A=1"}}, "--env: A is opened without a reason"},
		{policy.Flags{Env: []string{"HF_TOKEN"}, Why: why}, "--env: HF_TOKEN looks like a credential"},
		{policy.Flags{Env: []string{"HF_TOKEN=hunter2"}, Why: why}, "--env: HF_TOKEN looks like a credential"},
		{policy.Flags{Env: []string{"A=http://u:hunter2@h"}, Why: why}, "--env: A looks like a credential"},
		{policy.Flags{Env: []string{"=hunter2"}, Why: why}, `--env: "" is not the name of a variable`},
		{policy.Flags{Env: []string{"A=hunter2\x00"}, Why: why}, `--env: the value of A is not text`},
		{policy.Flags{Syscall: []string{"ptrace"}}, "--syscall: ptrace is opened without a reason"},
		{policy.Flags{Syscall: []string{"ptrac"}, Why: why}, `--syscall: system call "ptrac" is not known`},
		{policy.Flags{Syscall: []string{""}, Why: why}, `--syscall: an opening needs a path or a syscall`},
		{policy.Flags{Net: "host"}, "--net: the network is opened without a reason"},
		{policy.Flags{Net: "loop", Why: why}, `--net: network mode "loop" is not known (none, loopback, proxy, host)`},
		{policy.Flags{Net: "proxy=", Why: why}, `--net: the proxy's socket has no path`},
		{policy.Flags{Net: "proxy=p.sock", Why: why}, `--net: "p.sock" cannot be the proxy's socket`},
		{policy.Flags{Net: "host=/x", Why: why}, `--net: "/x" cannot be the proxy's socket`},
		{policy.Flags{Net: "proxy"}, `--net: the network is opened without a reason`},
		{policy.Flags{Accept: []string{"landlock-hide"}}, "--accept: landlock-hide is opened without a reason"},
		{policy.Flags{Accept: []string{"x"}, Why: why}, `--accept: "x" is not something that can be accepted (` + weaknesses() + `)`},
		{policy.Flags{Limit: []string{"core"}}, `--limit: "core" has no value`},
		{policy.Flags{Limit: []string{"core=-1"}}, `--limit: limit core is "-1", not a whole number or "unlimited"`},
		{policy.Flags{Why: []string{" "}}, "--why: no reason is given"},
		{policy.Flags{Why: []string{"a\nb"}}, "--why: the reason has a control character"},
		{policy.Flags{Read: []string{"/data/x"}, Hide: []string{"/data"}, Why: why}, "--read: /data/x is opened here, and is covered by /data, hidden at --hide"},
		{policy.Flags{Read: []string{"/hid/x"}, Why: why}, "--read: /hid/x is opened here, and is covered by /hid, hidden at p.toml"},
		{policy.Flags{Hide: []string{"/op"}}, "p.toml:4: /op/x is opened here, and is covered by /op, hidden at --hide"},
	}
	base := mustParse(t, v1+"[filesystem]\nhide = [\"/hid\"]\n[[open]]\npath = \"/op/x\"\naccess = \"read\"\nwhy = \"w\"\n")
	for _, tt := range tests {
		p, err := base.WithFlags(tt.flags, options())
		if err == nil || err.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows a value: %v", err)
		}
		if !reflect.DeepEqual(p, policy.Policy{}) {
			t.Errorf("%s: the policy is not zero", tt.want)
		}
	}
	if _, err := base.WithFlags(policy.Flags{Syscall: []string{"ptrace"}, Why: why}, policy.Options{}); err == nil {
		t.Error("without a table of system calls one was opened")
	}
}
