package seccomp

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// The instructions that libseccomp uses.
const (
	opLoad = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opAnd  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opJump = unix.BPF_JMP | unix.BPF_JA
	opJeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opJgt  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	opJge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opRet  = unix.BPF_RET | unix.BPF_K
)

// verify holds a program against the rules it was made from: every number below
// 1024, with arguments that lead to every leaf of its tree; x32's numbers; and
// other architectures. (The tests look at the program from the other side too:
// that it makes no difference which the rules do not.)
func verify(prog []byte, rules []Rule, arch uint32) error {
	trees := map[uint32]Tree{}
	for nr := range uint32(1024) {
		trees[nr] = Tree{Verdict: unlisted}
	}
	for _, r := range rules {
		trees[uint32(r.Nr)] = r.Tree
	}
	check := func(nr, arch uint32, args [6]uint64, want Verdict) error {
		got, err := run(prog, nr, arch, args)
		if err == nil && got != want {
			err = fmt.Errorf("architecture %#x, call %d%#x: %v instead of %v", arch, nr, args, got, want)
		}
		return err
	}
	for nr, tree := range trees {
		for _, args := range samples(tree, [6]uint64{}) {
			if err := check(nr, arch, args, tree.Decide(args)); err != nil {
				return err
			}
		}
		const x32 = 0x40000000
		for _, other := range [][2]uint32{{nr | x32, arch}, {nr, unix.AUDIT_ARCH_I386}, {nr, arch ^ 1}} {
			if err := check(other[0], other[1], [6]uint64{}, unlisted); err != nil {
				return err
			}
		}
	}
	return nil
}

// samples returns arguments that lead to each leaf of the tree: for each
// argument tested, each branch's value and others near and far from it, with
// and without what the test does not look at. They differ from args only in
// what the tree tests.
func samples(t Tree, args [6]uint64) [][6]uint64 {
	if len(t.Branches) == 0 {
		return [][6]uint64{args}
	}
	var out [][6]uint64
	for _, b := range t.Branches {
		neighbour := b.Value ^ t.Mask&-t.Mask // differs in the lowest bit that counts
		for _, low := range []uint32{b.Value, b.Value | ^t.Mask, neighbour, ^b.Value, 0} {
			next := Tree{} // what decides then: a branch, or nothing more
			for _, b := range t.Branches {
				if low&t.Mask == b.Value {
					next = b.Tree
				}
			}
			for _, high := range []uint64{0, 1, 1<<32 - 1} {
				args[t.Arg] = high<<32 | uint64(low)
				out = append(out, samples(next, args)...)
			}
		}
	}
	return out
}

// run is what the kernel does with a program: its answer to one call.
func run(prog []byte, nr, arch uint32, args [6]uint64) (Verdict, error) {
	var data [64]byte // struct seccomp_data
	binary.NativeEndian.PutUint32(data[0:], nr)
	binary.NativeEndian.PutUint32(data[4:], arch)
	for i, arg := range args {
		binary.NativeEndian.PutUint64(data[16+8*i:], arg)
	}
	var a uint32
	for pc := 0; pc < len(prog)/insnSize; pc++ {
		insn := prog[pc*insnSize:]
		k := binary.NativeEndian.Uint32(insn[4:])
		var yes bool
		switch code := binary.NativeEndian.Uint16(insn); code {
		case opLoad:
			if k > uint32(len(data)-4) || k%4 != 0 {
				return 0, fmt.Errorf("instruction %d loads from %d", pc, k) // nor would the kernel
			}
			a = binary.NativeEndian.Uint32(data[k:])
			continue
		case opAnd:
			a &= k
			continue
		case opRet:
			return Verdict(k), nil
		case opJump:
			if k > uint32(len(prog)) {
				return 0, fmt.Errorf("instruction %d jumps out of the program", pc)
			}
			pc += int(k)
			continue
		case opJeq:
			yes = a == k
		case opJgt:
			yes = a > k
		case opJge:
			yes = a >= k
		default:
			return 0, fmt.Errorf("instruction %d is of an unknown kind, %#x", pc, code)
		}
		if yes {
			pc += int(insn[2])
		} else {
			pc += int(insn[3])
		}
	}
	return 0, fmt.Errorf("the program ends without an answer")
}
