package inject

import "golang.org/x/sys/unix"

// setNr changes which call begins; -1 is none.
func setNr(tid int, nr int64) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	regs.Orig_rax = uint64(nr)
	return unix.PtraceSetRegs(tid, &regs)
}

// setRet changes what a call returned.
func setRet(tid int, ret int64) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	regs.Rax = uint64(ret)
	return unix.PtraceSetRegs(tid, &regs)
}

// frame is where a thread is, and its innermost frame.
func frame(tid int) (pc, fp uint64, err error) {
	var regs unix.PtraceRegs
	err = unix.PtraceGetRegs(tid, &regs)
	return regs.Rip, regs.Rbp, err
}
