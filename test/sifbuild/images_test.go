package sifbuild

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fence/test/bed"
)

// A use is what shows that an image works: a command in it and what it prints.
type use struct {
	name string
	argv []string
	want string
}

// used runs commands in the image in every way that people run images: each
// prints the same. runs is what the image itself is for, if it has the shell
// that Apptainer needs for that.
func used(t *testing.T, p *place, image, runs string, uses ...use) {
	t.Helper()
	exec := map[string]string{"exec": image}
	if runs != "" {
		instance := "sifbuild-" + filepath.Base(p.dir) + "-" + filepath.Base(image)[:8]
		t.Run("run", func(t *testing.T) { says(t, bed.Apptainer(t, "-q", "run", image), runs) })
		says(t, bed.Apptainer(t, "-q", "instance", "start", image, instance), "")
		defer func() { says(t, bed.Apptainer(t, "-q", "instance", "stop", instance), "") }()
		exec["instance"] = "instance://" + instance
	}
	for _, u := range uses {
		for how, what := range exec {
			t.Run(u.name+"/"+how, func(t *testing.T) {
				says(t, bed.Apptainer(t, append([]string{"-q", "exec", what}, u.argv...)...), u.want)
			})
		}
		t.Run(u.name+"/trial", func(t *testing.T) { says(t, trial(t, image, u.argv...), u.want) })
		t.Run(u.name+"/fence", func(t *testing.T) {
			says(t, trial(t, image, append([]string{"/.fence/fence", "--"}, u.argv...)...), u.want)
		})
	}
}

func says(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stdout.String() != want {
		t.Errorf("%q: %v, %q, want %q\n%s", cmd.Args, err, stdout.String(), want, stderr.String())
	}
}

// trial is a command in a container as rollout starts one: as user 0 of a
// namespace, nothing of the node mounted, changes in a folder, /.fence there.
func trial(t *testing.T, image string, argv ...string) *exec.Cmd {
	t.Helper()
	dir := bed.TempDir(t)
	args := []string{"-c", `eval "$("$0" env)" && exec apptainer -q exec --fakeroot --ignore-subuid --ignore-fakeroot-command -C --overlay "$@"`,
		bed.Bin(t, "fence"), dir, image}
	return bed.Command(t, "sh", append(args, argv...)...)
}

func TestImages_Small(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("busybox", `FROM busybox
ENV GREETING="it's me"
RUN mkdir -p /srv/data && echo $GREETING > /srv/data/f
WORKDIR /srv/data
CMD ["cat", "f"]
`)
	p.task("scratch", "FROM scratch\nCOPY inside /inside\nCOPY <<EOF /etc/f\nin it\nEOF\nENTRYPOINT [\"/inside\", \"cat\"]\nCMD [\"/etc/f\"]\n")
	p.program("scratch", "inside")
	all := p.build(nil)
	t.Run("busybox", func(t *testing.T) {
		used(t, p, all["busybox"].Image, "it's me\n",
			use{"environment", []string{"sh", "-c", `echo "$GREETING"; cat /srv/data/f`}, "it's me\nit's me\n"})
		says(t, trial(t, all["busybox"].Image, "sh", "-c", "id -u; echo x > /srv/data/f && rm -r /srv && ls /srv 2>/dev/null || echo gone"), "0\ngone\n")
	})
	t.Run("scratch", func(t *testing.T) {
		used(t, p, all["scratch"].Image, "", use{"content", []string{"/inside", "cat", "/etc/f"}, "in it\n"})
	})
}

// sources is an apt source for a release of Debian on the archive that this
// machine takes its packages from.
func sources(t *testing.T, release string) string {
	t.Helper()
	out, err := exec.Command("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Identifier: Packages").Output()
	if err != nil {
		bed.Missing(t, "apt (%v)", err)
	}
	for line := range strings.Lines(string(out)) {
		uri, suite, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.Contains(suite, "-") && !strings.Contains(suite, "/") {
			return "deb " + uri + " " + release + " main\n"
		}
	}
	bed.Missing(t, "a release of Debian in this machine's /etc/apt")
	return ""
}

// apt installs packages, and leaves no list behind.
func apt(packages string) string {
	return "RUN apt-get -o Acquire::Check-Valid-Until=false update && apt-get install -y --no-install-recommends " + packages + " && rm -rf /var/lib/apt/lists/*\n"
}

// tmux starts a session and says what came of it.
var tmux = use{"tmux", []string{"sh", "-c", `tmux -S /tmp/s new-session -d -s name 'echo in tmux > /tmp/out; tmux -S /tmp/s wait-for -S done; cat' &&
tmux -S /tmp/s wait-for done && cat /tmp/out && tmux -S /tmp/s list-sessions -F '#S #{session_windows}' && tmux -S /tmp/s kill-server`}, "in tmux\nname 1\n"}

// audit says what dpkg finds wrong: nothing.
var audit = use{"dpkg", []string{"dpkg", "--audit"}, ""}

// What people's Dockerfiles install with apt, pip and npm, on an old C library
// and on a newer one.
func TestImages_Packages(t *testing.T) {
	t.Parallel()
	long(t)
	bed.Require(t, "bullseye")
	p := newPlace(t)
	index, registry := pypi(t), npmRegistry(t)
	node, npm := nodejs(t)
	p.bases = append(p.bases, "bullseye="+bed.Root("bullseye"), "bookworm="+bed.Root("debian"))
	begin := "\nCOPY debian.list /etc/apt/sources.list.d/\nENV DEBIAN_FRONTEND=noninteractive\n" + apt("tmux openssh-client")
	end := "CMD [\"sh\", \"-c\", \"echo run; ssh -V 2>&1 | cut -c-7\"]\n"
	for name, dockerfile := range map[string]string{
		"bullseye": "FROM bullseye" + begin + end,
		"bookworm": "FROM bookworm" + begin + end,
		"pip":      "FROM bookworm" + begin + apt("python3-pip") + "RUN pip install --break-system-packages --index-url " + index + "/simple hello-sif\nCMD [\"hello-sif\"]\n",
		"npm": "FROM bookworm" + begin + "COPY --from=node " + filepath.Base(node) + " /usr/local/bin/node\nCOPY --from=npm . /opt/npm\nWORKDIR /app\n" +
			"RUN node /opt/npm/bin/npm-cli.js install --registry " + registry + " hello-sif\nCMD [\"node\", \"-e\", \"require('hello-sif')\"]\n",
	} {
		p.task(name, dockerfile)
		release := "bookworm"
		if name == "bullseye" {
			release = name
		}
		p.write(context(name)+"/debian.list", sources(t, release), 0o644)
	}
	all := p.build(nil, "--require", "tmux,ssh", "-j", "2", "--context-add", "node="+filepath.Dir(node), "--context-add", "npm="+npm)
	for name, runs := range map[string]string{"bullseye": "run\nOpenSSH\n", "bookworm": "run\nOpenSSH\n", "pip": "hello from a wheel\n", "npm": "hello from npm\n"} {
		t.Run(name, func(t *testing.T) {
			uses := []use{tmux, audit}
			switch name {
			case "pip":
				uses = append(uses, use{"python", []string{"python3", "-c", "import hello_sif; hello_sif.main()"}, runs})
			case "npm":
				uses = append(uses, use{"node", []string{"sh", "-c", "cd /app && node -e 'require(\"hello-sif\")' && cat node_modules/hello-sif/installed"}, runs + "by its script\n"})
			}
			used(t, p, all[name].Image, runs, uses...)
		})
	}
	// Three of them begin alike, and two of those have one step more in front of
	// what is theirs: no step was done twice.
	want := map[string]int{"bullseye": 2, "bookworm": 2, "pip": 4, "npm": 6}
	built := 0
	for name, r := range all {
		if built += r.Built; r.Built+r.Reused != want[name] {
			t.Errorf("%s: %d steps built and %d reused, and it has %d", name, r.Built, r.Reused, want[name])
		}
	}
	if built != 2+2+2+4 {
		t.Errorf("%d steps were done", built)
	}
}

// A file of 2 GiB, and what comes after it.
func TestImages_LargeFile(t *testing.T) {
	t.Parallel()
	long(t)
	const size = 2 << 30
	p := newPlace(t)
	p.task("large", "FROM busybox\nCOPY large /data/\nRUN tail -c 5 /data/large > /tail\nCMD [\"cat\", \"/tail\"]\n")
	name := p.path(context("large") + "/large")
	f, err := os.Create(name)
	p.must(err)
	block := make([]byte, 1<<20)
	r := rand.NewChaCha8([32]byte{'l'})
	for n := 0; n < size; n += len(block) {
		if n%(64<<20) == 0 {
			r.Read(block) // no two of these are alike
		}
		_, err := f.Write(block)
		p.must(err)
	}
	_, err = f.WriteAt([]byte("last\n"), size-5)
	p.must(err)
	p.must(f.Close())
	image := p.build(nil)["large"].Image
	says(t, bed.Apptainer(t, "-q", "run", image), "last\n")
	says(t, trial(t, image, "/.fence/fence", "--", "sh", "-c", "wc -c < /data/large 2>/dev/null || stat -c %s /data/large; tail -c 5 /data/large"), fmt.Sprintf("%d\nlast\n", size))
}

// Many small files, and a Dockerfile with many steps.
func TestImages_Many(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("files", "FROM busybox\nCOPY . /many\nCMD [\"sh\", \"-c\", \"echo $(ls /many/d*/f* | grep -c .) $(cat /many/d29/f99)\"]\n")
	for i := range 3000 {
		p.write(fmt.Sprintf("%s/d%d/f%d", context("files"), i/100, i%100), fmt.Sprintf("file %d\n", i), 0o644)
	}
	lines := 100
	if full() {
		lines = 1500
	}
	var d strings.Builder
	d.WriteString("FROM busybox\n")
	steps, said, copied := 0, "", ""
	for i := 0; strings.Count(d.String(), "\n") < lines; i++ {
		switch i % 10 {
		case 0:
			fmt.Fprintf(&d, "RUN echo %d $V%d >> /said && \\\n    touch /r%d && \\\n    rm -f /r%d\n", i, max(i-1, 1), i, i-20)
			steps++
			said += strings.TrimSpace(fmt.Sprintf("%d %s", i, strings.Repeat(fmt.Sprintf("value of %d", i-1), min(i, 1)))) + "\n"
		case 5:
			fmt.Fprintf(&d, "COPY files/%d /copied/\n", i)
			p.write(fmt.Sprintf("%s/files/%d", context("lines"), i), fmt.Sprintf("file %d\n", i), 0o644)
			steps++
			copied += fmt.Sprintf("file %d\n", i)
		default:
			fmt.Fprintf(&d, "ENV V%d=\"value of %d\"\n", i, i)
		}
	}
	d.WriteString("CMD cat /said; cat $(ls /copied/* | sort -n -t/ -k3); ls /r[0-9]* | wc -l; echo $V1\n")
	p.task("lines", d.String())
	all := p.build(nil, "-j", "1")
	if r := all["lines"]; r.Built != steps {
		t.Errorf("%d steps were built, of %d", r.Built, steps)
	}
	t.Run("files", func(t *testing.T) {
		used(t, p, all["files"].Image, "3000 file 2999\n", use{"last", []string{"cat", "/many/d29/f99"}, "file 2999\n"})
	})
	t.Run("lines", func(t *testing.T) {
		used(t, p, all["lines"].Image, said+copied+"2\nvalue of 1\n", use{"first", []string{"cat", "/copied/5"}, "file 5\n"})
	})
}
