package main

import (
	"encoding/binary"
	"fmt"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// Rights of Landlock by the ABI that brought them (uapi linux/landlock.h).
const (
	fsRefer       = 1 << 13 // 2
	fsTruncate    = 1 << 14 // 3
	fsIoctlDev    = 1 << 15 // 5
	fsResolveUnix = 1 << 16 // 9

	netBindTCP        = 1 << 0 // 4
	netConnectTCP     = 1 << 1 // 4
	netBindUDP        = 1 << 2 // 10
	netConnectSendUDP = 1 << 3 // 10

	scopeAbstractUnix = 1 << 0 // 6
	scopeSignal       = 1 << 1 // 6

	createVersion = 1 << 0
	createErrata  = 1 << 1

	addRuleQuiet = 1 << 0 // 10

	rulePathBeneath = 1
	ruleNetPort     = 2

	newestABI = 11
)

// rights are sets of each kind, as in struct landlock_ruleset_attr.
type rights struct{ fs, net, scoped uint64 }

func (r rights) without(o rights) rights {
	return rights{r.fs &^ o.fs, r.net &^ o.net, r.scoped &^ o.scoped}
}
func (r rights) and(o rights) rights { return rights{r.fs & o.fs, r.net & o.net, r.scoped & o.scoped} }
func (r rights) empty() bool         { return r == rights{} }

// rightsOf says what a kernel with this ABI knows.
func rightsOf(abi int) rights {
	var r rights
	for _, step := range []struct {
		abi int
		add rights
	}{
		{1, rights{fs: 1<<13 - 1}},
		{2, rights{fs: fsRefer}},
		{3, rights{fs: fsTruncate}},
		{4, rights{net: netBindTCP | netConnectTCP}},
		{5, rights{fs: fsIoctlDev}},
		{6, rights{scoped: scopeAbstractUnix | scopeSignal}},
		{9, rights{fs: fsResolveUnix}},
		{10, rights{net: netBindUDP | netConnectSendUDP}},
	} {
		if abi >= step.abi {
			r.fs, r.net, r.scoped = r.fs|step.add.fs, r.net|step.add.net, r.scoped|step.add.scoped
		}
	}
	return r
}

// attrSize is the size of struct landlock_ruleset_attr there.
func attrSize(abi int) int {
	switch {
	case abi >= 10:
		return 48 // quiet_access_fs, quiet_access_net, quiet_scoped
	case abi >= 6:
		return 24 // scoped
	case abi >= 4:
		return 16 // handled_access_net
	}
	return 8
}

// restrictFlags are those that landlock_restrict_self takes there.
func restrictFlags(abi int) uint64 {
	switch {
	case abi >= 11:
		return 1<<5 - 1 // no_new_privs
	case abi >= 8:
		return 1<<4 - 1 // tsync
	case abi >= 7:
		return 1<<3 - 1 // the three about the audit log
	}
	return 0
}

// lies are the names that --lie takes.
var lies = map[string]rights{
	"fs.refer":            {fs: fsRefer},
	"fs.truncate":         {fs: fsTruncate},
	"fs.ioctl_dev":        {fs: fsIoctlDev},
	"fs.resolve_unix":     {fs: fsResolveUnix},
	"net.bind_tcp":        {net: netBindTCP},
	"net.connect_tcp":     {net: netConnectTCP},
	"net.bind_udp":        {net: netBindUDP},
	"net.connect_udp":     {net: netConnectSendUDP},
	"scope.abstract_unix": {scoped: scopeAbstractUnix},
	"scope.signal":        {scoped: scopeSignal},
}

func parseLies(list string) (rights, error) {
	var r rights
	for _, name := range strings.FieldsFunc(list, func(c rune) bool { return c == ',' }) {
		l, ok := lies[name]
		if !ok {
			var known []string
			for k := range lies {
				known = append(known, k)
			}
			sort.Strings(known)
			return rights{}, fmt.Errorf("no right is called %q; there are %s", name, strings.Join(known, " "))
		}
		r = rights{r.fs | l.fs, r.net | l.net, r.scoped | l.scoped}
	}
	return r, nil
}

// A kernel is what is pretended, and what there is.
type kernel struct {
	abi    int        // the one it claims
	lies   rights     // what it says EINVAL to although its ABI has it
	none   unix.Errno // the answer to everything if abi is 0
	errata int        // the mask; realErrata: the real kernel's; noErrata: EINVAL, as before the query existed
	real   int        // the ABI of the kernel underneath
}

const (
	realErrata = -1
	noErrata   = -2
)

// An answer is what the caller gets. The zero value is success with value 0.
type answer struct {
	errno unix.Errno
	value int64
	pass  bool         // let the real kernel answer
	make  *rulesetAttr // have the real kernel make this ruleset, for the caller
	claim rights       // with make: what the caller thinks it handles
}

type rulesetAttr struct{ handled, quiet rights }

func decodeAttr(b []byte) rulesetAttr {
	var w [6]uint64
	for i := range w {
		if len(b) >= 8*(i+1) {
			w[i] = binary.NativeEndian.Uint64(b[8*i:])
		}
	}
	return rulesetAttr{rights{w[0], w[1], w[2]}, rights{w[3], w[4], w[5]}}
}

// encode gives the struct as a kernel with this ABI has it.
func (a rulesetAttr) encode(abi int) []byte {
	b := make([]byte, 0, 48)
	for _, w := range []uint64{a.handled.fs, a.handled.net, a.handled.scoped, a.quiet.fs, a.quiet.net, a.quiet.scoped} {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return b[:attrSize(abi)]
}

// create answers landlock_create_ruleset as the kernel's syscalls.c does, check by check. read returns that much of the attr.
func (k kernel) create(attr, size, flags uint64, read func(n int) ([]byte, error)) (answer, error) {
	if k.abi == 0 {
		return answer{errno: k.none}, nil
	}
	flags &= 0xffffffff
	if flags != 0 {
		switch {
		case attr != 0 || size != 0:
			return answer{errno: unix.EINVAL}, nil
		case flags == createVersion:
			return answer{value: int64(k.abi)}, nil
		case flags == createErrata && k.errata == realErrata:
			return answer{pass: true}, nil
		case flags == createErrata && k.errata >= 0:
			return answer{value: int64(k.errata)}, nil
		}
		return answer{errno: unix.EINVAL}, nil
	}
	switch {
	case attr == 0:
		return answer{errno: unix.EFAULT}, nil
	case size < 8:
		return answer{errno: unix.EINVAL}, nil
	case size > 4096:
		return answer{errno: unix.E2BIG}, nil
	}
	raw, err := read(int(size))
	if err != nil {
		return answer{}, err
	}
	if known := attrSize(k.abi); len(raw) > known {
		for _, b := range raw[known:] {
			if b != 0 {
				return answer{errno: unix.E2BIG}, nil
			}
		}
		raw = raw[:known]
	}
	a := decodeAttr(raw)
	if !a.handled.without(rightsOf(k.abi).without(k.lies)).empty() || !a.quiet.without(a.handled).empty() {
		return answer{errno: unix.EINVAL}, nil
	}
	if a.handled.empty() {
		return answer{errno: unix.ENOMSG}, nil
	}
	under := rulesetAttr{a.handled.and(rightsOf(k.real)), rights{}}
	if k.real >= 10 {
		under.quiet = a.quiet
	}
	if under == a {
		return answer{pass: true}, nil
	}
	if under.handled.empty() {
		// Every layer denies REFER whether it is asked to or not, so this ruleset is the one that handles nothing.
		under.handled.fs = fsRefer
		if k.real < 2 {
			under.handled.fs = 1
		}
	}
	return answer{make: &under, claim: a.handled}, nil
}

// restrict answers landlock_restrict_self. It cannot take a flag away from a call, so what only the claimed kernel has is an error.
func (k kernel) restrict(flags uint64) (answer, error) {
	flags &= 0xffffffff
	switch {
	case k.abi == 0:
		return answer{errno: k.none}, nil
	case flags&^restrictFlags(k.abi) != 0:
		return answer{errno: unix.EINVAL}, nil
	case flags&^restrictFlags(k.real) != 0:
		return answer{}, fmt.Errorf("landlock_restrict_self was called with flags %#x, which ABI %d has and this kernel (ABI %d) has not: that cannot be pretended", flags, k.abi, k.real)
	}
	return answer{pass: true}, nil
}

// rule answers landlock_add_rule. When the kernel underneath lacks a right or flag of the rule, mask says which rights to add the
// rule with on the caller's behalf, and redo is true.
func (k kernel) rule(kind, access, flags uint64, claim rights) (a answer, mask uint64, redo bool) {
	flags &= 0xffffffff
	handled, under := claim.fs, rightsOf(k.real).fs
	if kind == ruleNetPort {
		handled, under = claim.net, rightsOf(k.real).net
	}
	quiet := k.abi >= 10 && flags == addRuleQuiet
	switch {
	case k.abi == 0:
		return answer{errno: k.none}, 0, false
	case flags != 0 && !quiet, kind == ruleNetPort && k.abi < 4:
		return answer{errno: unix.EINVAL}, 0, false
	case kind != rulePathBeneath && kind != ruleNetPort:
		return answer{errno: unix.EINVAL}, 0, false
	case access&^under == 0 && (flags == 0 || k.real >= 10):
		return answer{pass: true}, 0, false
	case access == 0 && !quiet:
		return answer{errno: unix.ENOMSG}, 0, false
	case access&^handled != 0:
		return answer{errno: unix.EINVAL}, 0, false
	}
	return answer{}, access & under, true
}
