package kernels_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"fence/pkg/sif"
	"fence/test/bed"
	"fence/test/images"
	"fence/test/kernels"
)

// tricky has RUN lines whose changes an overlay keeps in each of its ways, and owners that no disk can hold.
const tricky = `FROM base
RUN mkdir -p /l/a/b /l/c/d /l/e && echo one > /l/a/f && echo two > /l/a/b/g && echo three > /l/c/d/h && ln -s f /l/a/link && ln /l/a/f /l/a/same
RUN rm -r /l/a && mkdir /l/a && echo new > /l/a/n && mv /l/c /l/moved && mv /l/e /l/empty && mv /l/moved/d /l/moved/dd
RUN rm /l/moved/dd/h /home/bob/.profile && rm -r /opt && echo a file > /opt && rm /lnkdir && mkdir /lnkdir && echo in > /lnkdir/x && rm -r /home/bob && mkdir -p /home/bob/again && chown -R bob:bobg /home/bob
RUN chown 1000:1001 /l/a/n && chown -h 5:6 /etc/alias && mkfifo /fifo && chown 7:8 /fifo && mknod /null c 1 3 && mknod /disk b 8 0 && chmod 600 /disk && mkdir /dir && chown 3:4 /dir && cp /bin/busybox /su && chown 0:999 /su && chmod 4755 /su && cp /su /su2 && chown 1:1 /su2 && stat -c '%u:%g %a %n' /su /su2 /fifo /dir /etc/shadow /home/bob > /seen
RUN ln /l/a/n /hard && ln /bin/busybox /bin/again && ln /home/bob/again/../../../etc/shadow /shadow && chmod 0 /dir /lnkdir/x
USER bob
RUN id > /tmp/id && mkdir /tmp/d && echo mine > /tmp/d/mine && touch /tmp/other
USER root
RUN rm /tmp/other && mv /tmp/d /tmp/e && echo more >> /tmp/e/mine && mkdir -p /l/a && rm -r /l/moved && mkdir -m 2775 /l/moved && chgrp 999 /l/moved
COPY --chown=bob:docker <<EOF /l/moved/copied
copied
EOF
WORKDIR /srv/dir
RUN --mount=type=cache,target=/cache --mount=type=tmpfs,target=/l/a echo lost > /l/a/lost && echo kept > kept && tar -c -f - /home /etc/shadow 2>/dev/null | (mkdir /t && tar -x -f - -C /t)
`

var tasks = map[string]string{
	"task.toml":              "version = \"1.0\"\n",
	"instruction.md":         "Do it.\n",
	"environment/Dockerfile": tricky,
}

// What sifbuild makes as an ordinary user is the same image on every kernel, whatever its scratch folder is on.
func TestSifbuild(t *testing.T) {
	bed.Require(t, "users")
	want := onThisNode(t)
	for _, k := range kernels.Fetched(t) {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			spec := kernels.Spec{Kernel: k, Disk: 512 << 20, Files: sifbuildFiles(t)}
			spec.Commands = []kernels.Command{
				{Argv: []string{"/usr/bin/attempts", "victim"}, Background: true},
				{Argv: []string{"sh", "-c", attempt}},
				{Argv: []string{"sh", "-c", "exec unshare -r -p -f --mount-proc fence --policy build -- attempts try 1"}},
			}
			places := []string{"/disk", "/tmp"}
			for _, scratch := range places {
				cache := "/home/alice/cache" + strings.ReplaceAll(scratch, "/", "-")
				spec.Commands = append(spec.Commands,
					kernels.Command{Argv: []string{"/usr/bin/sifbuild", "build", "/data/task", "--cache", cache, "--scratch", scratch, "--base", "base=/data/base", "--require", "none"}, Seconds: 600},
					kernels.Command{Argv: []string{"sh", "-c", "cat " + cache + "/logs/*.log >&2; ls -A " + scratch + " >&2; cat " + cache + "/sif/*.sif"}, Seconds: 300})
			}
			r := kernels.Boot(t, spec)
			t.Logf("%s: Landlock ABI %d, %v in all", k.Release, r.Facts.LandlockABI, r.Took.Round(1e8))
			t.Run("abstract sockets", func(t *testing.T) {
				for i, want := range [][]string{{"ok"}, append(denied["abstract socket"], "EAFNOSUPPORT")} {
					said := map[string]string{}
					o := r.Outcomes[1+i]
					if err := json.Unmarshal(o.Stdout, &said); err != nil || !slices.Contains(want, said["abstract socket"]) {
						t.Errorf("with the node's network, behind the fence %v: %v, want %q: %s", i == 1, err, want, show(o))
					}
				}
			})
			for i, scratch := range places {
				t.Run("scratch"+strings.ReplaceAll(scratch, "/", " "), func(t *testing.T) {
					built, image := r.Outcomes[3+2*i], r.Outcomes[4+2*i]
					if scratch == "/tmp" && !r.Facts.TmpfsXattr {
						lines := strings.Split(string(built.Stderr), "\n")
						if built.Exit != 2 || len(built.Stdout) > 0 || len(lines) != 3 || !strings.HasPrefix(lines[0], "sifbuild: nothing can be built here: the file system of the scratch folder /tmp ") || !strings.HasPrefix(lines[1], "hint: --scratch DIR ") {
							t.Errorf("tmpfs keeps no owners here, so one line was to say so: %s", show(built))
						}
						t.Logf("%s", built.Stderr)
						return
					}
					if built.Exit != 0 {
						t.Fatalf("%s\nlog:\n%s", show(built), image.Stderr)
					}
					t.Logf("%d ms\n%s", built.Millis, built.Stderr)
					if got := tree(t, image.Stdout); got != want {
						t.Errorf("not what it is on this node (-: here, +: there)\n%s", images.DiffLines(want, got))
					}
				})
			}
		})
	}
}

// onThisNode is what the same gives here.
func onThisNode(t *testing.T) string {
	t.Helper()
	dir := bed.TempDir(t)
	uid, gid, _ := bed.User(t)
	for name, text := range tasks {
		p := filepath.Join(dir, "task", name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	layout(t, filepath.Join(dir, "base"))
	own := filepath.Join(dir, "own")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil && p != dir {
			err = os.Lchown(p, uid, gid)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := bed.Command(t, bed.Bin(t, "sifbuild"), "build", filepath.Join(dir, "task"), "--cache", own, "--scratch", own, "--base", "base="+filepath.Join(dir, "base"), "--require", "none", "--no-smoke")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	made, err := filepath.Glob(own + "/sif/*.sif")
	if err != nil || len(made) != 1 {
		t.Fatalf("%v: %q", err, made)
	}
	data, err := os.ReadFile(made[0])
	if err != nil {
		t.Fatal(err)
	}
	return tree(t, data)
}

// tree is all that a SIF of these bytes holds.
func tree(t *testing.T, data []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "image.sif")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	image, err := sif.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	all, err := images.Read(images.Contents(image))
	if err != nil {
		t.Fatal(err)
	}
	return images.Diff(images.Empty(), all, false)
}

// layout writes the base of the golden cases as an OCI layout into a new folder.
func layout(t *testing.T, dir string) {
	t.Helper()
	all, err := images.Bases()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all[0].WriteLayout(dir); err != nil {
		t.Fatal(err)
	}
}

// sifbuildFiles are sifbuild, what it needs on a node, a task and its base.
func sifbuildFiles(t *testing.T) []kernels.File {
	t.Helper()
	list := []kernels.File{{Path: "/usr/bin/attempts", From: build(t, runtime.GOARCH, "fence/test/kernels/attempts")}}
	for _, name := range []string{"fence", "sifbuild"} {
		list = append(list, kernels.File{Path: "/usr/bin/" + name, From: bed.Bin(t, name)})
	}
	list = append(list, program(t, "mksquashfs")...)
	for name, text := range tasks {
		list = append(list, kernels.File{Path: "/data/task/" + name, Data: []byte(text), Mode: 0o644})
	}
	base := filepath.Join(t.TempDir(), "base")
	layout(t, base)
	err := filepath.WalkDir(base, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			list = append(list, kernels.File{Path: "/data/base" + strings.TrimPrefix(p, base), From: p, Mode: 0o644})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

var library = regexp.MustCompile(`(?m)^\t(?:\S+ => )?(/\S+) \(0x`)

// program is a program of this node, with the libraries that it is linked with.
func program(t *testing.T, name string) []kernels.File {
	t.Helper()
	from, err := exec.LookPath(name)
	if err != nil {
		kernels.SkipOrFail(t, "%v", err)
	}
	list := []kernels.File{{Path: "/usr/bin/" + name, From: from}}
	out, err := exec.Command("ldd", from).Output()
	if err != nil {
		t.Fatalf("the libraries of %s: %v", from, err)
	}
	for _, found := range library.FindAllStringSubmatch(string(out), -1) {
		list = append(list, kernels.File{Path: found[1], From: found[1]})
		if strings.HasPrefix(filepath.Base(found[1]), "libc.so") { // which loads another when a thread ends
			gcc := filepath.Join(filepath.Dir(found[1]), "libgcc_s.so.1")
			list = append(list, kernels.File{Path: gcc, From: gcc})
		}
	}
	return list
}
