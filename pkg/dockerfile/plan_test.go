package dockerfile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// context makes a context folder.
func contextDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		".dockerignore": "left\nsecret*\n", "top": "top\n", "src/a": "a\n", "src/b/c": "c\n",
		"left/out": "x\n", "secret.txt": "x\n", "t.tgz": "not an archive\n", "sp ace": "x\n",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

var amd64 = v1.Platform{OS: "linux", Architecture: "amd64"}

// testBase knows the images base (PATH, BASEVAR=bv), bare and full, for any
// platform but s390x.
func testBase(_ context.Context, name string, p v1.Platform) (Base, error) {
	b := Base{Digest: "sha256:" + name, Platform: p}
	if p.Architecture == "s390x" { // as an image that is for one platform only
		b.Platform.Architecture = "arm64"
	}
	switch strings.TrimSuffix(name, ":latest") {
	case "base":
		b.Config = v1.Config{Env: []string{"PATH=/bin", "BASEVAR=bv"}, Cmd: []string{"sh"}}
	case "bare":
	case "full":
		b.Warnings = []string{"it is odd"}
		b.Config = v1.Config{User: "bob", Env: []string{"PATH=/p"}, Entrypoint: []string{"e"}, Cmd: []string{"c"}, WorkingDir: "/w",
			Shell: []string{"/bin/ash", "-c"}, OnBuild: []string{"ENV T=$PATH", "COPY top /t"}, Hostname: "h", Labels: map[string]string{"l": "1"},
			Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "true"}}}
	default:
		return Base{}, fmt.Errorf("%s: not found", name)
	}
	return b, nil
}

func options(t testing.TB) Options {
	dir := contextDir(t)
	return Options{Context: dir, Platform: amd64, Build: amd64, Base: testBase}
}

func mustPlan(t testing.TB, o Options, file string) *Plan {
	t.Helper()
	p, err := New(t.Context(), []byte(file), o)
	if err != nil {
		t.Fatalf("%v in\n%s", err, file)
	}
	return p
}

func last(p *Plan) Stage { return p.Stages[len(p.Stages)-1] }

// summary is a step in one line.
func summary(s Step) string {
	from := func(f From) string {
		switch {
		case f.Scratch:
			return "scratch:"
		case f.Context != "":
			return "context:"
		case f.Stage != nil:
			return fmt.Sprintf("%d:", *f.Stage)
		case f.Base != nil:
			return f.Base.Name + ":"
		}
		return ""
	}
	switch {
	case s.Workdir != nil:
		return strings.TrimSpace("mkdir " + s.Workdir.Path + " " + s.Workdir.User)
	case s.Copy != nil:
		c := s.Copy
		words := []string{"copy"}
		if c.Add {
			words[0] = "add"
		}
		for _, src := range c.Sources {
			words = append(words, from(c.From)+src)
		}
		for _, u := range c.URLs {
			words = append(words, u.URL+"="+u.Name)
		}
		for _, f := range c.Inline {
			words = append(words, fmt.Sprintf("%s=%q", f.Path, f.Data))
		}
		words = append(words, "->", c.Dest)
		for _, f := range []struct {
			name string
			v    any
		}{{"chown", c.Chown}, {"chmod", c.Chmod}, {"checksum", c.Checksum}} {
			if f.v != "" {
				words = append(words, fmt.Sprintf("%s=%v", f.name, f.v))
			}
		}
		if c.Parents {
			words = append(words, "parents")
		}
		for _, e := range c.Exclude {
			words = append(words, "exclude="+e)
		}
		if c.Unpack != nil {
			words = append(words, fmt.Sprintf("unpack=%v", *c.Unpack))
		}
		return strings.Join(words, " ")
	}
	r := s.Run
	line := fmt.Sprintf("run %q in %s", r.Argv, r.Cwd)
	if r.User != "" {
		line += " as " + r.User
	}
	if r.Network != "default" {
		line += " net " + r.Network
	}
	for _, f := range r.Files {
		line += fmt.Sprintf(" %s=%q", f.Path, f.Data)
	}
	for _, m := range r.Mounts {
		line += fmt.Sprintf(" %s@%s", m.Type, m.Target)
		if m.From != nil {
			line += "<" + from(*m.From) + m.Source
		}
		if m.ID != "" {
			line += " id=" + m.ID
		}
		if m.Sharing != "" {
			line += " " + m.Sharing
		}
		if m.ReadOnly {
			line += " ro"
		}
		if m.Mode != nil {
			line += fmt.Sprintf(" %04o %d:%d", *m.Mode, m.UID, m.GID)
		}
		if m.Size != 0 {
			line += fmt.Sprintf(" %d", m.Size)
		}
		if m.Required {
			line += " required"
		}
		if m.Env != "" {
			line += " $" + m.Env
		}
	}
	return line
}

// TestSteps holds the steps of the last stage against what they should be.
func TestSteps(t *testing.T) {
	o := options(t)
	o.Args = map[string]string{"CLI": "cli"}
	for name, c := range map[string]struct{ file, want string }{
		"shell form": {"RUN a $X  'b'", `run ["/bin/sh" "-c" "a $X  'b'"] in /`},
		"exec form":  {`RUN ["a", "$X", "&&"]`, `run ["a" "$X" "&&"] in /`},
		"not JSON":   {`RUN [ -f x ] || y`, `run ["/bin/sh" "-c" "[ -f x ] || y"] in /`},
		"shell":      {"SHELL [\"/bin/ash\",\"-ec\"]\nRUN a\nRUN [\"b\"]", "run [\"/bin/ash\" \"-ec\" \"a\"] in /\nrun [\"b\"] in /"},
		"continued":  {"RUN a \\\n # comment\n  b", `run ["/bin/sh" "-c" "a   b"] in /`},
		"heredoc":    {"RUN <<EOF\nfalse\n# kept\n%x $V\n\nEOF", `run ["/bin/sh" "-c" "false\n# kept\n%x $V\n\n"] in /`},
		"heredoc with shebang": {"RUN <<EOF\n#!/bin/ash -e\nx\nEOF",
			`run ["/bin/sh" "-c" "/dev/pipes/EOF"] in / /dev/pipes/EOF="#!/bin/ash -e\nx\n"`},
		"heredoc with tabs": {"RUN <<-EOF\n\t\ta\n\tEOF", `run ["/bin/sh" "-c" "a\n"] in /`},
		"heredocs in a command": {"RUN cat <<A >/a && cat <<-B >/b\na\nA\n\tb\nB",
			`run ["/bin/sh" "-c" "cat <<A >/a && cat <<-B >/b\na\nA\n\tb\nB"] in /`},
		"user and folder": {"USER bob:docker\nWORKDIR /a\nWORKDIR b\nWORKDIR ../c\nENV D=/dd\nWORKDIR $D/e\nRUN x",
			"mkdir /a bob:docker\nmkdir /a/b bob:docker\nmkdir /a/c bob:docker\nmkdir /dd/e bob:docker\nrun [\"/bin/sh\" \"-c\" \"x\"] in /dd/e as bob:docker"},
		"the root folder": {"WORKDIR /\nRUN x", `run ["/bin/sh" "-c" "x"] in /`},
		"blank folder":    {"WORKDIR /a\nWORKDIR $NOPE", "mkdir /a\nmkdir /a"},
		"folder unclean":  {"WORKDIR /a/../b/\nCOPY top x", "mkdir /b\ncopy context:top -> /b/x"},
		"network":         {"RUN --network=none x\nRUN --network=host y", "run [\"/bin/sh\" \"-c\" \"x\"] in / net none\nrun [\"/bin/sh\" \"-c\" \"y\"] in / net host"},

		"cache":            {"WORKDIR /w\nRUN --mount=type=cache,target=c/../d x", `mkdir /w` + "\n" + `run ["/bin/sh" "-c" "x"] in /w cache@/w/d id=d shared`},
		"cache with all":   {"ENV I=i\nRUN --mount=type=cache,id=$I,target=/c,sharing=locked,mode=700,uid=5,gid=6,ro x", `run ["/bin/sh" "-c" "x"] in / cache@/c id=i locked ro 0700 5:6`},
		"cache from":       {"RUN --mount=type=cache,target=/c,from=base,source=/x x", `run ["/bin/sh" "-c" "x"] in / cache@/c<base:x id=/c shared`},
		"bind":             {"RUN --mount=target=/m x", `run ["/bin/sh" "-c" "x"] in / bind@/m<context: ro`},
		"bind from":        {"RUN --mount=type=bind,from=base,src=../a,dst=m,rw x", `run ["/bin/sh" "-c" "x"] in / bind@/m<base:a`},
		"bind a file":      {"RUN --mount=source=top,target=/m x", `run ["/bin/sh" "-c" "x"] in / bind@/m<context:top ro`},
		"tmpfs":            {"RUN --mount=type=tmpfs,target=/m,size=2m x", `run ["/bin/sh" "-c" "x"] in / tmpfs@/m 2097152`},
		"secret":           {"RUN --mount=type=secret,id=s x", `run ["/bin/sh" "-c" "x"] in / secret@/run/secrets/s id=s ro`},
		"secret by target": {"RUN --mount=type=secret,target=a/./s/,required x", `run ["/bin/sh" "-c" "x"] in / secret@/a/s id=s ro required`},
		"secret in env":    {"RUN --mount=type=secret,id=s,env=S x", `run ["/bin/sh" "-c" "x"] in / secret@ id=s ro $S`},
		"ssh":              {"RUN --mount=type=ssh x", `run ["/bin/sh" "-c" "x"] in / ssh@/run/buildkit/ssh_agent.0 id=default ro`},

		"copy":               {"COPY src/ /top ./src/../top ../top d/", "copy context:src context:top context:top context:top -> /d/"},
		"copy to dot":        {"WORKDIR /w\nCOPY top .", "mkdir /w\ncopy context:top -> /w/"},
		"copy to slash-dot":  {"COPY top /d/.", "copy context:top -> /d/"},
		"copy to nothing":    {"COPY top $NOPE", "copy context:top -> /"},
		"copy to parent":     {"WORKDIR /a/b\nCOPY top ../x", "mkdir /a/b\ncopy context:top -> /a/x"},
		"copy all":           {"COPY . /d", "copy context:. -> /d"},
		"copy JSON":          {`COPY ["sp ace", "/d e/"]`, "copy context:sp ace -> /d e/"},
		"copy flags":         {"ENV U=bob M=7 X=*.c\nCOPY --chown=$U:$U --chmod=${M}55 --exclude=*.md --exclude=x --link=false src /d", "copy context:src -> /d chown=bob:bob chmod=755 exclude=*.md exclude=x"},
		"copy link":          {"COPY --link --chown=1:root top /d", "copy context:top -> /d chown=1:root"},
		"copy parents":       {"COPY --parents src/b/c ./src/./b/c /src/../src/./a /d/", "copy context:src/b/c context:src/./b/c context:src/./a -> /d/ parents"},
		"copy from image":    {"COPY --from=bare /bin/x /y", "copy bare:bin/x -> /y"},
		"copy from scratch":  {"COPY --from=scratch /x /y", "copy scratch:x -> /y"},
		"copy heredoc":       {"ENV V=vv\nCOPY <<EOF /e\n$V \\$V\nEOF", `copy EOF="vv $V\n" -> /e`},
		"copy quoted":        {"ENV V=vv\nCOPY <<'EOF' <<-\"F\" /d/\n$V\nEOF\n\tx\nF", `copy EOF="$V\n" F="x\n" -> /d/`},
		"copy with a file":   {"COPY top <<E /d/\nx\nE", `copy context:top E="x\n" -> /d/`},
		"add":                {"ADD t.tgz /u/", "add context:t.tgz -> /u/"},
		"add without unpack": {"ADD --unpack=false t.tgz /u/", "add context:t.tgz -> /u/ unpack=false"},
		"add URL":            {"ARG CLI\nADD --checksum=sha256:" + strings.Repeat("0", 64) + " https://h.example/$CLI/f.tgz?q#x /u/", "add https://h.example/cli/f.tgz?q#x=f.tgz -> /u/ checksum=sha256:" + strings.Repeat("0", 64)},
		"add URL of a root":  {"ADD http://h.example/ /u/", "add http://h.example/=__unnamed__ -> /u/"},
		"add in order":       {"ADD top https://h.example/a https://h.example/b src /u/", "add context:top -> /u/\nadd https://h.example/a=a https://h.example/b=b -> /u/\nadd context:src -> /u/"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range last(mustPlan(t, o, "FROM base\n"+c.file+"\n")).Steps {
				got = append(got, summary(s))
			}
			if s := strings.Join(got, "\n"); s != c.want {
				t.Errorf("got\n%s\nwant\n%s", s, c.want)
			}
		})
	}
}

// TestEnv holds the environment of the last RUN against what it should be.
func TestEnv(t *testing.T) {
	o := options(t)
	o.Args = map[string]string{"CLI": "cli", "V": "cli", "HTTP_PROXY": "http://u:p@proxy", "no_proxy": "x", "TARGETOSVERSION": "9"}
	for name, c := range map[string]struct{ file, want string }{
		"before the instruction": {"FROM bare\nENV abc=hello\nENV abc=bye def=$abc\nENV ghi=$abc\nRUN x", "abc=bye def=hello ghi=bye"},
		"set again moves":        {"FROM bare\nENV A=1 B=2\nENV A=3\nRUN x", "B=2 A=3"},
		"arg then env":           {"FROM bare\nARG V=arg\nENV V=env\nRUN x", "V=env"},
		"env then arg":           {"FROM bare\nENV V=env\nARG V=arg\nRUN x", "V=cli"},
		"arg not given":          {"FROM bare\nARG W\nRUN x", ""},
		"arg sees arg":           {"FROM bare\nARG A=\"x y\" B='$A' C=$A\nRUN x", "A=x y B=$A C=x y"},
		"global is not seen":     {"ARG G=g\nFROM bare\nRUN x", ""},
		"global asked for":       {"ARG G=g\nFROM bare\nARG G\nRUN x", "G=g"},
		"local beats global":     {"ARG G=g\nFROM bare\nARG G=l\nRUN x", "G=l"},
		"command line wins":      {"ARG V=g\nFROM bare\nARG V=l\nRUN x", "V=cli"},
		"not declared":           {"FROM bare\nENV X=${CLI-unset}\nRUN x", "X=unset"},
		"platform":               {"FROM bare\nARG TARGETARCH\nARG TARGETPLATFORM BUILDOS TARGETVARIANT TARGETOSVERSION TARGETSTAGE\nRUN x", "TARGETARCH=amd64 TARGETPLATFORM=linux/amd64 BUILDOS=linux TARGETVARIANT= TARGETOSVERSION=9 TARGETSTAGE=default"},
		"of the parent's args":   {"FROM bare AS p\nARG A=a\nENV V=env\nARG V=x\nFROM p\nRUN x", "A=a V=env"},
		"of an unneeded stage":   {"FROM bare AS p\nENV A=a\nFROM bare\nRUN x", ""},
		"single quotes":          {"FROM bare\nENV A=a\nENV B='$A' C=\\$A D=\"$A\"\nRUN x", "A=a B=$A C=$A D=a"},
		"backtick escapes":       {"# escape=`\nFROM bare\nENV A=a B=`$A C=c:\\x\nRUN x", "A=a B=$A C=c:\\x"},
		"windows lines":          {"FROM bare\r\nENV A=a\r\nRUN x\r\n", "A=a"},
		"byte order mark":        {"\xef\xbb\xbfFROM bare\nENV A=a\nRUN x", "A=a"},
		"the scanner's own":      {"FROM bare\nARG BUILDKIT_SBOM_SCAN_STAGE=1\nRUN x", ""},
	} {
		t.Run(name, func(t *testing.T) {
			steps := last(mustPlan(t, o, c.file)).Steps
			r := steps[len(steps)-1].Run
			got := slices.DeleteFunc(slices.Clone(r.Env), func(kv string) bool { return strings.HasPrefix(kv, "PATH=") })
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("got  %s\nwant %s", s, c.want)
			}
			if want := "HTTP_PROXY=http://u:p@proxy http_proxy=http://u:p@proxy NO_PROXY=x no_proxy=x"; strings.Join(r.Proxy, " ") != want {
				t.Errorf("proxies %s, want %s", r.Proxy, want)
			}
		})
	}
}

// TestStages holds the stages of a plan against those that should be in it.
func TestStages(t *testing.T) {
	o := options(t)
	o.Contexts = map[string]string{"folder": filepath.Join(o.Context, "src"), "alpine": filepath.Join(o.Context, "src")}
	for name, c := range map[string]struct{ file, target, want string }{
		"one":              {"FROM base", "", "0<base"},
		"last":             {"FROM base AS a\nFROM bare AS b", "", "1:b<bare"},
		"parents":          {"FROM base AS a\nFROM a AS b\nFROM bare\nFROM b", "", "0:a<base 1:b<0 3<1"},
		"copied from":      {"FROM base AS a\nFROM bare\nFROM bare\nCOPY --from=A /x /\nCOPY --from=1 /y /", "", "0:a<base 1<bare 2<bare"},
		"mounted from":     {"FROM base AS a\nFROM bare\nRUN --mount=from=a,target=/m x", "", "0:a<base 1<bare"},
		"target":           {"FROM base AS a\nFROM nosuch", "A", "0:a<base"},
		"target by number": {"FROM base\nFROM bare", "0", "!"},
		"failing unneeded": {"FROM base AS a\nCOPY nosuch /\nENV A=${X:?}\nFROM nosuch\nFROM base", "", "2<base"},
		"foreign unneeded": {"FROM --platform=windows/amd64 base AS w\nFROM base", "", "1<base"},
		"scratch":          {"FROM scratch", "", "0<scratch"},
		"name twice":       {"FROM base AS a\nFROM bare AS a\nFROM a", "", "1:a<bare 2<1"},
		"variable":         {"ARG N=ba\nARG S\nFROM ${N}se$S", "", "0<base"},
		"variable unset":   {"FROM base$TAG", "", "0<base"},
		"named context":    {"FROM folder\nFROM docker.io/library/alpine:latest", "", "1<context"},
		"stage replaced":   {"FROM nosuch AS folder\nRUN false\nFROM folder", "", "0:folder<context 1<0"},
		"from later image": {"FROM base AS a\nCOPY --from=later /x /\nFROM bare AS later", "a", "!"},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.Target = c.target
			p, err := New(t.Context(), []byte(c.file), o)
			if (err != nil) != (c.want == "!") {
				t.Fatal(err)
			} else if err != nil {
				return
			}
			var got []string
			for _, s := range p.Stages {
				line := fmt.Sprint(s.Index)
				if s.Name != "" {
					line += ":" + s.Name
				}
				switch line += "<"; {
				case s.From.Scratch:
					line += "scratch"
				case s.From.Stage != nil:
					line += fmt.Sprint(*s.From.Stage)
				case s.From.Context != "":
					line += "context"
					if len(s.Matches) != 1 || len(s.Matches[0].Below) != 3 {
						t.Errorf("the folder's contents are %+v", s.Matches)
					}
				default:
					line += s.From.Base.Name
				}
				got = append(got, line)
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("got %s, want %s", s, c.want)
			}
		})
	}
}
