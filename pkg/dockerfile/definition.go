package dockerfile

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/internal/text"
)

const preface = `# What a Dockerfile means, as an Apptainer definition: for reading, not for
# building. A definition runs all of %files before all of %post, runs %post in
# one shell with -e and umask 0002 and the node's /tmp, and copies with cp -fLr.
# What it cannot say is in a comment that begins with ##.
`

// Definition writes what the plan means as an Apptainer definition, for people
// to read. Each RUN stands as the command that is executed, with its folder and
// environment. What a definition cannot express is a comment that begins with
// "##"; a text that would be read as part of the definition itself (a line that
// begins with %, a {{ }}) is one, too.
func Definition(p *Plan) (string, error) {
	if len(p.Stages) == 0 {
		return "", fmt.Errorf("BUG: a plan without a stage")
	}
	d := &definition{stages: map[int]Stage{}}
	d.WriteString(preface)
	for _, w := range p.Warnings {
		d.remark("%s:%d: %s", w.File, w.Line, w.Text)
	}
	for i, s := range p.Stages {
		d.stages[s.Index] = s
		d.stage(s, len(p.Stages) > 1, i == len(p.Stages)-1)
	}
	return d.String(), nil
}

type definition struct {
	strings.Builder
	stages map[int]Stage // so far, by index
}

func (d *definition) line(format string, a ...any) { fmt.Fprintf(d, format+"\n", a...) }

// remark writes text as comments, whatever is in it.
func (d *definition) remark(format string, a ...any) {
	for _, l := range strings.Split(strings.TrimSuffix(fmt.Sprintf(format, a...), "\n"), "\n") {
		d.line("## %s", strings.TrimSuffix(l, "\r"))
	}
}

func (d *definition) stage(s Stage, several, last bool) {
	d.line("")
	// A definition's stage cannot begin with another one: what that did comes first.
	chain := []Stage{s}
	for chain[0].From.Stage != nil {
		chain = append([]Stage{d.stages[*chain[0].From.Stage]}, chain...)
	}
	switch from := chain[0].From; {
	case from.Base != nil:
		d.line("Bootstrap: docker")
		d.line("From: %s", from.Base.Name)
		d.remark("of the content %s", from.Base.Digest)
	case from.Context != "":
		d.line("Bootstrap: localimage")
		d.line("From: %s", quiet(text.Printable(from.Context)))
		if len(from.Ignore) > 0 {
			d.remark("without what its .dockerignore leaves out")
		}
	default:
		d.line("Bootstrap: scratch")
	}
	if several {
		d.line("Stage: %s", stageName(s))
	}
	for _, c := range chain[:len(chain)-1] {
		d.remark("it begins as the stage %s: the steps of that are repeated here", stageName(c))
	}
	var steps []Step
	for _, c := range chain {
		steps = append(steps, c.Steps...)
	}
	d.files(steps)
	d.post(steps)
	if last {
		d.config(s.Config, s.Author)
	}
}

func stageName(s Stage) string {
	if s.Name != "" {
		return s.Name
	}
	return fmt.Sprintf("stage-%d", s.Index)
}

// files writes one %files section for each place that is copied from.
func (d *definition) files(steps []Step) {
	section, ran := "", 0
	for _, s := range steps {
		if s.Run != nil || s.Workdir != nil {
			ran = s.Line
		}
		c := s.Copy
		if c == nil {
			continue
		}
		head := "%files"
		if c.From.Stage != nil {
			head = "%files from " + stageName(d.stages[*c.From.Stage])
		}
		if head != section {
			section = head
			d.line("\n%s", head)
		}
		d.line("    # line %d: %s", s.Line, quiet(s.Text))
		if ran > 0 {
			d.remark("that is after line %d, whose effect it sees: here it comes before", ran)
		}
		d.copies(c)
	}
}

// copies writes the files that a definition copies as COPY does, and the others
// as remarks.
func (d *definition) copies(c *Copy) {
	var flags []string
	for _, f := range []struct{ name, value string }{{"owner", c.Chown}, {"mode", c.Chmod}, {"without", strings.Join(c.Exclude, ", ")}, {"checksum", c.Checksum}} {
		if f.value != "" {
			flags = append(flags, f.name+" "+f.value)
		}
	}
	if c.Parents {
		flags = append(flags, "with the folders above")
	}
	note := ""
	if len(flags) > 0 {
		note = " (" + strings.Join(flags, ", ") + ")"
	}
	for _, m := range c.Matches {
		dest := c.Dest
		if strings.HasSuffix(dest, "/") {
			dest += m.Name
		}
		switch plain := !c.Add && !c.Parents && len(c.Chown+c.Chmod) == 0 && m.Entry.Type == "file" && word(m.Path) && word(dest); {
		case plain && strings.HasSuffix(c.Dest, "/"):
			d.line("    %s %s", m.Path, dest)
		case plain:
			d.line("    %s %s", m.Path, dest)
			d.remark("into %s/, if that is a folder", dest)
		case m.Entry.Type == "dir":
			d.remark("the contents of %s, %d entries, into %s%s", m.Path, len(m.Below), c.Dest, note)
		default:
			what := "the file"
			if c.Add && c.Unpack == nil || c.Unpack != nil && *c.Unpack {
				what = "the file, unpacked if it is an archive,"
			}
			d.remark("%s %s as %s%s", what, m.Path, dest, note)
		}
	}
	if c.From.Context == "" {
		where := "an empty folder"
		switch {
		case c.From.Base != nil:
			where = "the image " + c.From.Base.Name
		case c.From.Stage != nil:
			where = stageName(d.stages[*c.From.Stage])
		}
		for _, source := range c.Sources {
			d.remark("%s of %s to %s%s; of a folder, the contents", source, where, c.Dest, note)
		}
	}
	for _, u := range c.URLs {
		d.remark("%s, fetched, to %s%s", u.URL, c.Dest, note)
	}
	for _, f := range c.Inline {
		dest := c.Dest
		if strings.HasSuffix(dest, "/") {
			dest += f.Path
		}
		d.remark("this text to %s%s:\n%s", dest, note, indent(string(f.Data)))
	}
}

func indent(text string) string {
	return "  | " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  | ")
}

func (d *definition) post(steps []Step) {
	if !slices.ContainsFunc(steps, func(s Step) bool { return s.Run != nil || s.Workdir != nil }) {
		return
	}
	d.line("\n%%post")
	for _, s := range steps {
		switch {
		case s.Workdir != nil:
			d.line("    # line %d", s.Line)
			if l := "mkdir -p " + quote(s.Workdir.Path); carried(l) {
				d.line("    %s", l)
			} else {
				d.remark("%s", l)
			}
			if s.Workdir.User != "" {
				d.remark("owned by %s, if it is new", s.Workdir.User)
			}
		case s.Run != nil:
			d.line("    # line %d: %s", s.Line, quiet(s.Text))
			d.command(s.Run)
		}
	}
}

func (d *definition) command(r *Run) {
	if r.User != "" {
		d.remark("as the user %s", r.User)
	}
	if r.Network != "default" {
		d.remark("with the network %q", r.Network)
	}
	for _, m := range r.Mounts {
		from := ""
		switch f := m.From; {
		case f == nil:
		case f.Context != "":
			from = " from " + path.Join(f.Context, m.Source)
		case f.Stage != nil:
			from = fmt.Sprintf(" from /%s of %s", m.Source, stageName(d.stages[*f.Stage]))
		case f.Base != nil:
			from = fmt.Sprintf(" from /%s of the image %s", m.Source, f.Base.Name)
		}
		at := m.Target
		if m.Env != "" {
			at = strings.TrimPrefix(at+" and $"+m.Env, " and ")
		}
		d.remark("while it runs, a %s mount is at %s%s", m.Type, at, from)
	}
	for _, f := range r.Files {
		d.remark("while it runs, %s is this program:\n%s", f.Path, indent(string(f.Data)))
	}
	words := []string{"env", "-i"}
	if r.User == "" && !slices.ContainsFunc(r.Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }) {
		words = append(words, "HOME=/root")
	}
	for _, kv := range slices.Concat(r.Env, r.Proxy) {
		words = append(words, quote(kv))
	}
	for _, a := range r.Argv {
		words = append(words, quote(a))
	}
	command := fmt.Sprintf("(umask 022; cd %s && exec %s) < /dev/null", quote(r.Cwd), strings.Join(words, " "))
	if len(r.Mounts)+len(r.Files) > 0 || r.User != "" || r.Network != "default" || !carried(command) {
		d.remark("%s", command)
		return
	}
	d.line("    %s", command)
}

func (d *definition) config(c v1.Config, author string) {
	if len(c.Env) > 0 {
		d.line("\n%%environment")
		for _, kv := range c.Env {
			k, v, _ := strings.Cut(kv, "=")
			if l := "export " + k + "=" + quote(v); variable.MatchString(k) && carried(l) {
				d.line("    %s", l)
			} else {
				d.remark("%s, which no shell can set this way", l)
			}
		}
	}
	if len(c.Labels) > 0 {
		d.line("\n%%labels")
		for _, k := range slices.Sorted(maps.Keys(c.Labels)) {
			if l := k + " " + c.Labels[k]; word(k) && carried(l) && !strings.Contains(l, "\n") {
				d.line("    %s", l)
			} else {
				d.remark("label %q: %q", k, c.Labels[k])
			}
		}
	}
	d.runscript(c)
	for _, n := range []struct{ what, value string }{
		{"author", author}, {"user", c.User}, {"ports", strings.Join(slices.Sorted(maps.Keys(c.ExposedPorts)), " ")},
		{"volumes", strings.Join(slices.Sorted(maps.Keys(c.Volumes)), " ")}, {"signal to stop it", c.StopSignal},
		{"shell of its builds", strings.Join(c.Shell, " ")}, {"for images that begin with it", strings.Join(c.OnBuild, "\n")},
	} {
		if n.value != "" {
			d.remark("%s: %s", n.what, n.value)
		}
	}
	if h := c.Healthcheck; h != nil {
		d.remark("healthcheck: %q, every %s, at most %s, from %s on, %d times", h.Test, h.Interval, h.Timeout, h.StartPeriod, h.Retries)
	}
}

func (d *definition) runscript(c v1.Config) {
	if len(c.Entrypoint)+len(c.Cmd) == 0 {
		return
	}
	var words, args []string
	for _, w := range c.Entrypoint {
		words = append(words, quote(w))
	}
	for _, w := range c.Cmd {
		args = append(args, quote(w))
	}
	script := []string{fmt.Sprintf("cd %s", quote(path.Join("/", c.WorkingDir)))}
	if len(args) > 0 {
		script = append(script, fmt.Sprintf("[ $# -gt 0 ] || set -- %s", strings.Join(args, " ")))
	}
	script = append(script, strings.TrimSpace("exec "+strings.Join(words, " "))+` "$@"`)
	d.line("\n%%runscript")
	if all := strings.Join(script, "\n"); carried(all) {
		d.line("    %s", strings.Join(script, "\n    "))
	} else {
		d.remark("%s", all)
	}
}

// quote is s as one word of sh.
func quote(s string) string {
	if word(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

var (
	variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	plain    = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)
	own      = regexp.MustCompile(`(?im)^\s*(%|(bootstrap|from|stage)\s*:)|\{\{`)
)

// word reports whether s means itself to a shell and in %files.
func word(s string) bool { return plain.MatchString(s) && s[0] != '%' }

// carried reports whether a definition can hold text: no line of it is taken
// for one of the definition's own, none is a build argument, and it is not so
// long that a section is (64 KiB).
func carried(s string) bool { return !own.MatchString(s) && len(s) < 32<<10 }

// quiet is a comment's text without what a definition would replace.
func quiet(s string) string { return strings.ReplaceAll(s, "{{", "{ {") }
