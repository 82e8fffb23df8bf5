package wheel

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func target(t testing.TB, arch, python, libc string) Target {
	t.Helper()
	l, err := ParseLibc(libc)
	if err != nil {
		t.Fatal(err)
	}
	return Target{Arch: arch, Python: python, Libc: l}
}

func TestTarget_Accepts(t *testing.T) {
	glibc, musl := target(t, "x86_64", "3.12", "glibc2.31"), target(t, "aarch64", "3.7", "musl1.2")
	for _, c := range []struct {
		t    Target
		tag  string
		want bool
	}{
		{glibc, "py3-none-any", true},
		{glibc, "py2.py3-none-any", true},
		{glibc, "py2-none-any", false},
		{glibc, "py312-none-any", true},
		{glibc, "py313-none-any", false},
		{glibc, "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64", true},
		{glibc, "cp312-cp312-manylinux_2_31_x86_64", true},
		{glibc, "cp312-cp312-manylinux_2_32_x86_64", false},
		{glibc, "cp312-cp312-manylinux1_x86_64", true},
		{glibc, "cp312-cp312-manylinux_2_17_aarch64", false},
		{glibc, "cp312-cp312-musllinux_1_1_x86_64", false},
		{glibc, "cp312-cp312-linux_x86_64", true},
		{glibc, "cp312-cp312-win_amd64", false},
		{glibc, "cp311-cp311-manylinux1_x86_64", false},
		{glibc, "cp313-cp313-manylinux1_x86_64", false},
		{glibc, "cp312-cp312t-manylinux1_x86_64", false},
		{glibc, "cp38-abi3-manylinux1_x86_64", true},
		{glibc, "cp313-abi3-manylinux1_x86_64", false},
		{glibc, "cp312-none-any", true},
		{glibc, "cp311-none-any", false},
		{glibc, "pp310-pypy310_pp73-manylinux1_x86_64", false},
		{glibc, "py3-abi3-any", false},
		{musl, "cp37-cp37m-musllinux_1_1_aarch64", true},
		{musl, "cp37-cp37m-musllinux_1_3_aarch64", false},
		{musl, "cp37-cp37m-manylinux2014_aarch64", false},
		{Target{}, "py3-none-any", true},
		{Target{}, "cp312-cp312-manylinux1_x86_64", false},
	} {
		_, _, tags, err := Name("a-1-" + c.tag + ".whl")
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(tags, c.t.Accepts); got != c.want {
			t.Errorf("%s takes %s: %v", c.t, c.tag, got)
		}
	}
}

func TestParse(t *testing.T) {
	for in, want := range map[string]string{"3.12": "3.12", "3.12.4": "3.12", "3.7": "3.7", "2.7": "", "3": "", "3.012": "", "4.1": ""} {
		if got, err := ParsePython(in); got != want || (err == nil) != (want != "") {
			t.Errorf("Python %q: %q, %v", in, got, err)
		}
	}
	for in, want := range map[string]string{"glibc2.31": "glibc 2.31", "2.31": "glibc 2.31", "glibc 2.31": "glibc 2.31", "musl-1.2": "musl 1.2", "musl": "", "2": "", "bionic1.2": ""} {
		if got, err := ParseLibc(in); err == nil && got.String() != want || (err == nil) != (want != "") {
			t.Errorf("libc %q: %v, %v", in, got, err)
		}
	}
	for in, want := range map[string]string{"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "sparc": ""} {
		if got, err := ParseArch(in); err == nil && got != want || (err == nil) != (want != "") {
			t.Errorf("arch %q: %v, %v", in, got, err)
		}
	}
}

func TestRequirement(t *testing.T) {
	for in, want := range map[string]string{
		"Foo_Bar.baz": "foo-bar-baz", "a [X_y, b] >= 1 , <2 ; os_name=='nt'": "a[b,x-y]>=1,<2 ; os_name=='nt'", "a (>=1)": "a>=1", "a==1.*": "a==1.*",
		"": "", "-r x": "", "a @ https://b": "", "a===1": "", "a=1": "", "a[": "", "a b": "", "a>=": "", "a; nosuch == 'x'": "", "a;": "", "a==1\n--index-url=x": "", "a; os_name == 'nt' or": "",
	} {
		got, err := ParseRequirement(in)
		if err == nil && got.String() != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, c := range []struct {
		spec, version string
		want          bool
	}{
		{"", "1", true}, {"==1.*", "1.5", true}, {"==1.*", "2.0", false}, {">=1.2,<2", "2.0", false}, {"~=1.4.2", "1.4.9", true}, {"~=1.4.2", "1.5", false},
		{"==1.0", "1.0.0", true}, {"!=1.3", "1.3", false}, {">=2.0a1", "2.0b1", true}, {"==1.0", "1.0+cpu", true}, {"==1.0+cpu", "1.0+cpu", true},
		{"==1.0+cpu", "1.0+gpu", false}, {">=1", "junk", false},
	} {
		r, err := ParseRequirement("a" + c.spec)
		if err != nil {
			t.Fatal(err)
		}
		if r.Allows(c.version) != c.want {
			t.Errorf("%s takes %s: %v", r, c.version, !c.want)
		}
	}
}

func TestMarkers(t *testing.T) {
	on := target(t, "x86_64", "3.12", "2.31")
	for text, want := range map[string]string{ // here, with the extra socks, elsewhere
		"python_version < '3.9'":                                                      "",
		"python_version >= '3.9'":                                                     "here extra",
		"python_version < '3.2' or '3.8' <= python_version":                           "here extra",
		"(python_version > '3.13' or os_name == \"posix\") and sys_platform!='win32'": "here extra",
		"sys_platform == 'win32'":                                                     "elsewhere",
		"platform_system == 'Darwin' and extra == 'socks'":                            "elsewhere-extra",
		"extra == 'SOCKS'":                                                            "extra",
		"'linux' in sys_platform":                                                     "here extra",
		"platform_machine not in 'x86_64 aarch64'":                                    "",
		"python_full_version >= '3.12.4'":                                             "here extra",
		"implementation_name == 'pypy'":                                               "",
		"python_version in '3.11 3.12'":                                               "here extra",
	} {
		r, err := ParseRequirement("a; " + text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for name, ok := range map[string]bool{
			"here": on.Applies(r, nil), "extra": on.Applies(r, []string{"socks"}), "elsewhere": on.AppliesElsewhere(r, nil),
			"elsewhere-extra": on.AppliesElsewhere(r, []string{"socks"}) && !on.AppliesElsewhere(r, nil),
		} {
			if ok {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		wanted := strings.Fields(want)
		slices.Sort(wanted)
		if !slices.Equal(got, wanted) {
			t.Errorf("%s: %q, want %q", text, got, wanted)
		}
	}
}

// pack makes a wheel of files; RECORD is made, unless it is among them.
func pack(t testing.TB, files map[string]string, more ...func(*zip.Writer)) []byte {
	t.Helper()
	files = maps.Clone(files)
	const record = "a-1.dist-info/RECORD"
	if _, there := files[record]; !there {
		text := record + ",,\n"
		for _, name := range slices.Sorted(maps.Keys(files)) {
			sum := sha256.Sum256([]byte(files[name]))
			text += fmt.Sprintf("%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[name]))
		}
		files[record] = text
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(w, files[name])
	}
	for _, f := range more {
		f(z)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// header is an ELF file's beginning.
func header(machine elf.Machine, kind elf.Type) string {
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(kind), Machine: uint16(machine), Version: 1, Ehsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	_ = binary.Write(&b, binary.LittleEndian, h)
	return b.String()
}

func TestCheck(t *testing.T) {
	const name = "a-1-cp312-cp312-manylinux2014_x86_64.whl"
	on := target(t, "x86_64", "3.12", "2.31")
	good := map[string]string{
		"a/__init__.py": "x = 'aaaaaaaaaaaaaaaa'\n", "a/_c.cpython-312-x86_64-linux-gnu.so": header(elf.EM_X86_64, elf.ET_DYN),
		"a-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: A\nVersion: 1.0\nRequires-Python: >=3.8\nRequires-Dist: b>=1\nRequires-Dist: c @\n https://c\n\nName: not this\n",
		"a-1.dist-info/WHEEL":    "Wheel-Version: 1.0\nTag: cp312-cp312-manylinux2014_x86_64\n",
	}
	with := func(more map[string]string) []byte {
		files := maps.Clone(good)
		for k, v := range more {
			if v == "" {
				delete(files, k)
			} else {
				files[k] = v
			}
		}
		return pack(t, files)
	}
	whole := with(nil)
	for what, c := range map[string]struct {
		file  string
		data  []byte
		class string
	}{
		"whole":                {name, whole, ""},
		"flipped":              {name, bytes.Replace(whole, []byte("aaaaaaaa"), []byte("aaaabaaa"), 1), Corrupt},
		"cut":                  {name, whole[:len(whole)-30], Corrupt},
		"empty":                {name, nil, Corrupt},
		"foreign library":      {name, with(map[string]string{"a/_c.cpython-312-x86_64-linux-gnu.so": header(elf.EM_AARCH64, elf.ET_DYN)}), WrongArch},
		"one foreign":          {name, with(map[string]string{"a/_d.abi3.so": header(elf.EM_AARCH64, elf.ET_DYN)}), WrongArch},
		"foreign in libs":      {name, with(map[string]string{"a.libs/libz.so.1": header(elf.EM_AARCH64, elf.ET_DYN)}), WrongArch},
		"foreign as data":      {name, with(map[string]string{"a/attach.so": header(elf.EM_AARCH64, elf.ET_DYN)}), ""},
		"foreign object":       {name, with(map[string]string{"a/x.o": header(elf.EM_AARCH64, elf.ET_REL)}), ""},
		"other Python":         {"a-1-cp311-cp311-manylinux2014_x86_64.whl", whole, WrongTags},
		"other machine":        {"a-1-cp312-cp312-manylinux2014_aarch64.whl", whole, WrongTags},
		"newer libc":           {"a-1-cp312-cp312-manylinux_2_39_x86_64.whl", whole, WrongTags},
		"WHEEL of another":     {name, with(map[string]string{"a-1.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: cp312-cp312-manylinux2014_aarch64\n"}), WrongTags},
		"WHEEL 2":              {name, with(map[string]string{"a-1.dist-info/WHEEL": "Wheel-Version: 2.0\nTag: py3-none-any\n"}), Invalid},
		"no WHEEL":             {name, with(map[string]string{"a-1.dist-info/WHEEL": ""}), Invalid},
		"another's name":       {name, with(map[string]string{"a-1.dist-info/METADATA": "Name: b\nVersion: 1\n"}), Invalid},
		"another's version":    {name, with(map[string]string{"a-1.dist-info/METADATA": "Name: a\nVersion: 2\n"}), Invalid},
		"no RECORD":            {name, with(map[string]string{"a-1.dist-info/RECORD": "a/__init__.py,,\n"}), Corrupt},
		"missing":              {name, with(map[string]string{"a-1.dist-info/RECORD": "a/gone.py,,\n"}), Corrupt},
		"changed, CRC and all": {name, with(map[string]string{"a-1.dist-info/RECORD": "a/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\na/_c.cpython-312-x86_64-linux-gnu.so,,\na-1.dist-info/METADATA,,\na-1.dist-info/WHEEL,,\n"}), Corrupt},
		"weak digest":          {name, with(map[string]string{"a-1.dist-info/RECORD": "a/__init__.py,md5=x,\na/_c.cpython-312-x86_64-linux-gnu.so,,\na-1.dist-info/METADATA,,\na-1.dist-info/WHEEL,,\n"}), Invalid},
		"added":                {name, pack(t, good, func(z *zip.Writer) { z.Create("a/added.py") }), Corrupt},
		"twice":                {name, pack(t, good, func(z *zip.Writer) { z.Create("a/__init__.py") }), Invalid},
		"outside":              {name, pack(t, good, func(z *zip.Writer) { z.Create("../x") }), Invalid},
		"no wheel":             {name, pack(t, map[string]string{"a-1.dist-info/RECORD": "", "b-1.dist-info/RECORD": ""}), Invalid},
		"no name":              {"a.whl", whole, Invalid},
	} {
		file := filepath.Join(t.TempDir(), c.file)
		if err := os.WriteFile(file, c.data, 0o644); err != nil {
			t.Fatal(err)
		}
		w, err := Check(file, on)
		f, _ := IsFault(err)
		if got := map[bool]string{true: ""}[err == nil]; f != nil {
			got = f.Class
			if got != c.class {
				t.Errorf("%s: %s: %v, want %q", what, got, err, c.class)
			}
		} else if err != nil || c.class != "" {
			t.Errorf("%s: %v, want %q", what, err, c.class)
		}
		if what == "whole" && (w.Project != "a" || w.RequiresPython != ">=3.8" || len(w.Requires) != 1 || len(w.Odd) != 1 || w.SHA256 != fmt.Sprintf("%x", sha256.Sum256(whole))) {
			t.Errorf("%+v", w)
		}
	}
	if _, err := Check(filepath.Join(t.TempDir(), name), on); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a wheel that is not there: %v", err)
	}
}

func FuzzRequirement(f *testing.F) {
	f.Add("a[b]>=1,<2; python_version < '3.8' and (extra == 'x' or os_name in 'nt')")
	on := target(f, "x86_64", "3.12", "2.31")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRequirement(text)
		if err != nil {
			if r.String() != "" {
				t.Errorf("%q: an error and %q", text, r)
			}
			return
		}
		again, err := ParseRequirement(r.String())
		if err != nil || again.String() != r.String() {
			t.Errorf("%q: %q, then %q, %v", text, r, again, err)
		}
		r.Allows("1.0")
		on.Applies(r, []string{"x"})
		on.AppliesElsewhere(r, nil)
	})
}

func FuzzCheck(f *testing.F) {
	f.Add(pack(f, map[string]string{"a-1.dist-info/METADATA": "Name: a\nVersion: 1\n", "a-1.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n", "a.so": header(elf.EM_AARCH64, elf.ET_DYN)}))
	on := target(f, "x86_64", "3.12", "2.31")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(dir, "a-1-py3-none-any.whl")
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Check(file, on); err != nil {
			if _, ok := IsFault(err); !ok {
				t.Errorf("no fault: %v", err)
			}
		}
	})
}
