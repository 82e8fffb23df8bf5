package sandbox

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// capNames are in the order of linux/capability.h.
var capNames = strings.Fields(`chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap
	linux_immutable net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio
	sys_chroot sys_ptrace sys_pacct sys_admin sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease
	audit_write audit_control setfcap mac_override mac_admin syslog wake_alarm block_suspend audit_read perfmon
	bpf checkpoint_restore`)

// capabilitySet is the bit mask of names such as "CAP_CHOWN".
func capabilitySet(names []string) (uint64, error) {
	var set uint64
next:
	for _, name := range names {
		for i, c := range capNames {
			if "cap_"+c == strings.ToLower(name) {
				set |= 1 << i
				continue next
			}
		}
		return 0, fmt.Errorf("unknown capability %q", name)
	}
	return set, nil
}

// secureBits: user 0 gains nothing by exec, ids change no capabilities, no
// ambient ones may be raised later; each locked. See capabilities(7). Whether
// capabilities outlive a change of ids stays open to programs that ask for it
// (setpriv): there are none.
const secureBits = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<6 | 1<<7

// dropCapabilities leaves keep and nothing else, in every set that exec can
// draw from. The bounding set can only be cut by a process that has
// CAP_SETPCAP; without it no_new_privs and the filter, which refuses new user
// namespaces, keep it out of reach. cut says that it was cut.
func dropCapabilities(keep uint64) (cut bool, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return false, os.NewSyscallError("capget", err)
	}
	permitted := uint64(have[0].Permitted) | uint64(have[1].Permitted)<<32
	if keep&^permitted != 0 {
		return false, fmt.Errorf("the policy keeps capabilities that this process does not have (has %#x, asked for %#x)", permitted, keep)
	}
	setpcap := uint64(have[0].Effective)&(1<<unix.CAP_SETPCAP) != 0
	for c := 0; setpcap && c < 64; c++ {
		if keep&(1<<c) != 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if err == unix.EINVAL && c > unix.CAP_CHECKPOINT_RESTORE {
			break // past the last one that this kernel knows; any with Landlock knows this one
		}
		if err != nil {
			return false, fmt.Errorf("prctl(PR_CAPBSET_DROP, %d): %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return false, os.NewSyscallError("prctl(PR_CAP_AMBIENT_CLEAR_ALL)", err)
	}
	// While CAP_SETPCAP is still there; ambient ones are raised before the
	// bit that forbids it.
	set := [2]unix.CapUserData{}
	for i := range set {
		part := uint32(keep >> (32 * i))
		set[i] = unix.CapUserData{Effective: have[i].Effective, Permitted: have[i].Permitted, Inheritable: part}
	}
	if err := unix.Capset(&header, &set[0]); err != nil {
		return false, os.NewSyscallError("capset", err)
	}
	for c := range capNames {
		if keep&(1<<c) != 0 {
			if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
				return false, fmt.Errorf("keeping %s: %w", capNames[c], err)
			}
		}
	}
	if setpcap {
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, secureBits, 0, 0, 0); err != nil {
			return false, os.NewSyscallError("prctl(PR_SET_SECUREBITS)", err)
		}
	}
	for i := range set {
		part := uint32(keep >> (32 * i))
		set[i] = unix.CapUserData{Effective: part, Permitted: part, Inheritable: part}
	}
	if err := unix.Capset(&header, &set[0]); err != nil {
		return false, os.NewSyscallError("capset", err)
	}
	return setpcap, nil
}
