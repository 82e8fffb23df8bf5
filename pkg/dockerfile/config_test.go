package dockerfile

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestConfig holds the configuration of the target, as JSON, against what
// should be in it besides what the base has.
func TestConfig(t *testing.T) {
	o := options(t)
	for name, c := range map[string]struct{ file, want string }{
		"nothing":         {"FROM base", `{"Cmd":["sh"],"Env":["PATH=/bin","BASEVAR=bv"]}`},
		"scratch":         {"FROM scratch", `{"Env":["PATH=` + defaultPath + `"],"WorkingDir":"/"}`},
		"no PATH":         {"FROM bare\nENV A=a", `{"Env":["PATH=` + defaultPath + `","A=a"]}`},
		"env replaced":    {"FROM base\nENV PATH=/x:$PATH\nENV N=", `{"Cmd":["sh"],"Env":["PATH=/x:/bin","BASEVAR=bv","N="]}`},
		"arg is not kept": {"FROM base\nARG A=a\nARG BASEVAR=x", `{"Cmd":["sh"],"Env":["PATH=/bin","BASEVAR=bv"]}`},
		"entrypoint":      {"FROM base\nENTRYPOINT exec top -b", `{"Entrypoint":["/bin/sh","-c","exec top -b"],"Env":["PATH=/bin","BASEVAR=bv"]}`},
		"both":            {"FROM base\nCMD [\"c\"]\nENTRYPOINT [\"e\"]", `{"Cmd":["c"],"Entrypoint":["e"],"Env":["PATH=/bin","BASEVAR=bv"],"ArgsEscaped":true}`},
		"entrypoint later": {"FROM base AS p\nCMD [\"c\"]\nFROM p\nENTRYPOINT [\"e\"]",
			`{"Entrypoint":["e"],"Env":["PATH=/bin","BASEVAR=bv"],"ArgsEscaped":true}`},
		"cleared": {"FROM base\nCMD []\nENTRYPOINT []", `{"Env":["PATH=/bin","BASEVAR=bv"],"ArgsEscaped":true}`},
		"shell":   {"FROM base\nSHELL [\"/bin/ash\",\"-c\"]\nCMD x $Y", `{"Cmd":["/bin/ash","-c","x $Y"],"Env":["PATH=/bin","BASEVAR=bv"],"ArgsEscaped":true,"Shell":["/bin/ash","-c"]}`},
		"labels":  {"FROM base\nENV A=a\nLABEL x=$A \"y z\"='$A' x.y=\"1 2\"\nLABEL x=b", `{"Cmd":["sh"],"Env":["PATH=/bin","BASEVAR=bv","A=a"],"Labels":{"x":"b","x.y":"1 2","y z":"$A"}}`},
		"ports":   {"FROM base\nENV P=90\nEXPOSE 80 $P/UDP 8000-8002/tcp 1:2 127.0.0.1:3:4", `{"Cmd":["sh"],"Env":["PATH=/bin","BASEVAR=bv","P=90"],"ExposedPorts":{"2/tcp":{},"4/tcp":{},"80/tcp":{},"8000/tcp":{},"8001/tcp":{},"8002/tcp":{},"90/udp":{}}}`},
		"ports of one": {"FROM base\nENV P=\"81 82/sctp\"\nEXPOSE $P",
			`{"Cmd":["sh"],"Env":["PATH=/bin","BASEVAR=bv","P=81 82/sctp"],"ExposedPorts":{"81/tcp":{},"82/sctp":{}}}`},
		"volumes":     {"FROM base\nENV V=/v\nVOLUME $V /w\nVOLUME [\"/x y\"]", `{"Cmd":["sh"],"Env":["PATH=/bin","BASEVAR=bv","V=/v"],"Volumes":{"/v":{},"/w":{},"/x y":{}}}`},
		"signal":      {"FROM base\nENV S=SIGUSR1\nSTOPSIGNAL $S", `{"Cmd":["sh"],"Env":["PATH=/bin","BASEVAR=bv","S=SIGUSR1"],"StopSignal":"SIGUSR1"}`},
		"signals":     {"FROM base\nSTOPSIGNAL 9\nSTOPSIGNAL rtmin+3", `{"Cmd":["sh"],"Env":["PATH=/bin","BASEVAR=bv"],"StopSignal":"rtmin+3"}`},
		"health":      {"FROM base\nHEALTHCHECK --interval=5m --timeout=3s --start-period=1s --start-interval=2s --retries=2 CMD a | b", `{"Cmd":["sh"],"Healthcheck":{"Test":["CMD-SHELL","a | b"],"Interval":300000000000,"Timeout":3000000000,"StartPeriod":1000000000,"Retries":2},"Env":["PATH=/bin","BASEVAR=bv"]}`},
		"healthy":     {"FROM base\nHEALTHCHECK CMD [\"a\"]\nHEALTHCHECK NONE", `{"Cmd":["sh"],"Healthcheck":{"Test":["NONE"]},"Env":["PATH=/bin","BASEVAR=bv"]}`},
		"onbuild":     {"FROM base\nONBUILD RUN a $X\nonbuild copy <<E /x\nb\nE", `{"Cmd":["sh"],"Env":["PATH=/bin","BASEVAR=bv"],"OnBuild":["RUN a $X","copy \u003c\u003cE /x\nb\nE"]}`},
		"workdir":     {"FROM base\nWORKDIR /a/\nWORKDIR ./b/", `{"Cmd":["sh"],"Env":["PATH=/bin","BASEVAR=bv"],"WorkingDir":"/a/b"}`},
		"of the base": {"FROM full", `{"Cmd":["c"],"Healthcheck":{"Test":["CMD","true"]},"Entrypoint":["e"],"Env":["PATH=/p","T=/p"],"Labels":{"l":"1"},"User":"bob","WorkingDir":"/w","Shell":["/bin/ash","-c"]}`},
		"odd names":   {"FROM bare\nENV A.B=c a-b=d", `{"Env":["PATH=` + defaultPath + `","A.B=c","a-b=d"]}`},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := json.Marshal(last(mustPlan(t, o, c.file)).Config)
			if err != nil {
				t.Fatal(err)
			}
			if string(data) != c.want {
				t.Errorf("got\n%s\nwant\n%s", data, c.want)
			}
		})
	}
}

func TestAuthorAndStartInterval(t *testing.T) {
	s := last(mustPlan(t, options(t), "FROM base AS p\nMAINTAINER me <a@b>\nHEALTHCHECK --start-interval=2s CMD x\nFROM p"))
	if s.Author != "me <a@b>" || s.StartInterval.String() != "2s" {
		t.Errorf("author %q, start interval %s", s.Author, s.StartInterval)
	}
}

// TestTriggers: ONBUILD of a stage or an image runs first in the child, once.
func TestTriggers(t *testing.T) {
	o := options(t)
	for name, c := range map[string]struct {
		file string
		want []string
		line int // of the first step
	}{
		"of an image":    {"FROM full\nRUN x", []string{"copy context:top -> /t", `run ["/bin/ash" "-c" "x"] in /w as bob`}, 1},
		"after # check=": {"FROM bare AS p\n# check=skip=all\nONBUILD RUN t\n# check=bad\nFROM p", []string{`run ["/bin/sh" "-c" "t"] in /`}, 5},
		"of a stage":     {"FROM bare AS p\nONBUILD RUN t\nRUN p\nFROM p\nRUN c", []string{`run ["/bin/sh" "-c" "t"] in /`, `run ["/bin/sh" "-c" "c"] in /`}, 4},
		"not twice":      {"FROM bare AS p\nONBUILD RUN t\nFROM p AS q\nFROM q\nRUN c", []string{`run ["/bin/sh" "-c" "c"] in /`}, 5},
		"heredoc":        {"FROM bare AS p\nONBUILD RUN <<E\na\nE\nFROM p", []string{`run ["/bin/sh" "-c" "a\n"] in /`}, 5},
		"new stage":      {"FROM base AS s\nFROM bare AS p\nONBUILD COPY --from=s /x /\nFROM p", []string{"copy 0:x -> /"}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			steps := last(mustPlan(t, o, c.file)).Steps
			var got []string
			for _, s := range steps {
				got = append(got, summary(s))
			}
			if !slices.Equal(got, c.want) || steps[0].Line != c.line {
				t.Errorf("got %q, the first of line %d, want %q and %d", got, steps[0].Line, c.want, c.line)
			}
		})
	}
	p := mustPlan(t, o, "FROM base AS s\nFROM bare AS p\nONBUILD COPY --from=s /x /\nFROM p")
	if len(p.Stages) != 3 || p.Stages[0].Name != "s" {
		t.Errorf("the stage that only a trigger needs is missing from %d stages", len(p.Stages))
	}
	if text := last(p).Steps[0].Text; text != "ONBUILD COPY --from=s /x /" {
		t.Errorf("a trigger's text is %q", text)
	}
}

func TestWarnings(t *testing.T) {
	o := options(t)
	o.File, o.Args = "DIR/Dockerfile", map[string]string{"NAME": "x", "HTTP_PROXY": "y", "TARGETARCH": "z", "BUILDKIT_INLINE_CACHE": "1"}
	for name, c := range map[string]struct{ file, want string }{
		"none":           {"FROM base\nARG NAME\nRUN x $NAME", ""},
		"frontend":       {"# syntax=other/frontend:1\nFROM base\nARG NAME", "1: the frontend other/frontend:1 is not used: the file is read as docker/dockerfile:1"},
		"own frontend":   {"# syntax=docker/dockerfile:1.7-labs\nFROM base\nARG NAME", ""},
		"unset":          {"FROM base\nARG NAME\nENV X=$NAMEE Y=${Z:-}", "3: $NAMEE is not set here and reads as empty (did you mean $NAME?)"},
		"unset in FROM":  {"ARG NAME\nFROM base$TAG", "2: $TAG is not set here and reads as empty"},
		"declared":       {"FROM base\nARG NAME W\nENV X=$W", ""},
		"unused":         {"FROM base\nARG NAMES", "0: build argument NAME is not used: the file has no ARG of that name (did you mean NAMES?)"},
		"hidden":         {"FROM base\nENV E=e\nARG E=a\nARG NAME", "3: ARG E hides the ENV of that name from here on; the image keeps the value of ENV"},
		"many to one":    {"FROM base\nARG NAME\nCOPY top src/a /x", "3: 2 sources for /x, which has no slash at the end: unless it is a folder, the last one is all that stays"},
		"no match":       {"FROM base\nARG NAME\nCOPY *.nope /x/", "3: *.nope matches nothing in the context"},
		"all ignored":    {"FROM base\nARG NAME\nCOPY secret* /x/", "3: secret* matches nothing in the context"},
		"empty line":     {"FROM base\nARG NAME\nRUN a \\\n\n b", "5: an empty line inside an instruction: docker build will refuse it some day"},
		"same name":      {"FROM base AS a\nFROM base AS a\nARG NAME", "2: another stage has the name a: later instructions mean this one"},
		"other platform": {"FROM --platform=arm64 base\nARG NAME", ""},
		"wrong platform": {"FROM --platform=s390x base\nARG NAME", "1: base is for linux/arm64, and linux/s390x was asked for"},
		"not UTF-8":      {"FROM base\nARG NAME\nWORKDIR /\xff", "3: bytes that are not UTF-8 become U+FFFD, as in docker build"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, w := range mustPlan(t, o, c.file).Warnings {
				if w.File != "DIR/Dockerfile" {
					t.Errorf("file %q", w.File)
				}
				got = append(got, strings.TrimPrefix(strings.Join([]string{itoa(w.Line), w.Text}, ": "), " "))
			}
			if s := strings.Join(got, "\n"); s != c.want {
				t.Errorf("got\n%s\nwant\n%s", s, c.want)
			}
		})
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// TestContexts: what of a folder counts, and what counts for watching.
func TestContexts(t *testing.T) {
	o := options(t)
	other := t.TempDir()
	write(t, filepath.Join(other, "keep"), "k")
	write(t, filepath.Join(other, "drop"), "d")
	write(t, filepath.Join(other, ".dockerignore"), "drop\n")
	o.Contexts = map[string]string{"other": other}
	p := mustPlan(t, o, "FROM base\nCOPY src/* /s/\nCOPY --from=other . /o\nRUN --mount=source=top,target=/t --mount=from=other,target=/o x")
	if got := strings.Join(p.Inputs, " "); got != ".dockerignore src/a src/b/c top" {
		t.Errorf("inputs %s", got)
	}
	steps := last(p).Steps
	if m := steps[0].Copy.Matches; len(m) != 2 || m[0].Path != "src/a" || m[0].Entry.SHA256 == "" {
		t.Errorf("matches %+v", m)
	}
	if f := steps[1].Copy.From; f.Context != other || !slices.Equal(f.Ignore, []string{"drop"}) || len(steps[1].Copy.Matches[0].Below) != 2 {
		t.Errorf("from %+v with %+v", f, steps[1].Copy.Matches)
	}
	if m := steps[2].Run.Mounts; m[0].Matches[0].Path != "top" || len(m[1].Matches[0].Below) != 2 {
		t.Errorf("mounts %+v", m)
	}

	// The file beside the Dockerfile counts alone, even an empty one.
	o.File = filepath.Join(other, "Dockerfile")
	write(t, o.File+".dockerignore", "")
	if p := mustPlan(t, o, "FROM base\nCOPY left /l"); slices.Contains(p.Inputs, ".dockerignore") || len(p.Inputs) != 1 {
		t.Errorf("inputs %q", p.Inputs)
	}
}

// What a base's source says about it stands at the line that begins with it.
func TestBaseWarnings(t *testing.T) {
	p := mustPlan(t, options(t), "FROM base\nFROM full")
	if want := []Warning{{File: "Dockerfile", Line: 2, Text: "full: it is odd"}}; !slices.Equal(p.Warnings, want) {
		t.Errorf("got %v, want %v", p.Warnings, want)
	}
	if p := mustPlan(t, options(t), "FROM base"); len(p.Warnings) > 0 {
		t.Errorf("a base without warnings has %v", p.Warnings)
	}
}
