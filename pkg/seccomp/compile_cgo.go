//go:build cgo

package seccomp

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime"

	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// Compile makes the program of a spec: struct sock_filter[] as seccomp(2)
// takes it, for any architecture that Rules knows, whichever this one is.
//
// libseccomp orders the program; what it made is not believed but run through
// verify, and a program that says anything else than the rules is an error.
func Compile(s Spec) ([]byte, error) {
	rules, err := Rules(s)
	if err != nil {
		return nil, err
	}
	prog, err := compile(rules, auditArch[s.Arch])
	if err != nil {
		return nil, fmt.Errorf("seccomp: compiling the filter: %w", err)
	}
	if err := verify(prog, rules, auditArch[s.Arch]); err != nil {
		return nil, fmt.Errorf("seccomp: BUG: libseccomp made a filter that differs from its rules: %w", err)
	}
	return prog, nil
}

func compile(rules []Rule, arch uint32) ([]byte, error) {
	filter, err := libseccomp.NewFilter(action(unlisted))
	if err != nil {
		return nil, err
	}
	defer filter.Release()
	if err := filter.SetBadArchAction(action(unlisted)); err != nil {
		return nil, err
	}
	// A binary tree instead of a chain. Libraries before 2.5 have none; their
	// program is right too, only slow.
	_ = filter.SetOptimize(2)
	for _, r := range rules {
		if err := addTree(filter, libseccomp.ScmpSyscall(r.Nr), r.Tree, nil); err != nil {
			return nil, fmt.Errorf("rule for %s: %w", r.Name, err)
		}
	}
	prog, err := export(filter)
	if err != nil {
		return nil, err
	}
	return prog, retarget(prog, arch)
}

// addTree adds a rule for each leaf of the tree, and one for the values that
// no branch has. That last one is written "argument >= 0", always true: for
// libseccomp the only form that neither swallows the branches' rules (as no
// condition and an empty mask do) nor goes before them.
func addTree(filter *libseccomp.ScmpFilter, nr libseccomp.ScmpSyscall, t Tree, conds []libseccomp.ScmpCondition) error {
	conds = conds[:len(conds):len(conds)] // appending copies: siblings share the prefix
	for _, b := range t.Branches {
		is := libseccomp.ScmpCondition{Argument: uint(t.Arg), Op: libseccomp.CompareMaskedEqual,
			Operand1: uint64(t.Mask), Operand2: uint64(b.Value)}
		if err := addTree(filter, nr, b.Tree, append(conds, is)); err != nil {
			return err
		}
	}
	if len(t.Branches) > 0 {
		conds = append(conds, libseccomp.ScmpCondition{Argument: uint(t.Arg), Op: libseccomp.CompareGreaterEqual})
	} else if len(conds) == 0 && t.Verdict == unlisted {
		return nil // the filter's default; libseccomp refuses a rule that says so again
	}
	return filter.AddRuleConditionalExact(nr, action(t.Verdict), conds)
}

func action(v Verdict) libseccomp.ScmpAction {
	switch v {
	case Allow:
		return libseccomp.ActAllow
	case Ask:
		return libseccomp.ActNotify
	}
	return libseccomp.ActErrno.SetReturnCode(int16(v & unix.SECCOMP_RET_DATA))
}

// export takes the program out through a file in memory: libseccomp before 2.6
// cannot do it otherwise.
func export(filter *libseccomp.ScmpFilter) ([]byte, error) {
	fd, err := unix.MemfdCreate("seccomp", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "memfd:seccomp")
	defer file.Close()
	if err := filter.ExportBPF(file); err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

// retarget makes a program for this machine's architecture one for arch, by
// changing the one instruction that compares the architecture. All else is the
// rules' numbers, which were arch's from the start, and the place of arguments,
// which is the same on all 64-bit little-endian machines. libseccomp's own way
// translates numbers by name, so it cannot do calls whose names it lacks.
func retarget(prog []byte, arch uint32) error {
	native, found := auditArch[runtime.GOARCH], 0
	for i := 0; i+insnSize <= len(prog); i += insnSize {
		code, k := binary.NativeEndian.Uint16(prog[i:]), prog[i+4:i+8]
		if code == opJeq && binary.NativeEndian.Uint32(k) == native {
			binary.NativeEndian.PutUint32(k, arch)
			found++
		}
	}
	if found != 1 {
		return fmt.Errorf("%d comparisons of the architecture instead of 1", found)
	}
	return nil
}
