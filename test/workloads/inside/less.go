package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"fence/pkg/sandbox"
	"fence/pkg/seccomp"
	"fence/policies"
	"fence/test/workloads"
)

// less becomes argv under the policy strict less one right.
func less(right string, argv []string) error {
	take, ok := removals[right]
	if !ok {
		return fmt.Errorf("no way to take away the right %q", right)
	}
	p, ok := policies.Parsed(policies.Default)
	if !ok {
		return errors.New("there is no policy " + policies.Default)
	}
	ns, err := sandbox.Enter(true)
	if err != nil {
		return err
	}
	node, err := sandbox.Look(ns, nil)
	if err != nil {
		return err
	}
	rs, err := sandbox.Resolve(p, node)
	if err != nil {
		return err
	}
	if rs.Form != sandbox.Namespace {
		return fmt.Errorf("%s form here; a right is taken from the namespace form", rs.Form)
	}
	if take.from != nil {
		if err := take.from(&rs); err != nil {
			return err
		}
	}
	if err := sandbox.Enforce(rs); err != nil {
		return err
	}
	// A second filter: the kernel takes the sterner of two answers, and the later of two errnos.
	if take.refuse != nil {
		if err := seccomp.Load(filter(take.refuse)); err != nil {
			return err
		}
	}
	return sandbox.Exec(rs, argv)
}

// A removal takes one right away: from the ruleset, or by a filter on top.
type removal struct {
	from   func(*sandbox.Ruleset) error
	refuse []refusal
}

var removals = map[string]removal{
	workloads.Nothing: {},

	workloads.ExecuteMade: {from: onlyIn("/usr", ll.AccessFSExecute)},
	workloads.ReadDir:     {from: cut(ll.AccessFSReadDir)},
	workloads.WriteRoot:   {from: onlyIn("/tmp", change)},
	workloads.WriteFile:   {from: cut(ll.AccessFSWriteFile)},
	workloads.Truncate:    {from: cut(ll.AccessFSTruncate)},
	workloads.RemoveDir:   {from: cut(ll.AccessFSRemoveDir)},
	workloads.RemoveFile:  {from: cut(ll.AccessFSRemoveFile)},
	workloads.MakeReg:     {from: cut(ll.AccessFSMakeReg)},
	workloads.MakeDir:     {from: cut(ll.AccessFSMakeDir)},
	workloads.MakeSock:    {from: cut(ll.AccessFSMakeSock)},
	workloads.MakeFifo:    {from: cut(ll.AccessFSMakeFifo)},
	workloads.MakeSym:     {from: cut(ll.AccessFSMakeSym)},
	workloads.Refer:       {from: cut(ll.AccessFSRefer)},
	workloads.IoctlDev:    {from: cut(ll.AccessFSIoctlDev)},

	workloads.DevShm:  {from: mask("/dev/shm", sandbox.MountMaskDir)},
	workloads.Meminfo: {from: mask("/proc/meminfo", sandbox.MountMaskFile)},
	workloads.Sys:     {from: mask("/sys/devices/system", sandbox.MountMaskDir)},

	workloads.Lang: {from: unset("LANG")},

	workloads.SysV: {from: func(rs *sandbox.Ruleset) error { rs.Filter.DenySysV = true; return nil }},

	workloads.Clone3:         {refuse: calls(unix.EPERM, unix.SYS_CLONE3)},
	workloads.UnixSocket:     {refuse: withArg(unix.EAFNOSUPPORT, 0, unix.AF_UNIX, unix.SYS_SOCKET)},
	workloads.Socketpair:     {refuse: calls(unix.EAFNOSUPPORT, unix.SYS_SOCKETPAIR)},
	workloads.Netlink:        {refuse: withArg(unix.EAFNOSUPPORT, 0, unix.AF_NETLINK, unix.SYS_SOCKET)},
	workloads.Affinity:       {refuse: calls(unix.EPERM, unix.SYS_SCHED_SETAFFINITY)},
	workloads.MemoryPolicy:   {refuse: calls(unix.EPERM, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY)},
	workloads.Personality:    {refuse: withArg(unix.EPERM, 0, 0x40000, unix.SYS_PERSONALITY)},
	workloads.Priority:       {refuse: calls(unix.EPERM, unix.SYS_SETPRIORITY)},
	workloads.Scheduler:      {refuse: calls(unix.EPERM, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETATTR)},
	workloads.Limits:         {refuse: withArg(unix.EPERM, 0, 0, unix.SYS_PRLIMIT64)},
	workloads.Flock:          {refuse: calls(unix.EPERM, unix.SYS_FLOCK)},
	workloads.ProcessGroups:  {refuse: calls(unix.EPERM, unix.SYS_SETPGID)},
	workloads.ExecutableHeap: {refuse: executable},
}

const change = ll.AccessFSWriteFile | ll.AccessFSTruncate | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir |
	ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeSym | ll.AccessFSRefer

// cut takes Landlock rights from every path.
func cut(rights uint64) func(*sandbox.Ruleset) error {
	return func(rs *sandbox.Ruleset) error {
		if rs.Handled.FS&rights != rights {
			return fmt.Errorf("this kernel's Landlock does not know the rights %#x", rights)
		}
		had := false
		for i := range rs.Paths {
			had = had || rs.Paths[i].Rights&rights != 0
			rs.Paths[i].Rights &^= rights
		}
		rs.Paths = slices.DeleteFunc(rs.Paths, func(p sandbox.PathRule) bool { return p.Rights == 0 })
		if !had {
			return fmt.Errorf("no path had the rights %#x", rights)
		}
		return nil
	}
}

// onlyIn leaves Landlock rights to one folder, and to rules on others than "/".
func onlyIn(dir string, rights uint64) func(*sandbox.Ruleset) error {
	return func(rs *sandbox.Ruleset) error {
		for i := range rs.Paths {
			if p := &rs.Paths[i]; p.Path == "/" || p.Path == "/tmp" || p.Path == "/var/tmp" {
				p.Rights &^= rights
			}
		}
		rs.Paths = append(rs.Paths, sandbox.PathRule{Path: dir, Rights: rights & rs.Handled.FS, Dir: true})
		return nil
	}
}

func mask(path string, kind sandbox.MountKind) func(*sandbox.Ruleset) error {
	return func(rs *sandbox.Ruleset) error {
		rs.Mounts = append(rs.Mounts, sandbox.MountOp{Kind: kind, Path: path})
		return nil
	}
}

func unset(name string) func(*sandbox.Ruleset) error {
	return func(rs *sandbox.Ruleset) error {
		n := len(rs.Env)
		rs.Env = slices.DeleteFunc(rs.Env, func(kv string) bool { return kv[:min(len(kv), len(name)+1)] == name+"=" })
		if len(rs.Env) == n {
			return fmt.Errorf("%s is not set", name)
		}
		return nil
	}
}

// A refusal is a system call that fails: always, or when (argument & mask) is value.
type refusal struct {
	nr          uint32
	errno       unix.Errno
	arg         int // -1: always
	mask, value uint32
}

func calls(errno unix.Errno, nrs ...uint32) []refusal {
	var out []refusal
	for _, nr := range nrs {
		out = append(out, refusal{nr: nr, errno: errno, arg: -1})
	}
	return out
}

func withArg(errno unix.Errno, arg int, value uint32, nr uint32) []refusal {
	return []refusal{{nr, errno, arg, ^uint32(0), value}}
}

// executable is memory that a program makes executable after writing to it, as compilers in
// memory do.
var executable = []refusal{{unix.SYS_MPROTECT, unix.EACCES, 2, unix.PROT_EXEC | unix.PROT_WRITE, unix.PROT_EXEC | unix.PROT_WRITE},
	{unix.SYS_MMAP, unix.EACCES, 2, unix.PROT_EXEC | unix.PROT_WRITE, unix.PROT_EXEC | unix.PROT_WRITE}}

// filter is a seccomp program that refuses these and allows the rest. Numbers of other
// architectures do not get here: the fence's own filter answers them, and sternly enough.
func filter(list []refusal) []byte {
	var prog []byte
	insn := func(code uint16, jt, jf uint8, k uint32) {
		prog = binary.NativeEndian.AppendUint16(prog, code)
		prog = append(prog, jt, jf)
		prog = binary.NativeEndian.AppendUint32(prog, k)
	}
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		and  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K
	)
	for _, r := range list {
		insn(load, 0, 0, 0) // the number
		if r.arg < 0 {
			insn(jeq, 0, 1, r.nr)
		} else {
			insn(jeq, 0, 4, r.nr)
			insn(load, 0, 0, uint32(16+8*r.arg)) // the low half
			insn(and, 0, 0, r.mask)
			insn(jeq, 0, 1, r.value)
		}
		insn(ret, 0, 0, unix.SECCOMP_RET_ERRNO|uint32(r.errno))
	}
	insn(ret, 0, 0, unix.SECCOMP_RET_ALLOW)
	return prog
}
