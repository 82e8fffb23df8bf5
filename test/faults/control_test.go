package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fence/test/faults/inject"
)

// Without a fence every attempt of the checker works, or reaches the kernel's
// own code: else its denials inside would prove nothing.
func TestControl(t *testing.T) {
	s := newStage(t)
	works := map[string][]string{
		"socket.inet": {"ok"}, "socket.inet.udp": {"ok"}, "socket.inet6": {"ok"}, "socket.unix": {"ok"},
		"unshare": {"EINVAL"}, // the checker has threads
		"mount":   {"EFAULT"}, "clone3": {"EFAULT"}, "setns": {"EBADF"}, "ptrace": {"ok"}, "process_vm_readv": {"ok"},
		"keyctl": {"ok", "ENOKEY"}, "shmget": {"ok"},
		"kill": {"ok"}, "victim.environ": {"ok"}, "abstract": {"ok"}, "agent": {"ok"}, "tcp": {"ok"}, "tcp.mapped": {"ok"},
		"decoy.read": {"ok"}, "decoy.write": {"ok"}, "decoy.create": {"ok"}, "decoy.stat": {"ok"}, "decoy.by-root": {"ok"}, "decoy.by-dots": {"ok"},
		"fake.read": {"ok"}, "fake.write": {"ok"}, "fake.create": {"ok"}, "fake.stat": {"ok"}, "fake.by-root": {"ok"}, "fake.by-dots": {"ok"},
		"cwd.secret": {"ok"}, "cwd.up": {"ok"}, "home.netrc": {"ok"}, "home.stat": {"ok"}, "fd7.secret": {"ok"},
		"shown.read": {"ok"}, "shown.write": {"ok"}, "shown.chmod": {"ok"},
		"mknod./dev/shm": {"EPERM"}, "mknod./tmp": {"EPERM"}, "device": {"ok"}, "ioctl": {"ENOTTY"}, "proc.write": {"ok"},
	}
	for _, sc := range []*scene{{name: "machine", stage: s}, {name: "node", root: "node", stage: s}, {name: "container", root: "container", stage: s}} {
		t.Run(sc.name, func(t *testing.T) {
			config, err := json.Marshal(sc.config())
			if err != nil {
				t.Fatal(err)
			}
			o, err := sc.start(t, nil, nil, func(p *inject.Process) {
				// The checker in the place of the launcher.
				i := slices.IndexFunc(p.Argv, func(a string) bool { return filepath.Base(a) == "fence" })
				if p.Argv[i] == p.Path {
					p.Path = s.checker
				}
				p.Argv = append(p.Argv[:i:i], s.checkerIn(sc), string(config))
			})
			if err != nil {
				t.Fatal(err)
			}
			f := o.facts
			if f == nil {
				t.Fatalf("the checker cannot say what it sees: %s %s", o.exit(), o.stderr)
			}
			for what, want := range works {
				if got := f.Tried[what]; !slices.Contains(want, got) {
					t.Errorf("%s: %q, want %v", what, got, want)
				}
			}
			for what, got := range f.Tried {
				if strings.HasPrefix(what, "planted.") && got != "ok" || strings.HasPrefix(what, "protected.") && got != "ok" {
					t.Errorf("%s: %q, want ok", what, got)
				}
			}
			if sc.container() != (f.Tried["protected.rename /.fence"] != "") {
				t.Errorf("the protected places were tried: %v", f.Tried)
			}
			if f.NoNewPrivs != "0" || f.Seccomp != "0" || f.Layers != 0 || f.FDs["7"] == "" || f.FDs["8"] == "" || !slices.Contains(f.Env, "HF_TOKEN") ||
				f.Caps["CapBnd"] == "" || f.Places["/proc"].ReadOnly || f.NS["net"] != own("net") {
				t.Errorf("a protection is in force without a fence: %+v", f)
			}
			// And all of it is noticed.
			var bad []string
			sc.judgeFacts(f, func(format string, _ ...any) { bad = append(bad, format) })
			if len(bad) < len(works)-5 {
				t.Errorf("only %d complaints about a command without a fence", len(bad))
			}
		})
	}
}

// A launcher with a protection taken out must not pass. Each is built from the
// sources with one text replaced.
func TestBrokenLaunchersAreNoticed(t *testing.T) {
	if !full {
		t.Skip("builds launchers; with TEST_FULL=1")
	}
	s := newStage(t)
	const enforce, selftest, mounts = "pkg/sandbox/enforce.go", "pkg/sandbox/selftest.go", "pkg/sandbox/mounts.go"
	noSelfTest := edit{enforce, "return selfTest(rs, keep, session)", "_ = session\n\treturn nil"}
	noSettled := edit{enforce, "if err := settled(rs, keep, cut); err != nil {", "if cut && !cut {"}
	noLandlock := edit{enforce, "if err := restrict(rs, lowers); err != nil {", "if err := error(nil); err != nil {"}
	noMask := edit{mounts, "	case MountMaskDir:\n", "	case MountMaskDir:\n		if op.Holds == 0 {\n			return nil\n		}\n"}
	built := map[string]*stage{} // by the edits
	for _, c := range []struct {
		name  string
		edits []edit
		base  string // the launch without a fault: "ends with 125", a complaint, or "" if nothing is wrong with it
		fault string // else the call that is skipped
		want  string // and the complaint
	}{
		{"Landlock left out", []edit{noLandlock}, "ends with 125", "", ""},
		{"a mask left out", []edit{noMask}, "ends with 125", "", ""},
		{"Landlock and the self-test left out", []edit{noLandlock, noSelfTest}, "Landlock layers", "", ""},
		{"a mask and the self-test left out", []edit{noMask, noSelfTest, noSettled}, "decoy.read", "", ""},
		{"the self-test left out: Landlock", []edit{noSelfTest}, "", "landlock_restrict_self", "Landlock layers"},
		{"the self-test left out: filter", []edit{noSelfTest}, "", "seccomp(SET_MODE_FILTER)", "seccomp mode"},
		{"the self-test left out: filter, supervised", []edit{noSelfTest}, "", "seccomp(SET_MODE_FILTER)", "seccomp mode"},
		{"the self-test left out: descriptors", []edit{noSelfTest, noSettled}, "", "close_range", "fd7.secret"},
		{"the self-test left out: mask", []edit{noSelfTest, noSettled}, "", "mount " + s.config.Decoy, "decoy.read"},
		{"no test of descriptors", []edit{{selftest, "if fd <= 2 ||", "if fd >= 0 ||"}}, "", "close_range", "fd7.secret"},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := fmt.Sprint(c.edits)
			if built[key] == nil {
				built[key] = s.with(t, c.edits)
			}
			sc := &scene{name: c.name, stage: built[key]}
			if strings.HasSuffix(c.name, "supervised") {
				sc.nonet, sc.flags = true, []string{"--net", "loopback"}
			}
			base := sc.launch(t, nil)
			bad := strings.Join(sc.judge(base, nil), "\n")
			switch {
			case c.base == "ends with 125":
				if base.Ran || base.ended() != "125" {
					t.Errorf("ran: %v, %s, %s", base.Ran, base.exit(), base.stderr)
				}
				t.Logf("%s", base.message())
				return
			case c.base == "" && bad != "" || c.base != "" && !strings.Contains(bad, c.base):
				t.Fatalf("the launch without a fault: %q, want a complaint about %q", bad, c.base)
			case c.base != "":
				return
			}
			name, path, _ := strings.Cut(c.fault, " ")
			// The last one: before it libseccomp asks what there is, with the same call.
			var fault inject.Fault
			for _, call := range base.Calls {
				if call.Name == name && (path == "" || call.Path == path) {
					fault.Address = call.Address
				}
			}
			o := sc.launch(t, &fault)
			if bad := strings.Join(sc.judge(o, &fault), "\n"); !o.Hit || !strings.Contains(bad, c.want) {
				t.Errorf("%s skipped (came: %v): %q, want a complaint about %q", c.fault, o.Hit, bad, c.want)
			}
		})
	}
}

type edit struct{ file, old, new string }

// with is the stage with a launcher built from edited sources.
func (s *stage) with(t *testing.T, edits []edit) *stage {
	t.Helper()
	module, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	texts := map[string]string{}
	for _, e := range edits {
		if texts[e.file] == "" {
			data, err := os.ReadFile(filepath.Join(module, e.file))
			if err != nil {
				t.Fatal(err)
			}
			texts[e.file] = string(data)
		}
		if strings.Count(texts[e.file], e.old) != 1 {
			t.Fatalf("%s has changed: %q is not in it once; this test must follow", e.file, e.old)
		}
		texts[e.file] = strings.Replace(texts[e.file], e.old, e.new, 1)
	}
	replace := map[string]string{}
	for file, text := range texts {
		to := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(module, file)] = to
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	broken := *s
	broken.fence = filepath.Join(s.dir, "bin", strings.ReplaceAll(filepath.Base(t.Name()), " ", "-"), "fence")
	cmd := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-trimpath", "-buildvcs=false", "-tags", "osusergo,netgo",
		"-ldflags", `-s -w -linkmode external -extldflags "-static"`, "-o", broken.fence, "./cmd/fence")
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building a broken launcher: %v\n%s", err, out)
	}
	for _, p := range []string{filepath.Dir(broken.fence), broken.fence} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &broken
}
