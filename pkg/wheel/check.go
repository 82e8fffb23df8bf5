package wheel

import (
	"archive/zip"
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/pypi"
)

// Wheel is a wheel that was looked at.
type Wheel struct {
	File           string // its name
	Project        string // normalized
	Version        string
	Bytes          int64
	SHA256         string // hex
	RequiresPython string // as its metadata says, "" for any
	Requires       []Requirement
	Odd            []string // what it requires and nobody can read here, such as a URL
}

// A Fault is why a wheel must not be used.
type Fault struct {
	Class string // Corrupt, WrongArch, WrongTags, Invalid
	Text  string // one line, without the name of the file
}

func (f *Fault) Error() string { return f.Text }

// Classes of faults.
const (
	Corrupt   = "corrupt"    // bytes are not what the wheel itself, an index or an earlier look says they are
	WrongArch = "wrong-arch" // a library is for another machine
	WrongTags = "wrong-tags" // its name or its WHEEL file says that it is for something else
	Invalid   = "invalid"    // it is no wheel that an installer should take
)

func fault(class, format string, a ...any) error {
	return &Fault{class, fmt.Sprintf(format, a...)}
}

// Name reads a wheel's file name. Its version is as PEP 440 normalizes it.
func Name(file string) (project, version string, tags []pypi.PEP425Tag, err error) {
	if file == "" || path.Base(file) != file || strings.ContainsFunc(file, func(r rune) bool { return r <= ' ' || r == '\\' || r > '~' }) {
		return "", "", nil, fmt.Errorf("%q is no name of a wheel", file)
	}
	info, err := pypi.ParseWheelName(file)
	if err != nil || projectName.FindString(info.Name) != info.Name || info.Version == "" {
		return "", "", nil, fmt.Errorf("%q is no name of a wheel (NAME-VERSION-PYTHON-ABI-PLATFORM.whl)", file)
	}
	return Normalize(info.Name), info.Version, info.Platforms, nil
}

// Check looks at a wheel as a whole: its name and WHEEL file must be for the
// target, every file in it must be what its RECORD says, every library for the
// target's machine. What is wrong with it is a *Fault; any other error is of
// reading it.
func Check(file string, t Target) (Wheel, error) {
	w := Wheel{File: path.Base(file)}
	var tags []pypi.PEP425Tag
	var err error
	if w.Project, w.Version, tags, err = Name(w.File); err != nil {
		return w, fault(Invalid, "%v", err)
	}
	f, err := os.Open(file)
	if err != nil {
		return w, err
	}
	defer f.Close()
	sum := sha256.New()
	if w.Bytes, err = io.Copy(sum, f); err != nil {
		return w, err
	}
	w.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if !slices.ContainsFunc(tags, t.Accepts) {
		return w, fault(WrongTags, "it is for %s, not for %s", describe(tags), t)
	}
	z, err := zip.NewReader(f, w.Bytes)
	if err != nil {
		return w, fault(Corrupt, "it is no whole archive: %v", err)
	}
	a := archive{target: t, recorded: map[string]string{}, seen: map[string]bool{}, texts: map[string][]byte{}}
	if err := a.read(z); err != nil {
		return w, err
	}
	return w, a.metadata(&w)
}

func describe(tags []pypi.PEP425Tag) string {
	var all []string
	for _, tag := range tags {
		all = append(all, tag.Python+"-"+tag.ABI+"-"+tag.Platform)
	}
	if len(all) > 3 {
		all = append(all[:3], fmt.Sprintf("and %d more", len(all)-3))
	}
	return strings.Join(all, ", ")
}

// archive is a wheel's content.
type archive struct {
	target   Target
	info     string            // the .dist-info folder, with a slash
	texts    map[string][]byte // RECORD, WHEEL and METADATA
	recorded map[string]string // what RECORD says of a path: ALGORITHM=DIGEST, or ""
	seen     map[string]bool   // paths
	right    int               // libraries for the target
	wrong    []library
}

type library struct{ name, what string }

const (
	textMax   = 32 << 20 // bytes of METADATA, WHEEL, RECORD
	unpackMax = 64 << 30 // bytes of all files
)

func (a *archive) read(z *zip.Reader) error {
	var files []*zip.File
	var total uint64
	for _, e := range z.File {
		name := e.Name
		if strings.HasSuffix(name, "/") {
			continue
		}
		if path.IsAbs(name) || path.Clean(name) != name || name == ".." || strings.HasPrefix(name, "../") || strings.ContainsAny(name, "\\\x00\n\r") {
			return fault(Invalid, "it has a file with the name %q", name)
		}
		if a.seen[name] {
			return fault(Invalid, "it has the file %s twice", name)
		}
		a.seen[name] = true
		if total += min(e.UncompressedSize64, unpackMax+1); total > unpackMax {
			return fault(Invalid, "it unpacks to more than %d GiB", unpackMax>>30)
		}
		files = append(files, e)
		if dir, base := path.Split(name); base == "RECORD" && strings.Count(dir, "/") == 1 && strings.HasSuffix(dir, ".dist-info/") {
			if a.info != "" {
				return fault(Invalid, "it has two RECORD files, in %s and %s", a.info, dir)
			}
			a.info = dir
		}
	}
	if a.info == "" {
		return fault(Invalid, "it has no RECORD in a .dist-info folder")
	}
	for _, e := range files {
		if base, ok := strings.CutPrefix(e.Name, a.info); ok && slices.Contains([]string{"RECORD", "WHEEL", "METADATA"}, base) {
			if e.UncompressedSize64 > textMax {
				return fault(Invalid, "%s is larger than %d MiB", e.Name, textMax>>20)
			}
			var text bytes.Buffer
			if err := a.copy(e, &text); err != nil {
				return err
			}
			a.texts[base] = text.Bytes()
		}
	}
	if err := a.record(); err != nil {
		return err
	}
	for _, e := range files {
		if err := a.file(e); err != nil {
			return err
		}
	}
	return a.libraries()
}

// copy reads a file to its end, which checks its CRC, and notes for which
// machine it is.
func (a *archive) copy(e *zip.File, into io.Writer) error {
	r, err := e.Open()
	if err != nil {
		return fault(Corrupt, "%s: %v", e.Name, err)
	}
	defer r.Close()
	b := bufio.NewReaderSize(r, 32<<10)
	head, _ := b.Peek(20) // a shorter file is no library; other errors come again
	a.machine(e.Name, head)
	if _, err := io.Copy(into, b); err != nil {
		return fault(Corrupt, "%s: %v", e.Name, err)
	}
	return nil
}

// file compares a file with RECORD. RECORD itself and signatures of it have no
// digest there (PEP 427).
func (a *archive) file(e *zip.File) error {
	want, listed := a.recorded[e.Name]
	own := strings.TrimPrefix(e.Name, a.info)
	signed := own == "RECORD" || own == "RECORD.jws" || own == "RECORD.p7s"
	if !listed && !signed {
		return fault(Corrupt, "%s is in it and not in its RECORD", e.Name)
	}
	if want == "" || signed {
		return a.copy(e, io.Discard)
	}
	algorithm, digest, _ := strings.Cut(want, "=")
	var h hash.Hash
	switch algorithm {
	case "sha256":
		h = sha256.New()
	case "sha384":
		h = sha512.New384()
	case "sha512":
		h = sha512.New()
	default:
		return fault(Invalid, "its RECORD has a digest of %s by %q, which is not strong enough", e.Name, algorithm)
	}
	if err := a.copy(e, h); err != nil {
		return err
	}
	if base64.RawURLEncoding.EncodeToString(h.Sum(nil)) != strings.TrimRight(digest, "=") {
		return fault(Corrupt, "%s is not what its RECORD says", e.Name)
	}
	return nil
}

// machine notes for which machine a library or program is. Object files and
// other ELF files that nothing loads count for nothing.
func (a *archive) machine(name string, head []byte) {
	switch arch, kind, ok := elfHeader(head); {
	case !ok || kind != elf.ET_DYN && kind != elf.ET_EXEC:
	case arch == a.target.Arch:
		a.right++
	default:
		a.wrong = append(a.wrong, library{name, arch})
	}
}

// elfHeader reads the first 20 bytes of an ELF file (elf(5)): the class, the
// byte order, the type and the machine.
func elfHeader(head []byte) (arch string, kind elf.Type, ok bool) {
	if len(head) < 20 || string(head[:4]) != elf.ELFMAG {
		return "", 0, false
	}
	class, order := elf.Class(head[elf.EI_CLASS]), elf.Data(head[elf.EI_DATA])
	u16 := binary.LittleEndian.Uint16
	if order == elf.ELFDATA2MSB {
		u16 = binary.BigEndian.Uint16
	}
	kind, machine := elf.Type(u16(head[16:])), elf.Machine(u16(head[18:]))
	for name, m := range machines {
		if m.machine == machine && m.class == class && m.order == order {
			return name, kind, true
		}
	}
	return strings.ToLower(strings.TrimPrefix(machine.String(), "EM_")), kind, true
}

// loaded are names of libraries that Python or the loader takes by themselves:
// extension modules that say for which Python, and what auditwheel adds.
var loaded = regexp.MustCompile(`\.(cpython-[^/]*|abi3|pypy[^/]*)\.so$|\.libs/`)

// libraries judges. A wheel may carry a program for another machine as data, as
// debuggers do, beside what it is itself.
func (a *archive) libraries() error {
	for _, l := range a.wrong {
		if a.right == 0 || loaded.MatchString(l.name) {
			return fault(WrongArch, "%s is for %s, not for %s", l.name, l.what, a.target.Arch)
		}
	}
	return nil
}

// record reads RECORD: what it lists must be there.
func (a *archive) record() error {
	r := csv.NewReader(bytes.NewReader(a.texts["RECORD"]))
	r.FieldsPerRecord = -1
	for {
		row, err := r.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fault(Corrupt, "its RECORD: %v", err)
		}
		name := row[0]
		if strings.HasSuffix(name, "/") {
			continue
		}
		if !a.seen[name] {
			return fault(Corrupt, "%s is in its RECORD and not in it", name)
		}
		if a.recorded[name] = ""; len(row) > 1 {
			a.recorded[name] = row[1]
		}
	}
}

// metadata reads WHEEL and METADATA.
func (a *archive) metadata(w *Wheel) error {
	var tags []pypi.PEP425Tag
	version := ""
	for line := range strings.Lines(string(a.texts["WHEEL"])) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(key) {
		case "wheel-version":
			version = value
		case "tag":
			if p := strings.Split(value, "-"); len(p) == 3 {
				for _, python := range strings.Split(p[0], ".") {
					for _, abi := range strings.Split(p[1], ".") {
						for _, platform := range strings.Split(p[2], ".") {
							tags = append(tags, pypi.PEP425Tag{Python: python, ABI: abi, Platform: platform})
						}
					}
				}
			}
		}
	}
	if major, _, _ := strings.Cut(version, "."); major != "1" {
		return fault(Invalid, "its WHEEL file says that it is of version %q, not 1.x", version)
	}
	if !slices.ContainsFunc(tags, a.target.Accepts) {
		return fault(WrongTags, "its WHEEL file says that it is for %s, not for %s", describe(tags), a.target)
	}
	fields := headers(a.texts["METADATA"])
	name, release := strings.Join(fields["name"], " "), strings.Join(fields["version"], " ")
	if Normalize(name) != w.Project || !SameVersion(release, w.Version) {
		return fault(Invalid, "its METADATA says that it is %q %q", name, release)
	}
	for _, text := range fields["requires-dist"] {
		if r, err := ParseRequirement(text); err == nil {
			w.Requires = append(w.Requires, r)
		} else {
			w.Odd = append(w.Odd, text)
		}
	}
	w.RequiresPython = strings.Join(fields["requires-python"], " ")
	return nil
}

// headers are the fields of METADATA (core metadata specification: an e-mail's
// header), by their names in small letters.
func headers(text []byte) map[string][]string {
	fields := map[string][]string{}
	last := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			break
		}
		if strings.ContainsRune(" \t", rune(line[0])) {
			if n := len(fields[last]); n > 0 {
				fields[last][n-1] += " " + strings.TrimSpace(line)
			}
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		last = strings.ToLower(strings.TrimSpace(key))
		fields[last] = append(fields[last], strings.TrimSpace(value))
	}
	return fields
}

// IsFault gives the fault that an error is.
func IsFault(err error) (*Fault, bool) {
	var f *Fault
	ok := errors.As(err, &f)
	return f, ok
}

// Machine is the architecture that a program is for, as platform tags name it.
func Machine(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 20)
	if _, err := io.ReadFull(f, head); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && err != io.EOF {
		return "", err
	}
	arch, _, ok := elfHeader(head)
	if !ok {
		return "", fmt.Errorf("%s is no program", file)
	}
	return arch, nil
}
