package sif

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// odd are values that a script could get wrong.
var odd = map[string]string{
	"PLAIN": "b", "QUOTES": `a'b"c''`, "LINES": "one\ntwo\n", "BACKTICK": "`id`", "DOLLAR": "$(id) $HOME ${X} $", "BACKSLASH": `a\\b\n\`,
	"BOTH": `\'`, "ANSI": `$'x'`, "HISTORY": "!x!!", "TILDE": "~", "SPACES": " a  b ", "GLOB": "*", "RETURN": "\r", "ESCAPE": `%s\u000A`,
	"HASH": "#x", "EQUALS": "=y", "CONTROL": "\x01\x7f\t", "UTF8": "héllo ☃", "CRLF": "a\r\nb\r\r\n", "HOME": "/opt/home", "PS1": "mine",
	"LD_LIBRARY_PATH": "/opt/lib", "SHELL": "/bin/false", "IFS": "x", "TERM": "dumb", "_X1": "1",
}

func oddConfig() v1.Config {
	var c v1.Config
	for name, value := range odd {
		c.Env = append(c.Env, name+"="+value)
	}
	return c
}

func TestEnvScript(t *testing.T) {
	c := v1.Config{Env: []string{"PATH=/opt/bin:/bin", "A=it's", "A.B=c", "UID=7", "LOST", "key=v", "EMPTY="}}
	script, warnings := EnvScript(c)
	want := "#!/bin/sh\nexport PATH='/opt/bin:/bin'\nexport A='it'\"'\"'s'\nexport key='v'\nexport EMPTY=''\n"
	if string(script) != want {
		t.Errorf("got  %q\nwant %q", script, want)
	}
	for i, name := range []string{`"A.B"`, "UID", `"LOST"`, "key"} {
		if i >= len(warnings) || !strings.Contains(warnings[i], name) {
			t.Errorf("warnings %q: the %d. does not name %s", warnings, i+1, name)
		}
	}
	script, warnings = EnvScript(v1.Config{Env: []string{"B=caf\xe9", "PATH=/"}})
	if want := "#!/bin/sh\nexport B='caf\uFFFD'\nexport PATH='/'\n"; string(script) != want || len(warnings) != 1 {
		t.Errorf("%q, %q", script, warnings)
	}
	script, warnings = EnvScript(v1.Config{})
	if want := "#!/bin/sh\nexport PATH='" + DefaultPath + "'\n"; string(script) != want || warnings != nil {
		t.Errorf("%q, %q", script, warnings)
	}
}

// The values also survive the machine's own shell, which Singularity before
// 3.6 reads the script with.
func TestEnvScript_InAShell(t *testing.T) {
	c := oddConfig()
	c.Env = append(c.Env, "PATH=/usr/bin:/bin")
	script, _ := EnvScript(c)
	out, err := exec.Command("/bin/sh", "-c", string(script)+"exec env -0").Output()
	if err != nil {
		t.Fatal(err)
	}
	checkOdd(t, string(out))
}

func checkOdd(t *testing.T, env0 string) {
	t.Helper()
	got := map[string]string{}
	for kv := range strings.SplitSeq(env0, "\x00") {
		name, value, _ := strings.Cut(kv, "=")
		got[name] = value
	}
	for name, want := range odd {
		if got[name] != want {
			t.Errorf("%s is %q, not %q", name, got[name], want)
		}
	}
}

func TestRunscript(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name   string
		config v1.Config
		args   []string
		want   string
	}{
		{"entry point and arguments", v1.Config{Entrypoint: []string{"printf", "[%s]"}, Cmd: []string{"a b", "$HOME", "it's"}}, nil, "[a b][$HOME][it's]"},
		{"the caller's arguments replace CMD", v1.Config{Entrypoint: []string{"printf", "[%s]"}, Cmd: []string{"a"}}, []string{"x y", "z"}, "[x y][z]"},
		{"only CMD", v1.Config{Cmd: []string{"printf", "[%s]", "c"}}, nil, "[c]"},
		{"only CMD, replaced", v1.Config{Cmd: []string{"false"}}, []string{"printf", "r"}, "r"},
		{"neither: a shell", v1.Config{}, nil, ""},
		{"folder", v1.Config{Cmd: []string{"pwd"}, WorkingDir: dir}, nil, dir + "\n"},
		{"CMD that looks like an option", v1.Config{Entrypoint: []string{"printf", "[%s]"}, Cmd: []string{"--x", "-n"}}, nil, "[--x][-n]"},
	} {
		cmd := exec.Command("/bin/sh", append([]string{"-c", string(Runscript(c.config)), "runscript"}, c.args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != c.want {
			t.Errorf("%s: %q, %v, not %q", c.name, out, err, c.want)
		}
	}
	cmd := exec.Command("/bin/sh", "-c", string(Runscript(v1.Config{Cmd: []string{"echo", "ran"}, WorkingDir: dir + "/gone"})))
	if out, err := cmd.Output(); err == nil || len(out) > 0 {
		t.Errorf("ran outside a folder that is missing: %q", out)
	}
}

func TestAdd(t *testing.T) {
	outside := t.TempDir()
	root := t.TempDir()
	for _, p := range []string{"etc", "tmp", metaDir + "/env"} {
		if err := os.MkdirAll(filepath.Join(root, p), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for p, text := range map[string]string{"etc/hosts": "mine", metaDir + "/env/10-evil.sh": "echo evil"} {
		if err := os.WriteFile(filepath.Join(root, p), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(root, "var")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // adding again changes nothing
		if err := Add(root, Overlay(v1.Config{Env: []string{"A=b"}, WorkingDir: "/w"}, map[string]string{"l": "v"})); err != nil {
			t.Fatal(err)
		}
	}
	for p, want := range map[string]fs.FileMode{
		"tmp": fs.ModeDir | 0o750, "dev": fs.ModeDir | 0o755, "root": fs.ModeDir | 0o700, envPath: 0o755, "etc/hosts": 0o600, "etc/resolv.conf": 0o644,
	} {
		if st, err := os.Lstat(filepath.Join(root, p)); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v, not %v", p, st, err, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(root, metaDir, "env/10-evil.sh")); err == nil {
		t.Error("a script of the image's stayed in " + metaDir)
	}
	if data, _ := os.ReadFile(filepath.Join(root, "etc/hosts")); string(data) != "mine" {
		t.Errorf("etc/hosts is %q now", data)
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("%v outside the root", left)
	}
	data, err := os.ReadFile(filepath.Join(root, metaDir, "labels.json"))
	if err != nil || string(data) != "{\n\t\"l\": \"v\",\n\t\"sifbuild.workdir\": \"/w\"\n}\n" {
		t.Errorf("%q, %v", data, err)
	}
}

// What an image has in the place of Apptainer's folder does not lead out.
func TestAdd_LinkAsMetadata(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, metaDir)); err != nil {
		t.Fatal(err)
	}
	if err := Add(root, Overlay(v1.Config{}, nil)); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(outside); len(left) != 1 {
		t.Errorf("the folder outside holds %v", left)
	}
	if st, err := os.Lstat(filepath.Join(root, metaDir)); err != nil || !st.IsDir() {
		t.Errorf("%v, %v", st, err)
	}
}
