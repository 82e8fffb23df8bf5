package seccomp

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// machine runs programs in the interpreter of golang.org/x/net/bpf, which
// shares nothing with verify's and nothing with libseccomp.
type machine struct {
	vm   *bpf.VM
	raw  []bpf.RawInstruction
	arch uint32
}

func newMachine(t testing.TB, s Spec, prog []byte) machine {
	t.Helper()
	var raw []bpf.RawInstruction
	for p := prog; len(p) > 0; p = p[insnSize:] {
		raw = append(raw, bpf.RawInstruction{Op: binary.NativeEndian.Uint16(p), Jt: p[2], Jf: p[3], K: binary.NativeEndian.Uint32(p[4:])})
	}
	insns, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the program has instructions that the interpreter does not know")
	}
	vm, err := bpf.NewVM(insns)
	if err != nil {
		t.Fatal(err)
	}
	return machine{vm, raw, auditArch[s.Arch]}
}

// program is a spec's machine for the program that fence would load.
func program(t testing.TB, s Spec) machine {
	t.Helper()
	prog, err := Program(s)
	if err != nil {
		t.Fatal(err)
	}
	return newMachine(t, s, prog)
}

// ask is the program's answer. struct seccomp_data is laid out for a machine
// that loads words big-endian, as the interpreter does: each 32-bit half is
// where a little-endian kernel has it, and big-endian in itself.
func (m machine) ask(arch, nr uint32, args ...uint64) Verdict {
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[0:], nr)
	binary.BigEndian.PutUint32(data[4:], arch)
	for i, arg := range args {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(arg))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(arg>>32))
	}
	v, err := m.vm.Run(data)
	if err != nil {
		panic(err)
	}
	return Verdict(uint32(v))
}

// call is the answer to a call by name, on the program's own architecture.
func (m machine) call(t testing.TB, s Spec, name string, args ...uint64) Verdict {
	t.Helper()
	nr, ok := number(s.Arch, name)
	if !ok {
		t.Fatalf("%s has no %s", s.Arch, name)
	}
	return m.ask(m.arch, nr, args...)
}

func number(arch, name string) (uint32, bool) {
	i, ok := slices.BinarySearch(Names(), name)
	if !ok {
		return 0, false
	}
	nr := numbers[i].amd64
	if arch == "arm64" {
		nr = numbers[i].arm64
	}
	return uint32(nr), nr >= 0
}

// path is how the program comes to its answer: the number of instructions it
// runs, and whether it looked at more than the call's number and architecture.
// This is the kernel's seccomp_is_const_allow: where looked is false and the
// answer is Allow, kernels from 5.11 on never run the program for that call.
func (m machine) path(arch, nr uint32, args ...uint64) (steps int, looked bool) {
	var a uint32
	for pc := 0; ; pc++ {
		in := m.raw[pc]
		steps++
		jump := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Op {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			switch {
			case in.K == 0:
				a = nr
			case in.K == 4:
				a = arch
			case in.K >= 16:
				looked = true
				if i := int(in.K-16) / 8; i < len(args) {
					a = uint32(args[i] >> (in.K % 8 * 8))
				} else {
					a = 0
				}
			default:
				panic(fmt.Sprintf("loads from %d", in.K))
			}
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(a == in.K)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			jump(a > in.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(a >= in.K)
		case unix.BPF_RET | unix.BPF_K:
			return steps, looked
		default:
			panic(fmt.Sprintf("%+v", in))
		}
	}
}
