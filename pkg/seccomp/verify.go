//go:build cgo

package seccomp

import (
	"encoding/binary"
	"fmt"
	"slices"

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
// 1024, with rules and without, with arguments that lead to every leaf and with
// those that the program itself makes a difference of; x32's numbers; and other
// architectures.
func verify(prog []byte, rules []Rule, arch uint32) error {
	trees := map[uint32]Tree{}
	for nr := range uint32(1024) {
		trees[nr] = Tree{Verdict: unlisted}
	}
	for _, r := range rules {
		trees[uint32(r.Nr)] = r.Tree
	}
	constants := comparedWith(prog)
	check := func(nr, arch uint32, args [6]uint64, tree Tree) error {
		got, looked, err := run(prog, nr, arch, args)
		if want := tree.Decide(args); err == nil && got != want {
			err = fmt.Errorf("architecture %#x, call %d%#x: %v instead of %v", arch, nr, args, got, want)
		}
		if err == nil && looked && len(tree.Branches) == 0 {
			err = fmt.Errorf("architecture %#x, call %d: looks at arguments", arch, nr)
		}
		return err
	}
	for nr, tree := range trees {
		for _, args := range samples(tree, [6]uint64{}, constants) {
			if err := check(nr, arch, args, tree); err != nil {
				return err
			}
		}
		const x32 = 0x40000000
		for _, other := range [][2]uint32{{nr | x32, arch}, {nr, unix.AUDIT_ARCH_I386}, {nr, arch ^ 1}} {
			if err := check(other[0], other[1], [6]uint64{}, Tree{Verdict: unlisted}); err != nil {
				return err
			}
		}
	}
	return nil
}

// comparedWith are the values that a program compares (halves of) arguments
// with. Between two of them its answer does not change.
func comparedWith(prog []byte) []uint32 {
	var values []uint32
	n := len(prog) / insnSize
	holds := make([]bool, n+256+1) // whether the accumulator may hold an argument at an instruction
	for pc := range n {
		insn, argument := prog[pc*insnSize:], holds[pc]
		k := binary.NativeEndian.Uint32(insn[4:])
		switch binary.NativeEndian.Uint16(insn) {
		case opRet:
			continue
		case opJump:
			if to := uint64(pc) + 1 + uint64(k); to < uint64(n) {
				holds[to] = holds[to] || argument
			}
			continue
		case opLoad:
			argument = k >= 16
		case opJeq, opJgt, opJge:
			if argument && !slices.Contains(values, k) {
				values = append(values, k)
			}
		}
		for _, skip := range insn[2:4] { // both 0 for what does not jump
			to := pc + 1 + int(skip)
			holds[to] = holds[to] || argument
		}
	}
	return values
}

// samples returns arguments that lead to each leaf of the tree, and past it:
// for each argument tested, each branch's value, also with what the test does
// not look at, and the values given and their neighbours. They differ from
// args only in what the tree tests.
func samples(t Tree, args [6]uint64, values []uint32) [][6]uint64 {
	if len(t.Branches) == 0 {
		return [][6]uint64{args}
	}
	var out [][6]uint64
	try := func(value uint64, values []uint32) {
		next := Tree{} // what decides then: a branch, or nothing more
		for _, b := range t.Branches {
			if uint32(value)&t.Mask == b.Value {
				next = b.Tree
			}
		}
		args[t.Arg] = value
		out = append(out, samples(next, args, values)...)
	}
	for _, b := range t.Branches {
		try(uint64(b.Value), values)
		neighbour := b.Value ^ t.Mask&-t.Mask // differs in the lowest bit that counts
		for _, low := range []uint32{b.Value, b.Value | ^t.Mask, neighbour, ^b.Value} {
			for _, high := range []uint64{0, 1, 1<<32 - 1} {
				try(high<<32|uint64(low), nil)
			}
		}
	}
	for _, v := range values {
		for _, low := range []uint32{v - 1, v, v + 1} {
			try(uint64(low), nil)
		}
	}
	return out
}

// run is what the kernel does with a program: its answer to one call, and
// whether that took a look at the arguments. Kernels from 5.11 on do not even
// run a program for calls that it allows without such a look.
func run(prog []byte, nr, arch uint32, args [6]uint64) (v Verdict, looked bool, err error) {
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
				return 0, looked, fmt.Errorf("instruction %d loads from %d", pc, k) // nor would the kernel
			}
			looked = looked || k >= 16
			a = binary.NativeEndian.Uint32(data[k:])
			continue
		case opAnd:
			a &= k
			continue
		case opRet:
			return Verdict(k), looked, nil
		case opJump:
			if k > uint32(len(prog)) {
				return 0, looked, fmt.Errorf("instruction %d jumps out of the program", pc)
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
			return 0, looked, fmt.Errorf("instruction %d is of an unknown kind, %#x", pc, code)
		}
		if yes {
			pc += int(insn[2])
		} else {
			pc += int(insn[3])
		}
	}
	return 0, looked, fmt.Errorf("the program ends without an answer")
}
