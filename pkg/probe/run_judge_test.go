package probe

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

var (
	bare     = facts{}
	filtered = facts{Filter: true}
	locked   = facts{Layers: 1}
	fencedIn = facts{Filter: true, Layers: 1}
	loOnlyIn = facts{LoOnly: true}
)

// judged is one row of a table: an errno, what it means, and who did it.
type judged struct {
	f    facts
	e    syscall.Errno
	want Outcome
	mech string
}

func check(t *testing.T, rows []judged, judge func(judged) (Outcome, string)) {
	t.Helper()
	for _, r := range rows {
		if o, m := judge(r); o != r.want || m != r.mech {
			t.Errorf("%+v %s: got %s %q, want %s %q", r.f, errnoName(r.e), o, m, r.want, r.mech)
		}
	}
}

func TestJudgePath(t *testing.T) {
	allowed := []judged{
		{bare, 0, Reachable, ""},
		{bare, unix.ENOENT, Absent, ""},
		{bare, unix.ENOTDIR, Absent, ""},
		{bare, unix.ENXIO, Absent, ""},
		{bare, unix.ENODEV, Absent, ""},
		{bare, unix.EROFS, Denied, "readonly_mount"},
		{locked, unix.EACCES, Denied, "landlock_fs"},
		{bare, unix.EACCES, Denied, "lsm"},
		{bare, unix.EPERM, Denied, "nnp_caps"},
		{filtered, unix.EPERM, Denied, "unknown"},
		{filtered, unix.ENOSYS, Denied, "seccomp_errno"},
		{bare, unix.ENOSYS, Absent, ""},
		{bare, unix.EIO, Error, ""}, // a broken mount is neither open nor shut
		{bare, unix.ESTALE, Error, ""},
		{bare, unix.ETIMEDOUT, Error, ""},
		{bare, unix.ELOOP, Error, ""},
	}
	check(t, allowed, func(r judged) (Outcome, string) { return judgePath(r.f, r.e, true) })
	check(t, []judged{{bare, unix.EACCES, Denied, "dac"}, {locked, unix.EACCES, Denied, "dac"}}, func(r judged) (Outcome, string) { return judgePath(r.f, r.e, false) })
}

func TestJudgeSocket(t *testing.T) {
	check(t, []judged{
		{bare, 0, Reachable, ""},
		{filtered, unix.EAFNOSUPPORT, Denied, "seccomp_errno"},
		{filtered, unix.EPROTONOSUPPORT, Denied, "seccomp_errno"},
		{bare, unix.EAFNOSUPPORT, Absent, ""},
		{filtered, unix.EPERM, Denied, "seccomp_errno"},
		{bare, unix.EACCES, Denied, "lsm"},
		{filtered, unix.ENOSYS, Denied, "seccomp_errno"},
		{bare, unix.EMFILE, Error, ""},
		{bare, unix.ENOBUFS, Error, ""},
	}, func(r judged) (Outcome, string) { return judgeSocket(r.f, r.e, true) })
	check(t, []judged{
		{bare, unix.EAFNOSUPPORT, Absent, ""},
		{filtered, unix.EAFNOSUPPORT, Absent, ""}, // a module, or the filter: closed either way
		{bare, unix.EPERM, Denied, "nnp_caps"},
		{filtered, unix.EPERM, Denied, "unknown"},
		{bare, unix.EINVAL, Absent, ""},
	}, func(r judged) (Outcome, string) { return judgeSocket(r.f, r.e, false) })
}

func TestJudgeConnect(t *testing.T) {
	both := []judged{
		{bare, 0, Reachable, ""},
		{bare, unix.ECONNRESET, Reachable, ""},
		{locked, unix.EACCES, Denied, "landlock_net"},
		{filtered, unix.EACCES, Denied, "seccomp_errno"},
		{bare, unix.EACCES, Denied, "lsm"},
		{filtered, unix.EPERM, Denied, "seccomp_errno"},
		{bare, unix.EPERM, Denied, "lsm"},
		{bare, unix.ENETUNREACH, Unreachable, ""},
		{loOnlyIn, unix.ENETUNREACH, Unreachable, "no_interface"},
		{bare, unix.EHOSTUNREACH, Unreachable, ""},
		{bare, unix.ETIMEDOUT, Unreachable, ""},
		{bare, unix.EADDRNOTAVAIL, Absent, ""},
		{filtered, unix.EOPNOTSUPP, Denied, "seccomp_errno"},
		{bare, unix.EOPNOTSUPP, Denied, "sysctl"},
		{bare, unix.EINVAL, Error, ""},
	}
	check(t, both, func(r judged) (Outcome, string) { return judgeConnect(r.f, r.e, true) })
	check(t, both, func(r judged) (Outcome, string) { return judgeConnect(r.f, r.e, false) })
	// From elsewhere, "refused" is an answer; here, it means nobody is there.
	if o, _ := judgeConnect(bare, unix.ECONNREFUSED, false); o != Reachable {
		t.Errorf("refused from elsewhere: %s", o)
	}
	if o, m := judgeConnect(loOnlyIn, unix.ECONNREFUSED, true); o != Absent || m != "no_interface" {
		t.Errorf("refused here: %s %s", o, m)
	}
}

func TestJudgeUnix(t *testing.T) {
	check(t, []judged{
		{bare, 0, Reachable, ""},
		{bare, unix.EAGAIN, Reachable, ""},
		{bare, unix.EPROTOTYPE, Reachable, ""},
		{bare, unix.ECONNREFUSED, Absent, ""},
		{bare, unix.ENOENT, Absent, ""},
		{locked, unix.EACCES, Denied, "landlock_fs"},
		{locked, unix.EPERM, Denied, "lsm"},
		{fencedIn, unix.EPERM, Denied, "seccomp_errno"},
	}, func(r judged) (Outcome, string) { return judgeUnix(r.f, r.e, false, true) })
	check(t, []judged{{locked, unix.EPERM, Denied, "landlock_scope"}, {filtered, unix.EPERM, Denied, "seccomp_errno"}}, func(r judged) (Outcome, string) { return judgeUnix(r.f, r.e, true, true) })
}

func TestJudgeProcess(t *testing.T) {
	check(t, []judged{
		{bare, 0, Reachable, ""},
		{bare, unix.ESRCH, Absent, "pidns"},
		{bare, unix.ENOENT, Absent, "pidns"},
		{locked, unix.EPERM, Denied, "landlock_scope"},
		{filtered, unix.EACCES, Denied, "unknown"},
		{bare, unix.EPERM, Denied, "lsm"},
		{filtered, unix.ENOSYS, Denied, "seccomp_errno"},
		{bare, unix.EINVAL, Error, ""},
	}, func(r judged) (Outcome, string) { return judgeProcess(r.f, r.e, true) })
	// Landlock has no say in prlimit: with both on, it was the filter.
	check(t, []judged{{fencedIn, unix.EPERM, Denied, "seccomp_errno"}, {locked, unix.EPERM, Denied, "lsm"}}, func(r judged) (Outcome, string) { return judgeProcess(r.f, r.e, false) })
}

func TestJudgeCall(t *testing.T) {
	check(t, []judged{
		{bare, 0, Reachable, ""},
		{bare, unix.EFAULT, Reachable, ""},
		{bare, unix.EINVAL, Reachable, ""},
		{bare, unix.EBADF, Reachable, ""},
		{filtered, unix.EPERM, Denied, "seccomp_errno"},
		{bare, unix.EPERM, Denied, "lsm"},
		{locked, unix.EACCES, Denied, "landlock_scope"},
		{filtered, unix.ENOSYS, Denied, "seccomp_errno"},
		{bare, unix.ENOSYS, Absent, ""},
	}, func(r judged) (Outcome, string) { return judgeCall(r.f, r.e, false) })
	check(t, []judged{
		{bare, unix.EPERM, Denied, "nnp_caps"},
		{filtered, unix.EPERM, Denied, "unknown"}, // the filter, or the want of a capability
		{facts{Caps: true}, unix.EPERM, Denied, "lsm"},
	}, func(r judged) (Outcome, string) { return judgeCall(r.f, r.e, true) })
}

func TestJudgeNamespace(t *testing.T) {
	check(t, []judged{
		{bare, 0, Reachable, ""},
		{bare, unix.ENOSPC, Denied, "userns_limit"},
		{bare, unix.EPERM, Denied, "sysctl"},
		{filtered, unix.EPERM, Denied, "seccomp_errno"},
		{bare, unix.EINVAL, Absent, ""}, // a kernel without
		{bare, unix.ENOMEM, Error, ""},
	}, func(r judged) (Outcome, string) { return judgeNamespace(r.f, r.e) })
}

func TestErrnoOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{unix.EACCES, unix.EACCES},
		{&os.PathError{Op: "open", Path: "/x", Err: unix.EROFS}, unix.EROFS},
		{fmt.Errorf("twice: %w", &os.SyscallError{Syscall: "x", Err: unix.EPERM}), unix.EPERM},
		{fmt.Errorf("none"), unix.EIO},
	} {
		if got := errnoOf(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}

func TestFactsOf(t *testing.T) {
	f := factsOf(Controls{Seccomp: SeccompState{Mode: 2}, Landlock: LandlockState{Layers: -1}, CapEff: "0000000000000000"})
	if !f.Filter || f.Layers != -1 || f.Caps {
		t.Errorf("%+v", f)
	}
	if !factsOf(Controls{CapEff: "0000000000000400"}).Caps {
		t.Error("a capability was overlooked")
	}
}
