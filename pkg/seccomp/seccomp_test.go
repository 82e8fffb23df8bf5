package seccomp

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	moby "github.com/moby/profiles/seccomp"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the golden files and the programs anew")

var arches = []string{"amd64", "arm64"}

// standardSpecs are the specs of one architecture whose programs are in the
// binary.
func standardSpecs(arch string) []Spec {
	var specs []Spec
	for _, net := range []Net{NetNone, NetHost, NetLoopback} {
		for _, killAll := range []bool{false, true} {
			for _, sysV := range []bool{false, true} {
				specs = append(specs, Spec{Arch: arch, Net: net, DenyKillAll: killAll, DenySysV: sysV})
			}
		}
	}
	return specs
}

func everySpec(t *testing.T, f func(t *testing.T, s Spec, m machine)) {
	for _, arch := range arches {
		for _, s := range standardSpecs(arch) {
			t.Run(strings.TrimSuffix(standardName(s), ".bpf"), func(t *testing.T) { f(t, s, program(t, s)) })
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	old := strings.Split(string(want), "\n")
	for _, line := range strings.Split(got, "\n") {
		if !slices.Contains(old, line) {
			t.Errorf("%s: now\n\t%s", file, line)
		}
	}
	t.Errorf("%s differs; if that is meant: go generate ./pkg/seccomp", file)
}

// What each system call number gets from each standard program, run in an
// interpreter. A new libseccomp, a new x/sys and a changed table show here.
func TestGolden_Verdicts(t *testing.T) {
	for _, arch := range arches {
		names := map[uint32]string{}
		for _, name := range Names() {
			if nr, ok := number(arch, name); ok {
				names[nr] = name
			}
		}
		specs := standardSpecs(arch)
		var machines []machine
		for _, s := range specs {
			machines = append(machines, program(t, s))
		}
		var b strings.Builder
		fmt.Fprintf(&b, "# %s: the verdicts by number in the filter \"none\", over telling arguments if they\n# matter, and in the others where those differ.\n", arch)
		for nr := range uint32(601) {
			line, first := fmt.Sprintf("%3d %-24s", nr, names[nr]), ""
			for i, s := range specs {
				got := machines[i].verdicts(table(s)[names[nr]], nr)
				switch {
				case first == "":
					first = got
					line += got
				case got != first:
					line += fmt.Sprintf("  %s: %s", strings.TrimSuffix(strings.TrimPrefix(standardName(s), arch+"-"), ".bpf"), got)
				}
			}
			fmt.Fprintln(&b, line)
		}
		golden(t, arch+".golden", b.String())
	}
}

// verdicts are all that the program says to a number.
func (m machine) verdicts(tree Tree, nr uint32) string {
	var all []string
	for _, args := range samples(tree, [6]uint64{}) {
		all = append(all, m.ask(m.arch, nr, args[:]...).String())
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "|")
}

// How the table differs from moby's default profile for a container without
// capabilities, which many programs are known to run under.
func TestGolden_Moby(t *testing.T) {
	var b strings.Builder
	b.WriteString("# call, moby's default profile (amd64, no capabilities), ours (none; host if it differs)\n")
	theirs := map[string]string{}
	for _, call := range moby.DefaultProfile().Syscalls {
		in, out := call.Includes, call.Excludes
		if in != nil && (len(in.Caps) > 0 || len(in.Arches) > 0 && !slices.Contains(in.Arches, "amd64")) ||
			out != nil && slices.Contains(out.Arches, "amd64") {
			continue
		}
		for _, name := range call.Names {
			switch {
			case len(call.Args) > 0:
				theirs[name] = "arguments"
			case call.ErrnoRet != nil:
				theirs[name] = Fail(unix.Errno(*call.ErrnoRet)).String()
			default:
				theirs[name] = "allow"
			}
		}
	}
	describe := func(t Tree) string {
		if len(t.Branches) > 0 {
			return "arguments"
		}
		return t.Verdict.String()
	}
	none, host := table(Spec{Net: NetNone}), table(Spec{Net: NetHost})
	for _, name := range Names() {
		if theirs[name] == "" {
			theirs[name] = "EPERM" // their default
		}
		ours := describe(none[name])
		if other := describe(host[name]); other != ours {
			ours += "; " + other
		}
		if ours != theirs[name] {
			fmt.Fprintf(&b, "%-24s %-10s %s\n", name, theirs[name], ours)
		}
	}
	golden(t, "moby.golden", b.String())
}

// Every call is in exactly one list, and every name in a list is a call.
func TestTable_DecidesEveryCall(t *testing.T) {
	in := map[string][]string{}
	add := func(list, names string) {
		for name := range strings.FieldsSeq(names) {
			in[name] = append(in[name], list)
		}
	}
	add("allowed", allowed)
	add("sysV", sysV)
	add("absent", absent)
	for errno, names := range refused {
		add("refused "+errno.Error(), names)
	}
	for name := range tested(Spec{Net: NetHost, DenyKillAll: true}) {
		add("tested", name)
	}
	for _, name := range Names() {
		if len(in[name]) != 1 {
			t.Errorf("%s is in %d lists: %v", name, len(in[name]), in[name])
		}
	}
	for name := range in {
		if !Known(name) {
			t.Errorf("%s is no system call", name)
		}
	}
	for _, name := range governedByNet {
		if _, ok := tested(Spec{})[name]; !ok {
			t.Errorf("governedByNet has %s, which is not tested", name)
		}
	}
}

// The branches of a test exclude each other and can be met, or a rule would be
// there for nothing.
func TestTable_TreesAreSound(t *testing.T) {
	var walk func(name string, tree Tree, seen []int)
	walk = func(name string, tree Tree, seen []int) {
		if tree.Verdict != Allow && tree.Verdict != Ask && tree.Verdict&^unix.SECCOMP_RET_DATA != unix.SECCOMP_RET_ERRNO {
			t.Errorf("%s: verdict %v", name, tree.Verdict)
		}
		if len(tree.Branches) == 0 {
			return
		}
		if slices.Contains(seen, tree.Arg) {
			t.Errorf("%s: argument %d is tested twice, which one libseccomp rule cannot", name, tree.Arg)
		}
		values := map[uint32]bool{}
		for _, b := range tree.Branches {
			if b.Value&^tree.Mask != 0 || values[b.Value] {
				t.Errorf("%s: the branch for %#x is never or twice taken", name, b.Value)
			}
			values[b.Value] = true
			walk(name, b.Tree, append(seen, tree.Arg))
		}
	}
	for _, s := range append(standardSpecs("amd64"), standardSpecs("arm64")...) {
		for name, tree := range table(s) {
			walk(name, tree, nil)
		}
	}
}

// numbers.go is what gen makes of the x/sys in go.mod.
func TestNumbersAreCurrent(t *testing.T) {
	want, err := exec.Command("go", "run", "./gen").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("numbers.go"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("numbers.go is out of date (%v): go generate ./pkg/seccomp", err)
	}
}

func TestRules_RefusesWhatItDoesNotKnow(t *testing.T) {
	for _, s := range []Spec{
		{},
		{Arch: "386"},
		{Arch: "x86_64"},
		{Arch: "amd64", Net: 3},
		{Arch: "amd64", Net: -1},
		{Arch: "amd64", Allow: []string{"ptrase"}},
		{Arch: "amd64", Allow: []string{""}},
		{Arch: "amd64", Allow: []string{"socket"}},
		{Arch: "arm64", Net: NetHost, Allow: []string{"sendto"}},
		{Arch: "amd64", Net: NetLoopback, Allow: []string{"connect"}},
		{Arch: "amd64", Net: NetLoopback, Allow: []string{"setsockopt"}},
	} {
		if rules, err := Rules(s); err == nil || rules != nil {
			t.Errorf("Rules(%+v) = %d rules, %v", s, len(rules), err)
		}
		if prog, err := Compile(s); err == nil || prog != nil {
			t.Errorf("Compile(%+v) = %d bytes, %v", s, len(prog), err)
		}
		if prog, err := Program(s); err == nil || prog != nil {
			t.Errorf("Program(%+v) = %d bytes, %v", s, len(prog), err)
		}
	}
}

// Opening one call changes that one and no other.
func TestRules_AllowOnlyAdds(t *testing.T) {
	for _, arch := range arches {
		for _, base := range []Spec{{Arch: arch}, {Arch: arch, Net: NetHost, DenyKillAll: true, DenySysV: true}} {
			before, err := Rules(base)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range Names() {
				if slices.Contains(governedByNet, name) {
					continue
				}
				s := base
				s.Allow = []string{name}
				after, err := Rules(s)
				if err != nil {
					t.Fatal(err)
				}
				for i, r := range after {
					if r.Name == name {
						if r.Verdict != Allow || len(r.Branches) > 0 {
							t.Errorf("%+v: %v", s, r)
						}
					} else if !reflect.DeepEqual(r, before[i]) {
						t.Errorf("%+v changes %v into %v", s, before[i], r)
					}
				}
			}
		}
	}
}

// Calls of other architectures fail, whatever their number.
func TestProgram_OtherArchitectures(t *testing.T) {
	everySpec(t, func(t *testing.T, s Spec, m machine) {
		for nr := range uint32(1100) {
			for _, arch := range []uint32{
				unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_AARCH64,
				unix.AUDIT_ARCH_RISCV64, unix.AUDIT_ARCH_S390X, 0, ^uint32(0),
			} {
				if got := m.ask(arch, nr); arch != m.arch && got != unlisted {
					t.Errorf("arch %#x call %d: %v", arch, nr, got)
				}
			}
			for _, bit := range []uint32{1 << 30, 1 << 31, 3 << 30, 1 << 16} { // 1<<30 is x32
				if got := m.ask(m.arch, nr|bit); got != unlisted {
					t.Errorf("call %d|%#x: %v", nr, bit, got)
				}
			}
			if got := m.ask(m.arch, nr); nr >= 600 && got != unlisted {
				t.Errorf("call %d: %v", nr, got)
			}
		}
		if got := m.ask(m.arch, ^uint32(0)); got != unlisted {
			t.Errorf("call -1: %v", got)
		}
	})
}

// A call that is always allowed is decided by its number alone, so kernels
// from 5.11 on answer it without the program; the others stay short.
func TestProgram_HotCallsLoadNoArgument(t *testing.T) {
	everySpec(t, func(t *testing.T, s Spec, m machine) {
		rules, err := Rules(s)
		if err != nil {
			t.Fatal(err)
		}
		most, name, plain, looks := 0, "", 0, 0
		for _, r := range rules {
			longest, loads := 0, false
			for _, args := range samples(r.Tree, [6]uint64{}) {
				steps, looked := m.path(m.arch, uint32(r.Nr), args[:]...)
				longest, loads = max(longest, steps), loads || looked
			}
			if loads != (len(r.Branches) > 0) {
				t.Errorf("%s: loads an argument: %v", r.Name, loads)
			}
			if loads {
				looks++
			} else {
				plain = max(plain, longest)
			}
			if longest > most {
				most, name = longest, r.Name
			}
		}
		if most > 64 || plain > 20 || len(m.raw) > 800 {
			t.Errorf("too long")
		}
		t.Logf("%d instructions; at most %d run for a call without tests, %d for one with (%s); %d calls have tests",
			len(m.raw), plain, most, name, looks)
	})
	// The calls that a program makes all the time.
	for _, arch := range arches {
		s := Spec{Arch: arch, DenyKillAll: true, DenySysV: true}
		m := program(t, s)
		for name := range strings.FieldsSeq(`read write openat close fstat newfstatat lseek mmap munmap mprotect
			futex epoll_pwait ppoll recvfrom sendto sendmsg recvmsg getpid gettid clock_gettime rt_sigprocmask
			execve wait4 exit_group getdents64 fcntl sched_yield madvise statx readlinkat pipe2 dup3`) {
			nr, _ := number(arch, name)
			if _, looked := m.path(m.arch, nr); looked || m.ask(m.arch, nr) != Allow {
				t.Errorf("%s: %s is not answered by its number", arch, name)
			}
		}
	}
}
