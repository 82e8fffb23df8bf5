package seccomp

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"fence/pkg/internal/sandboxtest"

	"golang.org/x/sys/unix"
)

// enforce applies a spec's filter to the calling thread, as fence does.
func enforce(t *testing.T, s Spec) {
	t.Helper()
	runtime.LockOSThread()
	s.Arch = runtime.GOARCH
	prog, err := Program(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := Load(prog); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil || !strings.Contains(string(status), "\nSeccomp:\t2\n") {
		t.Fatalf("the kernel knows of no filter: %v\n%s", err, status)
	}
}

// An attempt is a call that reaches the kernel and fails there, or does no
// harm. Without a filter it must end otherwise than with one.
type attempt struct {
	call   string
	args   []uint64
	fenced unix.Errno
	// weak attempts may end the same without a filter: where a sysctl, a
	// capability or an older kernel says no as well. They then prove nothing
	// and are only reported.
	weak bool
}

const (
	bad    = 1          // an address that is nobody's: EFAULT
	noFD   = neg1       // EBADF
	nobody = 0x7ffffffe // a pid that cannot be: ESRCH
)

func attempts() []attempt {
	list := []attempt{
		{call: "socket", args: []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, fenced: none},
		{call: "socket", args: []uint64{unix.AF_INET, unix.SOCK_DGRAM, 0}, fenced: none},
		{call: "socket", args: []uint64{unix.AF_INET6, unix.SOCK_STREAM, 0}, fenced: none, weak: true},
		{call: "socket", args: []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, fenced: none},
		{call: "socket", args: []uint64{high | unix.AF_INET, unix.SOCK_STREAM, 0}, fenced: none},
		{call: "socket", args: []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_INET_DIAG}, fenced: proto, weak: true},
		{call: "socket", args: []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC}, fenced: proto},
		{call: "socket", args: []uint64{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, fenced: none, weak: true},
		{call: "socket", args: []uint64{unix.AF_ALG, unix.SOCK_SEQPACKET, 0}, fenced: none, weak: true},
		{call: "socketpair", args: []uint64{unix.AF_INET, unix.SOCK_STREAM, 0, bad}, fenced: none},

		// Flags that contradict each other, so that no process is made.
		{call: "clone", args: []uint64{unix.CLONE_NEWUSER | unix.CLONE_THREAD}, fenced: perm},
		{call: "clone", args: []uint64{high | unix.CLONE_NEWUSER | unix.CLONE_FS}, fenced: perm},
		{call: "clone", args: []uint64{unix.CLONE_NEWNS | unix.CLONE_FS}, fenced: perm},
		{call: "clone3", args: []uint64{0, 0}, fenced: unix.ENOSYS},
		{call: "unshare", args: []uint64{unix.CLONE_NEWUSER | 1}, fenced: perm},
		{call: "setns", args: []uint64{noFD, 0}, fenced: perm},
		{call: "mount", args: []uint64{bad, bad, bad}, fenced: perm},
		{call: "umount2", args: []uint64{bad, 0}, fenced: perm},
		{call: "chroot", args: []uint64{bad}, fenced: perm},
		{call: "open_tree", args: []uint64{noFD, bad, 0}, fenced: perm},
		{call: "open_tree_attr", args: []uint64{noFD, bad, neg1, bad, 8}, fenced: perm, weak: true},
		{call: "mount_setattr", args: []uint64{noFD, bad, neg1, bad, 8}, fenced: perm, weak: true},

		{call: "ptrace", args: []uint64{unix.PTRACE_PEEKDATA, nobody}, fenced: perm},
		{call: "process_vm_readv", args: []uint64{nobody, 0, 0, 0, 0, 1}, fenced: perm},
		{call: "process_vm_writev", args: []uint64{nobody, 0, 0, 0, 0, 1}, fenced: perm},
		{call: "pidfd_getfd", args: []uint64{noFD, 0, 0}, fenced: perm},
		{call: "kcmp", args: []uint64{nobody, nobody, 0}, fenced: perm, weak: true},
		{call: "process_madvise", args: []uint64{noFD, 0, 0, 0, 1}, fenced: perm, weak: true},
		{call: "move_pages", args: []uint64{nobody, 0, 0, 0, 0, neg1}, fenced: perm, weak: true},

		{call: "io_uring_setup", args: []uint64{0, bad}, fenced: perm, weak: true},
		{call: "userfaultfd", args: []uint64{1 | 1<<20}, fenced: perm, weak: true},
		{call: "keyctl", args: []uint64{99999}, fenced: perm, weak: true},
		{call: "add_key", args: []uint64{bad, bad, bad, 1, 0}, fenced: perm, weak: true},
		{call: "request_key", args: []uint64{bad, bad, bad, 0}, fenced: perm, weak: true},
		{call: "name_to_handle_at", args: []uint64{noFD, bad, bad, bad, 0}, fenced: perm},
		{call: "perf_event_open", args: []uint64{bad, 0, neg1, noFD, 0}, fenced: unix.EACCES, weak: true},
		{call: "fanotify_init", args: []uint64{0x200, neg1}, fenced: perm, weak: true},
		{call: "file_setattr", args: []uint64{noFD, bad, bad, 24, 0}, fenced: unix.ENOSYS, weak: true},

		{call: "ioctl", args: []uint64{noFD, unix.TIOCSTI, bad}, fenced: perm},
		{call: "ioctl", args: []uint64{noFD, 0x123<<32 | unix.TIOCSTI, bad}, fenced: perm},
		{call: "ioctl", args: []uint64{noFD, 0x541c, bad}, fenced: perm},
		{call: "ioctl", args: []uint64{noFD, unix.TIOCCONS, bad}, fenced: perm},
		{call: "prctl", args: []uint64{unix.PR_SET_PTRACER, nobody}, fenced: perm},
		{call: "prctl", args: []uint64{high | unix.PR_SET_PTRACER, nobody}, fenced: perm},
		{call: "prctl", args: []uint64{unix.PR_SET_MM, 0, 0, 0, 1}, fenced: perm},
		{call: "personality", args: []uint64{0x0400000}, fenced: perm},

		{call: "prlimit64", args: []uint64{nobody, 0, 0, 0}, fenced: perm},
		{call: "sched_setscheduler", args: []uint64{nobody, 0, bad}, fenced: perm},
		{call: "sched_setparam", args: []uint64{nobody, bad}, fenced: perm},
		{call: "sched_setattr", args: []uint64{nobody, bad, 0}, fenced: perm},
		{call: "setpriority", args: []uint64{unix.PRIO_PROCESS, nobody, 0}, fenced: perm},
		{call: "setpriority", args: []uint64{unix.PRIO_USER, nobody, 0}, fenced: perm},
		{call: "ioprio_set", args: []uint64{1, nobody, 0x4007}, fenced: perm},
		{call: "ioprio_set", args: []uint64{3, nobody, 0x4007}, fenced: perm},

		// With signal 0, which only asks.
		{call: "kill", args: []uint64{neg1, 0}, fenced: perm, weak: true},
		{call: "kill", args: []uint64{minus, 0}, fenced: perm, weak: true},
		{call: "shmget", args: []uint64{0, 0, 0}, fenced: perm},
		{call: "msgget", args: []uint64{0x7e57, 0}, fenced: perm},
		{call: "semget", args: []uint64{0x7e57, neg1, 0}, fenced: perm},
		{call: "shmat", args: []uint64{neg1, 0, 0}, fenced: perm},
		{call: "mq_open", args: []uint64{bad, 0, 0, 0}, fenced: perm},
	}
	if runtime.GOARCH == "amd64" {
		list = append(list, attempt{call: "modify_ldt", args: []uint64{99}, fenced: perm})
	}
	return list
}

// rootAttempts reach the kernel only as root, without harm there.
func rootAttempts() []attempt {
	return []attempt{
		{call: "acct", args: []uint64{bad}, fenced: perm},
		{call: "sethostname", args: []uint64{bad, 1}, fenced: perm},
		{call: "setdomainname", args: []uint64{bad, 1}, fenced: perm},
		{call: "settimeofday", args: []uint64{bad, 0}, fenced: perm},
		{call: "clock_settime", args: []uint64{0, bad}, fenced: perm},
		{call: "syslog", args: []uint64{99, 0, 0}, fenced: perm},
		{call: "swapon", args: []uint64{bad, 0}, fenced: perm},
		{call: "swapoff", args: []uint64{bad}, fenced: perm},
		{call: "reboot", args: []uint64{0, 0, 0}, fenced: perm},
		{call: "pivot_root", args: []uint64{bad, bad}, fenced: perm},
		{call: "fsopen", args: []uint64{bad, 0}, fenced: perm},
		{call: "fsconfig", args: []uint64{noFD, 0, 0, 0, 0}, fenced: perm},
		{call: "fsmount", args: []uint64{noFD, 0, 0}, fenced: perm},
		{call: "fspick", args: []uint64{noFD, bad, 0}, fenced: perm},
		{call: "move_mount", args: []uint64{noFD, bad, noFD, bad, 0}, fenced: perm},
		{call: "open_by_handle_at", args: []uint64{noFD, bad, 0}, fenced: perm},
		{call: "bpf", args: []uint64{9999, bad, 8}, fenced: perm},
		{call: "init_module", args: []uint64{bad, 1, bad}, fenced: perm, weak: true},
		{call: "finit_module", args: []uint64{noFD, bad, 0}, fenced: perm, weak: true},
		{call: "delete_module", args: []uint64{bad, 0}, fenced: perm, weak: true},
		{call: "kexec_load", args: []uint64{0, neg1, bad, 0}, fenced: perm, weak: true},
		{call: "quotactl", args: []uint64{neg1, bad, 0, 0}, fenced: perm, weak: true},
		{call: "migrate_pages", args: []uint64{nobody, 0, 0, 0}, fenced: perm, weak: true},
	}
}

// try makes the call for real. What it opens it closes again.
func (a attempt) try() unix.Errno {
	nr, ok := number(runtime.GOARCH, a.call)
	if !ok {
		return unix.ENOSYS
	}
	var r [6]uintptr
	for i, arg := range a.args {
		r[i] = uintptr(arg)
	}
	result, _, errno := unix.RawSyscall6(uintptr(nr), r[0], r[1], r[2], r[3], r[4], r[5])
	if errno == 0 && a.call == "socket" {
		unix.Close(int(result))
	}
	if errno == 0 && a.call == "personality" {
		unix.RawSyscall(uintptr(nr), 0, 0, 0)
	}
	return errno
}

func (a attempt) String() string { return fmt.Sprintf("%s%#x", a.call, a.args) }

// Three arms: without a filter each attempt reaches the kernel, with it each
// gets the filter's own errno, and (TestLoad_OrdinaryWork) all else works.
func TestLoad_Refuses(t *testing.T) {
	for _, who := range []struct {
		name  string
		child sandboxtest.Child
		list  []attempt
	}{
		{"nobody", sandboxtest.Child{}, attempts()},
		{"root", sandboxtest.Child{Root: true}, rootAttempts()},
	} {
		t.Run(who.name+"/control", func(t *testing.T) {
			who.child.Run(t, func(t *testing.T) {
				if who.child.Root && os.Getuid() != 0 {
					sandboxtest.Skip(t, "not root")
				}
				for _, a := range who.list {
					switch got := a.try(); {
					case got != a.fenced:
					case a.weak:
						t.Logf("%v proves nothing here: %v without a filter", a, got)
					default:
						t.Errorf("%v: %v without a filter, as with it", a, got)
					}
				}
			})
		})
		t.Run(who.name+"/fenced", func(t *testing.T) {
			who.child.Run(t, func(t *testing.T) {
				enforce(t, Spec{DenyKillAll: true, DenySysV: true})
				for _, a := range who.list {
					if got := a.try(); got != a.fenced {
						t.Errorf("%v: %v instead of %v", a, got, a.fenced)
					}
				}
			})
		})
	}
}

// A call of another architecture, by the number that would be ours.
func TestLoad_X32(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("x32 is amd64's")
	}
	sandboxtest.Run(t, func(t *testing.T) {
		enforce(t, Spec{})
		if _, _, errno := unix.RawSyscall(1<<30|unix.SYS_GETPID, 0, 0, 0); errno != unix.ENOSYS {
			t.Errorf("getpid of x32: %v", errno)
		}
	})
}

// Loading nothing, rubbish, or without no_new_privs is an error and leaves no
// filter.
func TestLoad_Errors(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) {
		runtime.LockOSThread()
		good, err := Program(Spec{Arch: runtime.GOARCH})
		if err != nil {
			t.Fatal(err)
		}
		if err := Load(good); err == nil {
			t.Error("loaded without no_new_privs")
		}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
		for _, prog := range [][]byte{nil, {}, good[:len(good)-1], good[:len(good)-8], make([]byte, 8*4097), make([]byte, 8)} {
			if err := Load(prog); err == nil {
				t.Errorf("loaded %d bytes of rubbish", len(prog))
			}
		}
		if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0); err != nil {
			t.Errorf("a filter is there: %v", err)
		} else {
			unix.Close(fd)
		}
		if err := Load(good); err != nil {
			t.Error(err)
		}
	})
}

// Ordinary work, in a process that was executed under the filter, as a fenced
// command is, so that all of its threads have it.
func TestLoad_OrdinaryWork(t *testing.T) {
	if net := os.Getenv("SECCOMP_TEST_NET"); net != "" {
		mode, err := strconv.Atoi(net)
		if err != nil {
			t.Fatal(err)
		}
		ordinaryWork(t, Net(mode))
		return
	}
	for name, spec := range map[string]Spec{
		"none": {DenyKillAll: true, DenySysV: true},
		"host": {Net: NetHost},
	} {
		t.Run(name, func(t *testing.T) {
			sandboxtest.Run(t, func(t *testing.T) {
				enforce(t, spec)
				cmd := exec.Command("/proc/self/exe", "-test.run=^TestLoad_OrdinaryWork$", "-test.v")
				cmd.Env = append(os.Environ(), fmt.Sprintf("SECCOMP_TEST_NET=%d", spec.Net))
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), "--- PASS: TestLoad_OrdinaryWork") {
					t.Errorf("%v\n%s", err, out)
				}
			})
		})
	}
}

func ordinaryWork(t *testing.T, mode Net) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 32 { // threads
		wg.Go(func() {
			runtime.LockOSThread() // and not unlocked: the thread ends
			if _, err := unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0); err != unix.EAFNOSUPPORT {
				t.Errorf("a thread without the filter: %v", err)
			}
		})
	}
	wg.Wait()

	script := `set -e
		cd ` + dir + `
		seq 1000 | sort -r | tail -n 1
		( sleep 0.01; echo child ) & wait $!
		echo x >a; mv a b; ln -s b c; chmod 600 c; cat c; rm b c
		mkfifo f; ( echo fifo >f ) & cat f
		(ulimit -n 64; true); kill -0 $$; sleep 5 & kill $!`
	out, err := exec.Command("sh", "-c", script).CombinedOutput()
	if want := "1\nchild\nx\nfifo\n"; err != nil || string(out) != want {
		t.Errorf("sh: %v, %q instead of %q", err, out, want)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 1); err != nil {
		t.Errorf("being nice: %v", err)
	}
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		t.Errorf("affinity: %v", err)
	} else if err := unix.SchedSetaffinity(unix.Gettid(), &cpus); err != nil { // by thread id, as OpenMP does
		t.Errorf("affinity: %v", err)
	}

	if _, err := net.Interfaces(); err != nil { // netlink route
		t.Errorf("interfaces: %v", err)
	}
	echo(t, "unix", filepath.Join(dir, "s"))
	if pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0); err != nil {
		t.Errorf("socketpair: %v", err)
	} else if _, err := unix.Write(pair[0], []byte("x")); err != nil {
		t.Errorf("socketpair: %v", err)
	}
	if mode == NetNone {
		if _, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
			t.Error("a TCP listener without a network")
		}
		return
	}
	echo(t, "tcp", "127.0.0.1:0") // Go asks for MPTCP first
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("udp: %v", err)
	}
	if _, err := udp.WriteTo([]byte("x"), udp.LocalAddr()); err != nil {
		t.Errorf("udp: %v", err)
	}
	udp.Close()

	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	to := &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, to); err != unix.EOPNOTSUPP {
		t.Errorf("sendto with MSG_FASTOPEN: %v", err)
	}
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP); err != unix.EPROTONOSUPPORT {
		t.Errorf("MPTCP: %v", err)
	}
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP); err != unix.ESOCKTNOSUPPORT {
		t.Errorf("raw: %v", err)
	}
}

// echo sends a word to a listener of its own and back.
func echo(t *testing.T, network, address string) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Errorf("%s: %v", network, err)
		return
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := net.Dial(network, l.Addr().String())
	if err != nil {
		t.Errorf("%s: %v", network, err)
		return
	}
	defer c.Close()
	buf := make([]byte, 5)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Errorf("%s: %v", network, err)
	} else if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "hello" {
		t.Errorf("%s: %q, %v", network, buf, err)
	}
}
