package dockerfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func TestErrors(t *testing.T) {
	o := options(t)
	noContext := o
	noContext.Context = ""
	for name, c := range map[string]struct {
		file, want, hint string
		o                *Options
	}{
		"empty":          {"", "DF: the file is empty", "a Dockerfile begins with FROM", nil},
		"blank":          {" \n\t\n", "DF: the file is empty", "a Dockerfile begins with FROM", nil},
		"comments":       {"# a\n\n# b\n", "DF: there is nothing but comments and empty lines", "a Dockerfile begins with FROM", nil},
		"no FROM":        {"ARG A=b\n", "DF: there is no FROM in the file", "a Dockerfile begins with FROM; FROM scratch begins with nothing", nil},
		"above FROM":     {"ARG A\nRUN x\nFROM base", "DF:2: RUN: there is no FROM above it", "only ARG may stand above the first FROM", nil},
		"unknown":        {"FROM base\n\nRUNN x", "DF:3: RUNN: unknown instruction (did you mean RUN?)", "", nil},
		"unknown small":  {"FROM base\nwrokdir /x", "DF:2: wrokdir: unknown instruction (did you mean WORKDIR?)", "", nil},
		"not continued":  {"FROM base\nRUN a &&\n   apt-get install b", "DF:3: apt-get: unknown instruction", `if it goes on from the line above, that line must end with \`, nil},
		"template":       {"{base}\nRUN x", "DF:1: {base}: the file is a template, not yet a Dockerfile: {base} is not filled in (unknown instruction)", "build the file that the template makes", nil},
		"template FROM":  {"FROM {base}", `DF:1: FROM: the file is a template, not yet a Dockerfile: {base} is not filled in ("{base}" is neither an earlier stage nor the name of an image)`, "build the file that the template makes", nil},
		"template jinja": {"FROM {{ base }}", "DF:1: FROM: the file is a template, not yet a Dockerfile: {{ base }} is not filled in (FROM requires either one or three arguments)", "build the file that the template makes", nil},
		"template block": {"FROM base\n{% if x %}\nRUN x\n{% endif %}", "DF:2: {%: the file is a template, not yet a Dockerfile: {% is not filled in (unknown instruction)", "build the file that the template makes", nil},
		"template shell": {"FROM base\n$INSTALL", "DF:2: $INSTALL: the file is a template, not yet a Dockerfile: $INSTALL is not filled in (unknown instruction)", "build the file that the template makes", nil},
		"template COPY":  {"FROM base\nCOPY {src} /x", `DF:2: COPY: the file is a template, not yet a Dockerfile: {src} is not filled in ("{src}" not found)`, "build the file that the template makes", nil},
		"braces in RUN":  {"FROM base\nRUN --nosuch {a} {{ b }}", "DF:2: RUN: unknown flag: --nosuch", "", nil},
		"variable":       {"FROM base\nCOPY ${X} nosuch /x", `DF:2: COPY: "nosuch" not found`, "paths are seen from the context folder, " + o.Context, nil},
		"flag":           {"FROM base\nCOPY --excludee=1 a b", "DF:2: COPY: unknown flag: --excludee (did you mean exclude?)", "", nil},
		"directive":      {"#escape=x\nFROM base", "DF:1: invalid escape token 'x' does not match ` or \\", "", nil},
		"directives":     {"# escape=`\n# escape=`\nFROM base", "DF:2: only one escape parser directive can be used", "", nil},
		"check":          {"# check=foo\nFROM base", `DF:1: # check=: invalid check option "foo"`, "", nil},
		"heredoc":        {"FROM base\nRUN <<EOF\na\n", "DF:2: RUN: unterminated heredoc", "", nil},
		"long line":      {"FROM base\nRUN " + strings.Repeat("x", 70000), "DF:2: a line is longer than 65535 bytes, the most that docker build reads", "put the text into a file of the context and COPY it", nil},
		"not UTF-8":      {"FROM base\nRUN a\xff", "DF:2: RUN: the command holds bytes that are not UTF-8 text", "save the file as UTF-8", nil},
		"NUL":            {"FROM base\nWORKDIR /a\x00b", "DF:2: WORKDIR: it holds a NUL byte", "", nil},
		"binary heredoc": {"FROM base\nRUN a\xff<<E\nE", "DF:2: the line holds bytes that are not UTF-8 text", "save the file as UTF-8", nil},

		"blank base":       {"FROM $NOPE", "DF:1: FROM: the name of the base ($NOPE) is blank", "variables of FROM come from ARG above the first FROM, with a default or from --build-arg", nil},
		"no such base":     {"FROM nosuch", "DF:1: FROM: nosuch: not found", "", nil},
		"stage misspelled": {"FROM base AS build\nFROM biuld", "DF:2: FROM: biuld: not found", "did you mean the stage build?", nil},
		"stage in capital": {"FROM base AS build\nFROM Build", `DF:2: FROM: "Build" is neither an earlier stage nor the name of an image`, "FROM needs the stage's name in small letters: build", nil},
		"later stage":      {"FROM build\nFROM base AS build", "DF: there is no stage \"x\" to build", "", &Options{Target: "x"}},
		"stage by number":  {"FROM base", "DF: there is no stage \"0\" to build", "a stage to build is meant by its name: FROM ... AS NAME", &Options{Target: "0"}},
		"a later base":     {"FROM build\nRUN x\nFROM base AS build\nFROM build\nCOPY --from=0 /x /", "DF:1: FROM: build: not found", "the stage build begins on line 3, and FROM can only name an earlier one", nil},
		"bad name":         {"FROM a:b:c", `DF:1: FROM: "a:b:c" is neither an earlier stage nor the name of an image`, "", nil},
		"bad unneeded":     {"FROM A\nFROM base", `DF:1: FROM: "A" is neither an earlier stage nor the name of an image`, "", nil},
		"platform":         {"FROM --platform=$X base", "DF:1: FROM: --platform=$X is blank", "", nil},
		"platform unknown": {"FROM --platform=foo base", `DF:1: FROM: "foo" is not a platform, such as linux/amd64`, "", nil},
		"windows":          {"FROM --platform=windows/amd64 base", "DF:1: FROM: platform windows/amd64: only images of Linux can be built here", "", nil},
		"no bases":         {"FROM base", "DF:1: FROM: base: there is nowhere to get an image from", "", &Options{}},

		"itself":          {"FROM base AS a\nCOPY --from=a /x /", "DF:2: COPY: the stage needs itself: a -> a", "", nil},
		"itself by index": {"FROM base\nCOPY --from=0 /x /", "DF:2: COPY: the stage needs itself: stage 0 -> stage 0", "", nil},
		"circle":          {"FROM base AS a\nRUN --mount=from=b,target=/m x\nFROM base AS b\nCOPY --from=a /x /\nFROM base", "DF:4: COPY: the stage needs itself: a -> b -> a", "", nil},
		"from later":      {"FROM base\nCOPY --from=b /x /\nFROM base AS b\nFROM base\nCOPY --from=0 /x /", "DF:2: COPY: the stage b comes later: nothing can be taken from it yet", "", nil},
		"index":           {"FROM base\nCOPY --from=7 /x /", "DF:2: COPY: --from=7: there are 1 stages, counted from 0", "", nil},
		"from variable":   {"ARG A=base\nFROM base\nCOPY --from=$A /x /", "DF:3: COPY: --from=$A: no variable can stand here", "begin a stage with FROM $A AS name and copy --from=name; variables of FROM are the ARGs above the first FROM", nil},
		"from nothing":    {"FROM base\nCOPY --from=nosuch /x /", "DF:2: COPY: nosuch: not found", "", nil},
		"mount variable":  {"FROM base\nRUN --mount=from=$A,target=/x x", "DF:2: RUN: 'from' doesn't support variable expansion, define alias stage instead", "", nil},

		"missing":        {"FROM base\nCOPY ./toop /x", `DF:2: COPY: "toop" not found`, "did you mean top?", nil},
		"outside":        {"FROM base\nCOPY ../../etc/passwd /p", `DF:2: COPY: "etc/passwd" not found`, "paths are seen from the context folder, " + o.Context, nil},
		"ignored":        {"FROM base\nADD left/out /x", `DF:2: ADD: "left/out" is left out by .dockerignore`, "a line !left/out at the end of that file lets it in", nil},
		"link away":      {"FROM base\nCOPY away /x", `DF:2: COPY: "away" not found: the link "away" leads to nothing that can be copied from here`, "a link is followed as if the context folder were /", nil},
		"mount missing":  {"FROM base\nRUN --mount=source=nosuch,target=/x x", `DF:2: RUN: --mount: "nosuch" not found`, "paths are seen from the context folder, " + o.Context, nil},
		"no context":     {"FROM base\nCOPY top /x", "DF:2: COPY: there is no context folder to take files from", "name the folder that the Dockerfile takes files from", &noContext},
		"git":            {"FROM base\nADD https://u:pw@h.example/r.git#main /x", "DF:2: ADD: https://u:xxxxx@h.example/r.git#main: a git repository cannot be added here", "clone it into the context and COPY it, or RUN git clone in a stage that has git", nil},
		"git by ssh":     {"FROM base\nADD git@h.example:r /x", "DF:2: ADD: git@h.example:r: a git repository cannot be added here", "clone it into the context and COPY it, or RUN git clone in a stage that has git", nil},
		"URL in COPY":    {"FROM base\nCOPY https://h.example/f /x", "DF:2: COPY: https://h.example/f: a URL is no source of COPY", "ADD takes URLs", nil},
		"checksum":       {"FROM base\nADD --checksum=sha256:0 https://h.example/f /x", "DF:2: ADD: --checksum=sha256:0: invalid checksum digest length", "", nil},
		"checksum local": {"FROM base\nADD --checksum=sha256:0 top /x", "DF:2: ADD: --checksum is for one source, and that a URL", "", nil},
		"chmod":          {"FROM base\nCOPY --chmod=99 top /x", "DF:2: COPY: --chmod=99 is neither an octal mode up to 7777 nor one such as u=rwX,go=rX", "", nil},
		"chmod high":     {"FROM base\nCOPY --chmod=17777 top /x", "DF:2: COPY: --chmod=17777 is neither an octal mode up to 7777 nor one such as u=rwX,go=rX", "", nil},
		"link by name":   {"FROM base\nCOPY --link --chown=bob top /x", "DF:2: COPY: --chown=bob: names are not known with --link", "give numbers, or leave out --link", nil},

		"insecure":    {"FROM base\nRUN --security=insecure x", "DF:2: RUN: --security=insecure is refused", "the step would need root on this node, which sifbuild never has; leave the flag out", nil},
		"device":      {"FROM base\nRUN --device=nvidia.com/gpu=all x", "DF:2: RUN: --device is refused", "images are built without the node's devices; use the device when the image runs", nil},
		"network":     {"FROM base\nRUN --network=lan x", `DF:2: RUN: invalid network mode "lan"`, "", nil},
		"nothing":     {"FROM base\nRUN []", "DF:2: RUN: there is no command", "", nil},
		"mount type":  {"FROM base\nRUN --mount=type=cahce,target=/x x", `DF:2: RUN: unsupported mount type "cahce" (did you mean cache?)`, "", nil},
		"mount on /":  {"FROM base\nRUN --mount=type=tmpfs,target=/a/.. x", `DF:2: RUN: --mount: the target of a mount cannot be "/"`, "give target=FOLDER", nil},
		"mount later": {"FROM base\nRUN --mount=from=b,target=/x x\nFROM base AS b\nFROM base\nCOPY --from=0 /x /", "DF:2: RUN: --mount: the stage b comes later: nothing can be taken from it yet", "", nil},
		"URL no name": {"FROM base\nADD http://a/.. /x/", "DF:2: ADD: http://a/..: no file can have the name at its end", "RUN curl -o NAME or wget -O NAME gives it another", nil},
		"URL escaped": {"FROM base\nADD http://a/%2e%2e /x/", "DF:2: ADD: http://a/%2e%2e: no file can have the name at its end", "RUN curl -o NAME or wget -O NAME gives it another", nil},
		"URL NUL":     {"FROM base\nADD http://a/b%00 /x/", "DF:2: ADD: http://a/b%00: no file can have the name at its end", "RUN curl -o NAME or wget -O NAME gives it another", nil},
		"URL bytes":   {"FROM base\nADD http://a/%ff /x/", "DF:2: ADD: http://a/%ff: no file can have the name at its end", "RUN curl -o NAME or wget -O NAME gives it another", nil},
		"URL long":    {"FROM base\nADD http://a/" + strings.Repeat("x", 256) + " /x/", "DF:2: ADD: http://a/" + strings.Repeat("x", 256) + ": no file can have the name at its end", "RUN curl -o NAME or wget -O NAME gives it another", nil},
		"URL none":    {"FROM base\nADD http:///a /x/", "DF:2: ADD: http:///a is not a URL", "", nil},
		"URL broken":  {"FROM base\nADD http://[::1/a /x/", "DF:2: ADD: http://[::1/a is not a URL", "", nil},
		"port":        {"FROM base\nEXPOSE 99999", `DF:2: EXPOSE: "99999": "99999" is not a port`, "", nil},
		"ports":       {"FROM base\nEXPOSE 9-8", `DF:2: EXPOSE: "9-8": the range 9-8 runs backwards`, "", nil},
		"all ports":   {"FROM base\nEXPOSE" + strings.Repeat(" 0-65535", 17), "DF:2: EXPOSE: the file names more than 1048576 ports", "", nil},
		"protocol":    {"FROM base\nEXPOSE 9/foo", `DF:2: EXPOSE: "9/foo": the protocol foo is none of tcp, udp and sctp`, "", nil},
		"signal":      {"FROM base\nSTOPSIGNAL SIGNOPE", `DF:2: STOPSIGNAL: "SIGNOPE" is not a signal`, "a number, or a name such as SIGTERM", nil},
		"volume":      {"FROM base\nVOLUME $NOPE", "DF:2: VOLUME: a volume is blank", "", nil},
		"required":    {"FROM base\nENV A=${NOPE:?must}", `DF:2: ENV: failed to process "${NOPE:?must}": NOPE: must`, "", nil},
		"trigger":     {"FROM base AS p\nONBUILD COPY nosuch /x\nFROM p", `DF:3: ONBUILD COPY: "nosuch" not found`, "paths are seen from the context folder, " + o.Context, nil},
		"not trigger": {"FROM base AS p\nONBUILD FROM x", "DF:2: ONBUILD: FROM isn't allowed as an ONBUILD trigger", "", nil},
		"trigger bad": {"FROM base AS p\nONBUILD RUNN x\nFROM p", "DF:3: RUNN: unknown instruction (did you mean RUN?)", "", nil},

		"variable in variable": {"FROM base\nENV A=" + strings.Repeat("x", 60000) + "\nENV A=$A$A$A", "DF:3: ENV: A is longer than 128 KiB: no program could be started with it", "put it into a file", nil},
		"replaced too often":   {"FROM base\nENV A=" + strings.Repeat("x", 60000) + "\nENV B=${A//x/" + strings.Repeat("y", 60000) + "}", "DF:3: ENV: variables within variables come to more than 64 MiB", "", nil},
		"long command":         {"FROM base\nRUN <<E\n" + strings.Repeat(strings.Repeat("x", 1000)+"\n", 140) + "E", "DF:2: RUN: the command is longer than 128 KiB: no shell could be started with it", "COPY a script from the context and RUN that", nil},
	} {
		t.Run(name, func(t *testing.T) {
			opt := o
			if c.o != nil {
				opt = *c.o
			}
			opt.File = "DF"
			p, err := New(t.Context(), []byte(c.file), opt)
			if err == nil {
				t.Fatal("no error")
			}
			if p != nil {
				t.Error("an error, and yet a plan")
			}
			if err.Error() != c.want {
				t.Errorf("got\n%s\nwant\n%s", err, c.want)
			}
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Hint != c.hint {
				t.Errorf("hint %q, want %q", e.Hint, c.hint)
			}
		})
	}
}

// TestErrors_OneLine: whatever is in the file, the message is one line that does
// nothing to a terminal.
func TestErrors_OneLine(t *testing.T) {
	_, err := New(t.Context(), []byte("FROM base\nCOPY \x1b[31mred /x"), options(t))
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") || !strings.Contains(err.Error(), `\x1b[31mred`) {
		t.Errorf("got %q", err)
	}
}

func TestNew_Canceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := options(t)
	o.Base = func(ctx context.Context, _ string, _ v1.Platform) (Base, error) { cancel(); return Base{}, ctx.Err() }
	if p, err := New(ctx, []byte("FROM base"), o); p != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v", p, err)
	}
}

// TestIgnoreFile: a .dockerignore that is none is an error, not an empty list.
func TestIgnoreFile(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, file string)
		want string
	}{
		"a file":     {func(t *testing.T, file string) { write(t, file, "x") }, ""},
		"no file":    {func(t *testing.T, file string) {}, ""},
		"a link in":  {func(t *testing.T, file string) { symlink(t, "top", file) }, ""},
		"a link out": {func(t *testing.T, file string) { symlink(t, "/etc/passwd", file) }, "path escapes from parent"},
		"a FIFO": {func(t *testing.T, file string) {
			if err := syscall.Mkfifo(file, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "it is not a file"},
		"too large": {func(t *testing.T, file string) { write(t, file, strings.Repeat("x\n", 1<<20)) }, "it is larger than 1 MiB"},
		"bad":       {func(t *testing.T, file string) { write(t, file, "[") }, `"[": syntax error in pattern`},
	} {
		for _, own := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				write(t, filepath.Join(dir, "top"), "top")
				o := Options{Context: dir, File: filepath.Join(dir, "Dockerfile"), Base: testBase}
				file := ".dockerignore"
				if own {
					file = "Dockerfile.dockerignore"
				}
				c.make(t, filepath.Join(dir, file))
				_, err := New(t.Context(), []byte("FROM base\nCOPY . /x"), o)
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file)) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			})
		}
	}
}

func symlink(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}
