package guide

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"fence/pkg/nodecheck"
)

// typeThis is the line of a refusal that is to be typed.
var typeThis = regexp.MustCompile(`(?m)^hint: start the container without it: (apptainer exec -C --no-mount [^ ]+) \(eval "\$\(fence env\)" does it for the whole job\)$`)

// Where fence cannot cover what the site mounts, it does not run the command.
// It says what to type, and exactly that works: with it there is nothing left
// to hide.
func TestRefused_AndTheLineToType(t *testing.T) {
	p := newPlace(t)
	leave := ` -- sh -c 'echo ran; echo mark >` + p.path("mark") + `'`
	if p.ok(p.sh(`apptainer exec img.sif sh -c 'echo ran; echo mark >` + p.path("mark") + `'`)); p.read("mark") != "mark\n" {
		t.Fatal("the control left no mark")
	}
	os.Remove(p.path("mark"))
	for _, tc := range []struct {
		name, start string
		limits      []string
		flags, says string
		first       string // the line
	}{
		{"the site's default", "apptainer exec", nested, "", "/proj/team is visible here and must be hidden", "apptainer exec -C --no-mount /proj/team,home,cwd"},
		{"asked for", "apptainer exec", nil, " --form bare", "/proj/team is visible here and must be hidden", "apptainer exec -C --no-mount /proj/team,home,cwd"},
		{"without the project", "apptainer exec --no-mount /proj/team,cwd", nested, "", "/proj/users/fencer is visible here and must be hidden", "apptainer exec -C --no-mount home,cwd"},
		{"its own /tmp", "apptainer exec -C", nested, "", "/proj/users/fencer is visible here and must be hidden", "apptainer exec -C --no-mount home,cwd"},
		// What the person bound is for them to leave out, or to open.
		{"a folder of one's own", "apptainer exec -C --no-mount home --bind $PWD:/data", nested, "", "/data is visible here and must be hidden", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := place{t, p.dir}
			r := p.on(tc.limits, tc.start+` `+bind+` img.sif /.fence/fence`+tc.flags+leave)
			if _, err := os.Stat(p.path("mark")); r.code != 125 || r.stdout != "" || err == nil {
				t.Fatalf("exit code %d, want 125 and nothing run: %q %v", r.code, r.stdout, err)
			}
			lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
			if !strings.HasPrefix(lines[0], "fence: not fenced, and the command was not run: ") || !strings.Contains(lines[0], tc.says) {
				t.Errorf("it says %q", lines[0])
			}
			for _, l := range lines[1:] {
				if !strings.HasPrefix(l, "hint: ") {
					t.Errorf("it says %q", l)
				}
			}
			m := typeThis.FindAllStringSubmatch(r.stderr, -1)
			if tc.first == "" {
				if len(m) != 0 || !strings.Contains(r.stderr, `hint: leave out the --bind of /data, or open it with a reason: --read /data --why "..."`) {
					t.Errorf("it says\n%s", r.stderr)
				}
				return
			}
			if len(m) != 1 || m[0][1] != tc.first {
				t.Fatalf("the line to type: %q, want %q", m, tc.first)
			}
			typed := m[0][1]
			r = p.on(tc.limits, typed+` `+bind+` img.sif /.fence/fence`+tc.flags+leave)
			if _, err := os.Stat(p.path("mark")); r.stdout != "ran\n" || err == nil {
				t.Errorf("typed: %s: exit code %d, %q, and the mark: %v\n%s", typed, r.code, r.stdout, err, r.stderr)
			}
			r = p.on(tc.limits, typed+` `+bind+` img.sif /.fence/fence explain`+tc.flags)
			if r.code != 0 || !strings.Contains(r.stdout, "nothing that the policy hides exists here") || !strings.Contains(r.stdout, "form         bare") {
				t.Errorf("explain, typed the same way (exit code %d):\n%s%s", r.code, r.stdout, r.stderr)
			}
			// And so does the other advice.
			r = p.on(tc.limits, `eval "$(fence env)"; apptainer exec img.sif /.fence/fence`+tc.flags+` -- echo ran`)
			if p.ok(r); r.stdout != "ran\n" {
				t.Errorf("with fence env: %q", r.stdout)
			}
		})
	}
}

// Each weakness is accepted by its own name, with a reason.
func TestRefused_UntilAccepted(t *testing.T) {
	p := newPlace(t)
	run := func(flags string) result {
		return p.on(nested, `apptainer exec `+bind+` img.sif /.fence/fence `+flags+` -- echo ran`)
	}
	if r := run(`--accept landlock-hide --why "a test"`); r.code != 125 || !strings.Contains(r.stderr, `--accept host-tmp --why "..."`) ||
		strings.Contains(r.stderr, "/proj/team is visible") || strings.Contains(r.stderr, "--accept landlock-hide") {
		t.Errorf("landlock-hide alone: exit code %d\n%s", r.code, r.stderr)
	}
	if r := run(`--accept host-tmp --why "a test"`); r.code != 125 || !strings.Contains(r.stderr, `hint: or take the risk by name: --accept landlock-hide `) ||
		strings.Contains(r.stderr, "/tmp is the host's") || strings.Contains(r.stderr, "--accept host-tmp") {
		t.Errorf("host-tmp alone: exit code %d\n%s", r.code, r.stderr)
	}
	if r := run(`--accept landlock-hide`); r.code != 2 || !strings.HasPrefix(r.stderr, "fence: --accept: landlock-hide is opened without a reason\n") {
		t.Errorf("without a reason: exit code %d\n%s", r.code, r.stderr)
	}
	if r := run(accept); r.code != 0 || r.stdout != "ran\n" {
		t.Errorf("all accepted: exit code %d\n%s", r.code, r.stderr)
	}
	if r := run(`--form namespace`); r.code != 125 || r.stdout != "" {
		t.Errorf("--form namespace where there is none: exit code %d\n%s", r.code, r.stderr)
	}
	r := p.on(nested, `apptainer exec `+bind+` img.sif /.fence/fence check`)
	if r.code != 1 || !strings.Contains(r.stdout, "strict        cannot run here\n") || !strings.Contains(r.stdout, "/proj/team is visible here") {
		t.Errorf("fence check: exit code %d\n%s", r.code, r.stdout)
	}
}

// A node without user namespaces has no rootless Apptainer either. On the bare
// node fence does not run the command.
func TestRefused_NoUserNamespaces(t *testing.T) {
	p := newPlace(t)
	none := []string{"max_user_namespaces=0"}
	if r := p.on(none, `apptainer exec img.sif true`); r.code == 0 {
		t.Error("Apptainer runs without user namespaces: then fence must be tried there")
	}
	r := p.on(none, `fence -- sh -c 'echo ran; echo x >mark'`)
	if _, err := os.Stat(p.path("mark")); r.code != 125 || r.stdout != "" || err == nil {
		t.Errorf("exit code %d, want 125 and nothing run: %q, %v", r.code, r.stdout, err)
	}
	if !strings.Contains(r.stderr, "hint: run it on a node that allows user namespaces (fence check), or in a container that does not mount it, ") {
		t.Errorf("it says\n%s", r.stderr)
	}
	if r := p.on(none, `fence check`); r.code != 1 || !strings.Contains(r.stdout, "user ns         no: ") {
		t.Errorf("fence check: exit code %d\n%s", r.code, r.stdout)
	}
	// One is for the command, the others are for what is taken along.
	r = p.on([]string{"max_mnt_namespaces=1"}, `fence -- sh -c 'echo ran'`)
	if r.code != 125 || r.stdout != "" || !strings.Contains(r.stderr, "no space left on device: no more are allowed here: user.max_mnt_namespaces") {
		t.Errorf("one mount namespace: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if h := nodecheck.Detect(); h.UserNS.OK && h.Landlock.FS != 0 {
		if r := p.sh(`fence check`); r.code != 0 {
			t.Errorf("fence check on this node: exit code %d\n%s", r.code, r.stdout)
		}
	}
	// What a command in the container hears: the descriptor is the caller's, so is the way out.
	if r := p.sh(`eval "$(fence env)"; apptainer exec img.sif /.fence/fence -- sh -c 'echo ran' </`); r.code != 125 || r.stdout != "" ||
		!strings.Contains(r.stderr, "hint: give it a file, a pipe or /dev/null: </dev/null") {
		t.Errorf("a folder as standard input: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}
