package inject

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setNr changes which call begins; -1 is none. It is a register set of its
// own on this architecture (NT_ARM_SYSTEM_CALL).
func setNr(tid int, nr int64) error {
	const systemCall = 0x404
	n := int32(nr)
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(&n))}
	iov.SetLen(4)
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(tid), systemCall, uintptr(unsafe.Pointer(&iov)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// setRet changes what a call returned.
func setRet(tid int, ret int64) error {
	const general = 1 // NT_PRSTATUS
	var regs unix.PtraceRegsArm64
	if err := unix.PtraceGetRegSetArm64(tid, general, &regs); err != nil {
		return err
	}
	regs.Regs[0] = uint64(ret)
	return unix.PtraceSetRegSetArm64(tid, general, &regs)
}

// frame is where a thread is, and its innermost frame.
func frame(tid int) (pc, fp uint64, err error) {
	const general = 1 // NT_PRSTATUS
	var regs unix.PtraceRegsArm64
	err = unix.PtraceGetRegSetArm64(tid, general, &regs)
	return regs.Pc, regs.Regs[29], err
}
