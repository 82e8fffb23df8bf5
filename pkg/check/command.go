package check

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"

	"fence/pkg/sif"
)

// machines are the ELF machines by the name of the architecture.
var machines = map[string]elf.Machine{
	"386": elf.EM_386, "amd64": elf.EM_X86_64, "arm": elf.EM_ARM, "arm64": elf.EM_AARCH64, "loong64": elf.EM_LOONGARCH, "mips64": elf.EM_MIPS,
	"mips64le": elf.EM_MIPS, "ppc64": elf.EM_PPC64, "ppc64le": elf.EM_PPC64, "riscv64": elf.EM_RISCV, "s390x": elf.EM_S390,
}

// commands checks the shell and the commands that are required.
func (r *Report) commands(t tree, img *sif.Image, arch string, require []string) {
	search := searchPath(img)
	if _, ok := t.resolve("bin/sh"); !ok {
		r.add("shell", Warning, nil, "apptainer exec with a program of the image works", "it has no /bin/sh: apptainer run, shell and instance start, and commands given as text, do not work")
	} else if err := t.runs("/bin/sh", search, arch, 0); err != nil {
		r.add("shell", Fault, []string{"bin/sh"}, "build it again on this architecture, or mend the base image", "%v", err)
	}
	for _, name := range require {
		p, err := t.find(name, search)
		if err == nil {
			err = t.runs(p, search, arch, 0)
		}
		if err != nil {
			r.add("command", Fault, nil, "install it in the Dockerfile, or name it with --require of sifbuild build", "it must have the command %s: %v", name, err)
		}
	}
}

// searchPath is the image's own PATH.
func searchPath(img *sif.Image) []string {
	p := sif.DefaultPath
	for _, kv := range img.Config.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			p = v
		}
	}
	return strings.Split(p, ":")
}

// find is where a command is: an absolute path, or a name on the search path.
func (t tree) find(name string, search []string) (string, error) {
	if strings.Contains(name, "/") {
		if e, ok := t.resolve(name); !ok {
			return "", errors.New("there is no such file")
		} else if !executable(e) {
			return "", errors.New("it is no program: not a file, or not executable")
		}
		return name, nil
	}
	other := ""
	for _, dir := range search {
		p := path.Join("/", dir, name)
		if e, ok := t.resolve(p); ok && executable(e) {
			return p, nil
		} else if ok && other == "" {
			other = p
		}
	}
	if other != "" {
		return "", fmt.Errorf("%s is no program: not a file, or not executable", other)
	}
	return "", fmt.Errorf("it is not in its PATH, %s", strings.Join(search, ":"))
}

func executable(e sif.Entry) bool { return e.Mode.IsRegular() && e.Mode.Perm()&0o111 != 0 }

// runs says why the kernel would not start the program p: a machine other
// than arch's, an interpreter or a loader that is missing.
func (t tree) runs(p string, search []string, arch string, depth int) error {
	e, ok := t.resolve(p)
	if !ok || !executable(e) {
		return fmt.Errorf("%s is missing, or not executable", p)
	}
	data, err := head(e, 4096)
	if err != nil {
		return err
	}
	if line, ok := bytes.CutPrefix(data, []byte("#!")); ok {
		if depth > 3 {
			return fmt.Errorf("%s is a script whose interpreters are scripts", p)
		}
		line, _, _ = bytes.Cut(line, []byte("\n"))
		words := strings.Fields(string(line))
		if len(words) == 0 {
			return fmt.Errorf("%s is a script without an interpreter", p)
		}
		if err := t.runs(words[0], search, arch, depth+1); err != nil {
			return fmt.Errorf("%s is a script: %w", p, err)
		}
		if path.Base(words[0]) == "env" && len(words) == 2 {
			q, err := t.find(words[1], search)
			if err == nil {
				err = t.runs(q, search, arch, depth+1)
			}
			if err != nil {
				return fmt.Errorf("%s is a script of %s: %w", p, words[1], err)
			}
		}
		return nil
	}
	machine, loader, err := program(data)
	switch {
	case err != nil && depth == 0 && bytes.IndexByte(data, 0) < 0:
		return nil // no #! line: shells run such a file as their own script
	case err != nil:
		return fmt.Errorf("%s is %w", p, err)
	case machines[arch] != machine:
		return fmt.Errorf("%s is a program for %s, not for %s", p, name(machine), arch)
	case loader == "":
		return nil
	}
	if l, ok := t.resolve(loader); !ok || !executable(l) {
		return fmt.Errorf("%s needs the loader %s, which is missing: it comes from another distribution", p, loader)
	}
	return nil
}

func name(m elf.Machine) string {
	for arch, is := range machines {
		if is == m && !strings.HasPrefix(arch, "mips") && arch != "ppc64" {
			return arch
		}
	}
	return m.String()
}

// program reads the beginning of an ELF file: its machine and, of 64-bit
// programs whose headers are in it, the loader they ask for. See elf(5).
func program(data []byte) (elf.Machine, string, error) {
	if len(data) < 20 || string(data[:4]) != elf.ELFMAG {
		return 0, "", errors.New("no program")
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(data[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	machine := elf.Machine(order.Uint16(data[18:]))
	if len(data) < 64 || elf.Class(data[elf.EI_CLASS]) != elf.ELFCLASS64 {
		return machine, "", nil
	}
	at, size, n := order.Uint64(data[32:]), uint64(order.Uint16(data[54:])), int(order.Uint16(data[56:]))
	for ; n > 0 && size >= 56 && at <= uint64(len(data))-56; n, at = n-1, at+size {
		h := data[at:]
		if elf.ProgType(order.Uint32(h)) != elf.PT_INTERP {
			continue
		}
		from, length := order.Uint64(h[8:]), order.Uint64(h[32:])
		if from > uint64(len(data)) || length > uint64(len(data))-from {
			return machine, "", nil // further on than was read
		}
		return machine, strings.TrimRight(string(data[from:from+length]), "\x00"), nil
	}
	return machine, "", nil
}
