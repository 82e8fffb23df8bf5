// Package wheel knows Python's wheels: what their names say, for which Python,
// machine and C library they are, what they need, and whether a file is whole.
// It reads; it fetches and runs nothing.
//
// Sources: the binary distribution format (PEP 427, 491), compatibility tags
// (PEP 425, 600, 656), version specifiers (PEP 440), dependency specifiers
// (PEP 508), the simple repository API (PEP 503).
package wheel

import (
	"debug/elf"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"deps.dev/util/pypi"
)

// Target is where wheels are to be installed: CPython of one minor version, on
// Linux.
type Target struct {
	Arch   string // as platform tags name it, such as x86_64
	Python string // such as 3.12
	Libc   Libc
}

func (t Target) String() string {
	return fmt.Sprintf("Python %s on %s with %s", t.Python, t.Arch, t.Libc)
}

// machines are the architectures that platform tags have, and what the ELF
// header of a program for one says.
var machines = map[string]struct {
	machine elf.Machine
	class   elf.Class
	order   elf.Data
}{
	"x86_64":  {elf.EM_X86_64, elf.ELFCLASS64, elf.ELFDATA2LSB},
	"i686":    {elf.EM_386, elf.ELFCLASS32, elf.ELFDATA2LSB},
	"aarch64": {elf.EM_AARCH64, elf.ELFCLASS64, elf.ELFDATA2LSB},
	"armv7l":  {elf.EM_ARM, elf.ELFCLASS32, elf.ELFDATA2LSB},
	"ppc64le": {elf.EM_PPC64, elf.ELFCLASS64, elf.ELFDATA2LSB},
	"s390x":   {elf.EM_S390, elf.ELFCLASS64, elf.ELFDATA2MSB},
	"riscv64": {elf.EM_RISCV, elf.ELFCLASS64, elf.ELFDATA2LSB},
}

// aliases are other people's names of them.
var aliases = map[string]string{"amd64": "x86_64", "arm64": "aarch64", "386": "i686", "i386": "i686", "arm": "armv7l"}

// ParseArch takes any of the names that people use.
func ParseArch(s string) (string, error) {
	if name, ok := aliases[s]; ok {
		s = name
	}
	if _, ok := machines[s]; !ok {
		return "", fmt.Errorf("no wheel is for the architecture %q: they are for %s", s, strings.Join(slices.Sorted(maps.Keys(machines)), ", "))
	}
	return s, nil
}

var pythonVersion = regexp.MustCompile(`^3\.(0|[1-9][0-9]?)(\.[0-9]+)?$`)

// ParsePython takes a version such as 3.12 or 3.12.4, and gives its first two
// numbers, which are what wheels are made for.
func ParsePython(s string) (string, error) {
	m := pythonVersion.FindStringSubmatch(s)
	if m == nil {
		return "", fmt.Errorf("%q is no version of Python 3, such as 3.12", s)
	}
	return "3." + m[1], nil
}

// minor is the number after "3.".
func (t Target) minor() int {
	n, _ := strconv.Atoi(strings.TrimPrefix(t.Python, "3."))
	return n
}

// Libc is a C library. The zero value is none, and accepts no library.
type Libc struct {
	Musl         bool
	Major, Minor int
}

func (l Libc) String() string {
	name := "glibc"
	if l.Musl {
		name = "musl"
	}
	return fmt.Sprintf("%s %d.%d", name, l.Major, l.Minor)
}

var libcVersion = regexp.MustCompile(`^(glibc|musl)?[ -]?([0-9]{1,3})\.([0-9]{1,3})$`)

// ParseLibc takes "glibc 2.31", "2.31" for the same, and "musl 1.2", with or
// without a space or hyphen.
func ParseLibc(s string) (Libc, error) {
	m := libcVersion.FindStringSubmatch(s)
	if m == nil {
		return Libc{}, fmt.Errorf("%q is no C library, such as glibc2.31 or musl1.2", s)
	}
	major, _ := strconv.Atoi(m[2])
	minor, _ := strconv.Atoi(m[3])
	return Libc{Musl: m[1] == "musl", Major: major, Minor: minor}, nil
}

// legacy are the names that manylinux had before PEP 600.
var legacy = []struct {
	name  string
	glibc int // 2.N
}{{"manylinux2014", 17}, {"manylinux2010", 12}, {"manylinux1", 5}}

// Platforms are the platform tags that wheels for the target may have, those
// that ask for most first; "any" is not among them.
func (t Target) Platforms() []string {
	name, oldest := "manylinux", 5 // PEP 600: manylinux_2_5 is manylinux1
	if t.Libc.Musl {
		name, oldest = "musllinux", 0
	}
	var all []string
	for minor := t.Libc.Minor; minor >= oldest && t.Libc.Major > 0; minor-- {
		all = append(all, fmt.Sprintf("%s_%d_%d_%s", name, t.Libc.Major, minor, t.Arch))
		for _, old := range legacy {
			if !t.Libc.Musl && t.Libc.Major == 2 && old.glibc == minor {
				all = append(all, old.name+"_"+t.Arch)
			}
		}
	}
	return append(all, "linux_"+t.Arch)
}

var interpreter = regexp.MustCompile(`^(py|cp)(\d)(\d*)$`)

// Accepts says whether pip and uv would install a wheel with this tag on the
// target.
func (t Target) Accepts(tag pypi.PEP425Tag) bool {
	if tag.Platform != "any" && !slices.Contains(t.Platforms(), tag.Platform) {
		return false
	}
	m := interpreter.FindStringSubmatch(tag.Python)
	if m == nil || m[2] != "3" {
		return false
	}
	of := -1 // py3
	if m[3] != "" {
		of, _ = strconv.Atoi(m[3])
	}
	switch {
	case m[1] == "py":
		return tag.ABI == "none" && of <= t.minor()
	case tag.ABI == "none":
		return of == t.minor()
	case tag.ABI == "abi3":
		return of >= 2 && of <= t.minor()
	case t.minor() < 8 && tag.ABI == tag.Python+"m": // pymalloc, in the name until 3.7
		return of == t.minor()
	}
	return of == t.minor() && tag.ABI == tag.Python
}

// Normalize is a project's name as indexes have it (PEP 503).
func Normalize(name string) string { return pypi.CanonPackageName(name) }
