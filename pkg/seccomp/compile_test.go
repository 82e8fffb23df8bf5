//go:build cgo

package seccomp

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fence/pkg/internal/sandboxtest"

	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// The programs in the binary are what Compile makes of today's table.
func TestEmbedded(t *testing.T) {
	for _, arch := range arches {
		for _, spec := range standardSpecs(arch) {
			want, err := Compile(spec)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(filepath.Join("filters", standardName(spec)), want, 0o666); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if got, err := Program(spec); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s is not what Compile makes (%v): go generate ./pkg/seccomp", standardName(spec), err)
			}
		}
	}
}

// Opening one call by name changes the program for that one and no other.
func TestCompile_AllowOnlyAdds(t *testing.T) {
	for _, arch := range arches {
		base := Spec{Arch: arch, DenyKillAll: true, DenySysV: true}
		without := program(t, base)
		rules, err := Rules(base)
		if err != nil {
			t.Fatal(err)
		}
		for _, open := range rules {
			if open.Verdict == Allow && len(open.Branches) == 0 || slices.Contains(governedByNet, open.Name) {
				continue
			}
			s := base
			s.Allow = []string{open.Name}
			with := program(t, s)
			for _, r := range rules {
				for _, args := range samples(r.Tree, [6]uint64{}) {
					want := without.ask(without.arch, uint32(r.Nr), args[:]...)
					if r.Name == open.Name {
						want = Allow
					}
					if got := with.ask(with.arch, uint32(r.Nr), args[:]...); got != want {
						t.Errorf("%s opened: %s%#x is %v instead of %v", open.Name, r.Name, args, got, want)
					}
				}
			}
		}
	}
}

// libseccomp knows the same numbers by the same names, where it knows them.
func TestNumbers_AgreeWithLibseccomp(t *testing.T) {
	for arch, theirs := range map[string]libseccomp.ScmpArch{"amd64": libseccomp.ArchAMD64, "arm64": libseccomp.ArchARM64} {
		checked := 0
		for _, name := range Names() {
			ours, ok := number(arch, name)
			nr, err := libseccomp.GetSyscallFromNameByArch(name, theirs)
			if err != nil || nr < 0 {
				continue // newer than the library, or not of this architecture
			}
			checked++
			if !ok || uint32(nr) != ours {
				t.Errorf("%s %s: %d, for libseccomp %d", arch, name, int32(ours), nr)
			}
		}
		if checked < 250 {
			t.Errorf("%s: libseccomp knows only %d names", arch, checked)
		}
	}
}

// verify notices a program that says something else than the rules.
func TestVerify_NoticesAnyOtherAnswer(t *testing.T) {
	for _, s := range []Spec{{Arch: "amd64"}, {Arch: "arm64"}, {Arch: "amd64", Net: NetHost, DenyKillAll: true}, {Arch: "amd64", Net: NetLoopback}} {
		rules, err := Rules(s)
		if err != nil {
			t.Fatal(err)
		}
		prog, err := Program(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := verify(prog, rules, auditArch[s.Arch]); err != nil {
			t.Fatal(err)
		}
		// Change each verdict of each rule in turn.
		for i, r := range rules {
			if s.Net != NetNone && len(r.Branches) == 0 && r.Verdict != Ask {
				continue // seen with NetNone; verify takes longer here
			}
			for _, tree := range breakTree(r.Tree) {
				broken := slices.Clone(rules)
				broken[i].Tree = tree
				if verify(prog, broken, auditArch[s.Arch]) == nil {
					t.Errorf("%s: %v instead of %v is not noticed", r.Name, r.Tree, tree)
				}
			}
			without := slices.Delete(slices.Clone(rules), i, i+1)
			if r.Verdict != unlisted && verify(prog, without, auditArch[s.Arch]) == nil {
				t.Errorf("%s without a rule is not noticed", r.Name)
			}
		}
		// Change each instruction in turn. Some say the same after that: where
		// numbers are skipped, and where two ways lead to one answer.
		if s.Net != NetNone {
			continue
		}
		noticed := 0
		for pc := 0; pc < len(prog); pc += insnSize {
			broken := bytes.Clone(prog)
			broken[pc+4] ^= 1
			if verify(broken, rules, auditArch[s.Arch]) != nil {
				noticed++
			} else if err := newMachine(t, s, broken).disagree(rules, 300); err != nil {
				t.Errorf("instruction %d changed is not noticed, but: %v", pc/insnSize, err)
			}
		}
		if total := len(prog) / insnSize; noticed < total*95/100 {
			t.Errorf("only %d of %d changed instructions are noticed", noticed, total)
		}
	}
}

// breakTree returns trees that each have another verdict than t in one place.
func breakTree(t Tree) []Tree {
	other := t
	other.Verdict = Allow
	if t.Verdict == Allow {
		other.Verdict = Fail(unix.EPERM)
	}
	out := []Tree{other}
	for i, b := range t.Branches {
		for _, tree := range breakTree(b.Tree) {
			changed := t
			changed.Branches = slices.Clone(t.Branches)
			changed.Branches[i].Tree = tree
			out = append(out, changed)
		}
	}
	return out
}

// What Allow opens reaches the kernel again, the rest does not.
func TestLoad_AllowOpens(t *testing.T) {
	open := map[string]bool{"ptrace": true, "unshare": true, "prlimit64": true}
	sandboxtest.Run(t, func(t *testing.T) {
		enforce(t, Spec{Allow: []string{"ptrace", "unshare", "prlimit64"}, DenyKillAll: true, DenySysV: true})
		for _, a := range attempts() {
			if got := a.try(); (got == a.fenced) == open[a.call] {
				t.Errorf("%v: %v", a, got)
			}
		}
	})
}

// Whatever a policy asks for, Compile does not panic, what it makes says what
// the rules say, nothing that was allowed before is refused, and without a
// network no socket but AF_UNIX and netlink is let through.
func FuzzCompile(f *testing.F) {
	f.Add("amd64", 0, false, false, "", uint16(41), uint64(2), uint64(1), uint64(0))
	f.Add("arm64", 1, true, true, "ptrace,clone3", uint16(198), uint64(high|2), uint64(3), uint64(262))
	f.Add("amd64", 0, true, false, "io_uring_setup,kill", uint16(62), uint64(neg1), uint64(9), uint64(0))
	f.Add("", 7, false, false, "nothing", uint16(0), uint64(0), uint64(0), uint64(0))
	f.Add("amd64", 0, false, false, "socket", uint16(41), uint64(2), uint64(1), uint64(0))
	f.Fuzz(func(t *testing.T, arch string, net int, killAll, sysV bool, allow string, nr uint16, a0, a1, a2 uint64) {
		s := Spec{Arch: arch, Net: Net(net), DenyKillAll: killAll, DenySysV: sysV}
		base, baseErr := Rules(s)
		if allow != "" {
			s.Allow = strings.Split(allow, ",")
		}
		prog, err := Compile(s)
		rules, rulesErr := Rules(s)
		if (err == nil) != (rulesErr == nil) || (err == nil) != (prog != nil) {
			t.Fatalf("Compile: %d bytes, %v; Rules: %v", len(prog), err, rulesErr)
		}
		if err != nil {
			return
		}
		if baseErr != nil {
			t.Fatalf("allowing %q makes a spec good: %v", allow, baseErr)
		}
		m := newMachine(t, s, prog)
		args := [6]uint64{a0, a1, a2, a0, a1, a2}
		decide := func(rules []Rule) Verdict {
			if i := slices.IndexFunc(rules, func(r Rule) bool { return r.Nr == int(nr) }); i >= 0 {
				return rules[i].Decide(args)
			}
			return unlisted
		}
		got := m.ask(m.arch, uint32(nr), args[:]...)
		if want := decide(rules); got != want {
			t.Fatalf("call %d%#x: %v instead of %v", nr, args, got, want)
		}
		if decide(base) == Allow && got != Allow {
			t.Fatalf("call %d%#x is allowed, but not with %q", nr, args, allow)
		}
		for _, domain := range []uint64{a0, a1, a2, unix.AF_INET, unix.AF_VSOCK, high | unix.AF_INET6} {
			got := m.call(t, s, "socket", domain, a1, a2)
			if d := uint32(domain); s.Net == NetNone && got == Allow && d != unix.AF_UNIX && d != unix.AF_NETLINK {
				t.Fatalf("socket domain %#x: %v", domain, got)
			}
		}
	})
}
