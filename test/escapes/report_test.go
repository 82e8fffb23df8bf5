package escapes

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fence/test/bed"
	"fence/test/escapes/internal/wire"
)

var update = flag.Bool("update", false, "write docs/escapes.md from what was measured")

const docFile = "../../docs/escapes.md"

// TestDocument holds docs/escapes.md against the table, which says what may come out on which kernel.
func TestDocument(t *testing.T) {
	have, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	documentHolds(t, string(have))
}

// report holds docs/escapes.md against what was measured, if that was on the document's kernel.
func report(t *testing.T) {
	for arm := range arms {
		if len(measured[arm]) != len(rows) {
			t.Skip("not all arms were run")
		}
	}
	if os.Geteuid() != 0 {
		bed.Missing(t, "root: only root can make all fixtures that the document speaks of")
	}
	have, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	kernel := thisKernel(t)
	text := document(kernel, measured)
	if *update {
		if err := os.WriteFile(docFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		documentHolds(t, text)
		return
	}
	if from := documentKernel(string(have)); from != kernel {
		t.Logf("docs/escapes.md was measured on %s and this is %s: held against the table alone", from, kernel)
	} else if string(have) != text {
		t.Errorf("docs/escapes.md is not what was measured: go test ./test/escapes -update\n%s", firstDifference(string(have), text))
	}
}

// documentHolds makes sure that every outcome in the document is one that the table has for the
// kernel that it was measured on, and that all the rest is what would be written today.
func documentHolds(t *testing.T, text string) {
	t.Helper()
	kernel := documentKernel(text)
	var version, arch string
	var abi int
	if _, err := fmt.Sscanf(kernel, "Linux %s %s with Landlock ABI %d", &version, &arch, &abi); err != nil {
		t.Fatalf("docs/escapes.md does not say what it was measured on: %q, %v", kernel, err)
	}
	said := documented(text)
	for arm := range arms {
		for _, r := range rows {
			p, err := r.parse()
			if err != nil {
				t.Fatal(err)
			}
			p = there(p, arm, strings.Trim(arch, "()"))
			if wrong := p.compare(said[arm][r.name], arm, abi); len(wrong) > 0 {
				t.Errorf("docs/escapes.md, row %s, %s, is not what the table has\n%s", r.name, armNames[arm], strings.Join(wrong, "\n"))
			}
		}
	}
	if again := document(kernel, said); again != text {
		t.Errorf("docs/escapes.md is not what would be written today: go test ./test/escapes -update\n%s", firstDifference(text, again))
	}
}

// documentKernel is what the document says that it was measured on.
func documentKernel(text string) string {
	_, rest, _ := strings.Cut(text, "measured on ")
	kernel, _, _ := strings.Cut(rest, " by\n")
	return kernel
}

// documented are the results in the document's table.
func documented(text string) [arms]map[string]wire.Result {
	var said [arms]map[string]wire.Result
	for arm := range arms {
		said[arm] = map[string]wire.Result{}
	}
	table, _, _ := strings.Cut(text, "\n## ")
	row := ""
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "|\n "), " | ")
		if name, ok := strings.CutPrefix(line, "| **"); ok {
			row, _, _ = strings.Cut(name, "**")
			for arm := range arms {
				said[arm][row] = wire.Result{Row: row}
			}
			continue
		}
		if row == "" || len(cells) != 1+arms {
			continue
		}
		for arm := range arms {
			cell, r := cells[1+arm], said[arm][row]
			switch {
			case cell == nothing:
			case cells[0] == "*changed*":
				r.Changed = strings.Split(cell, ", ")
			default:
				for name := range strings.SplitSeq(cells[0], ", ") {
					name = strings.TrimSuffix(name, " (remains)")
					r.Steps = append(r.Steps, wire.Step{Row: row, Step: name, Errno: cell})
				}
			}
			said[arm][row] = r
		}
	}
	return said
}

// nothing is a cell of the document for what was not reached.
const nothing = "–"

func firstDifference(have, want string) string {
	h, w := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := range min(len(h), len(w)) {
		if h[i] != w[i] {
			return fmt.Sprintf("line %d is   %s\nmeasured    %s", i+1, h[i], w[i])
		}
	}
	return "one ends before the other"
}

// thisKernel names the kernel as far as outcomes depend on it.
func thisKernel(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	version := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	return fmt.Sprintf("Linux %s (%s) with Landlock ABI %d", strings.Join(version[:2], "."), unix.ByteSliceToString(u.Machine[:]), landlockABI(t))
}

func document(kernel string, results [arms]map[string]wire.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Escapes that are tried

What a hostile command would try, and what came of it, measured on %s by
`+"`go test ./test/escapes`"+`, which also checks that this page says what it measured. Every row runs as an ordinary
user, by raw system calls, against a process of the same user outside the fence that has sockets, shared memory, a
token in its environment, terminals and files; afterwards that process is alive and unchanged but for what the line
"changed" says.

- **no fence** is the control: what is refused further right works here, or the kernel's own code answers (EFAULT,
  EBADF, EINVAL: it looked at the arguments), or a note says why there is no control.
- **Landlock only** handles all rights of this kernel, reads everywhere but in the hidden folder and writes in the
  folder of work. It shows what Landlock does not see.
- **namespace** and **bare** are the policy strict in its two forms, with one more folder hidden. Bare runs on a node
  without user namespaces and takes what has to be accepted there (landlock-hide, host-tmp, sockets).
- The last three columns are a container as `+"`fence env`"+` starts it, with the victim in the same container.

OK is success, with what was seen where something was read ("canary" is a secret). A dash was not reached, because
the step before was refused. "remains" marks what is open and known to be.

| row | attempt | no fence | Landlock only | namespace | bare | container: no fence | namespace | bare |
|---|---|---|---|---|---|---|---|---|
`, kernel)
	for _, r := range rows {
		r.write(&b, results)
	}
	b.WriteString("\n## As user 0 of a container\n\nWith `apptainer exec --fakeroot` the user has all capabilities in the container until fence takes them. The table\n" +
		"comes out the same there, but for these (TestEscapesAsRoot):\n\n| row | attempt | container: no fence | namespace | bare |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		p, err := row{name: r.name, text: asRootOfContainer[r.name]}.parse()
		if asRootOfContainer[r.name] == "" || err != nil {
			continue
		}
		for _, s := range p.steps {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.name, s.name, strings.Join(s.want[boxNone:], " | "))
		}
	}
	b.WriteString("\n## Rows that are not in the table\n\n| row | attempt | result | test |\n|---|---|---|---|\n")
	for _, o := range otherwise {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", o.name, o.what, o.result, o.where)
	}
	b.WriteString("\n## Known to remain\n\n")
	for _, r := range rows {
		p, _ := r.parse()
		var names []string
		for _, s := range p.steps {
			if s.kind == remains {
				names = append(names, s.name)
			}
		}
		if len(names) > 0 {
			fmt.Fprintf(&b, "- row %s, %s: %s%s\n", r.name, r.what, strings.Join(names, ", "), because(r.why))
		}
	}
	for _, a := range alsoRemains {
		fmt.Fprintf(&b, "- %s (%s)\n", a.what, a.where)
	}
	b.WriteString("- bugs of the kernel, which is shared; side channels of time and caches; load; whatever a granted socket's server does\n")
	b.WriteString("\n## Notes\n\n")
	for _, r := range rows {
		p, _ := r.parse()
		if r.why != "" {
			fmt.Fprintf(&b, "- row %s: %s\n", r.name, r.why)
		}
		last := ""
		for _, s := range p.steps {
			if s.note == "the same" || s.note == "" || s.note == last {
				continue
			}
			last = s.note
			fmt.Fprintf(&b, "- row %s, %s: %s\n", r.name, s.name, s.note)
		}
	}
	return b.String()
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// write writes a row's lines: steps that came out alike stand together.
func (r row) write(b *strings.Builder, results [arms]map[string]wire.Result) {
	p, _ := r.parse()
	type line struct {
		names []string
		cells string
	}
	var lines []line
	for _, s := range p.steps {
		var cells []string
		for arm := range arms {
			cell := nothing
			for _, got := range results[arm][r.name].Steps {
				if got.Step == s.name {
					cell = got.Outcome()
				}
			}
			cells = append(cells, cell)
		}
		name := s.name
		if s.kind == remains {
			name += " (remains)"
		}
		all := strings.Join(cells, " | ")
		i := slices.IndexFunc(lines, func(l line) bool { return l.cells == all })
		if i < 0 {
			lines = append(lines, line{cells: all})
			i = len(lines) - 1
		}
		lines[i].names = append(lines[i].names, name)
	}
	var changed []string
	any := false
	for arm := range arms {
		c := strings.Join(results[arm][r.name].Changed, ", ")
		any = any || c != ""
		if c == "" {
			c = nothing
		}
		changed = append(changed, c)
	}
	fmt.Fprintf(b, "| **%s** | **%s** | | | | | | | |\n", r.name, r.what)
	for _, l := range lines {
		fmt.Fprintf(b, "| | %s | %s |\n", strings.Join(l.names, ", "), l.cells)
	}
	if any {
		fmt.Fprintf(b, "| | *changed* | %s |\n", strings.Join(changed, " | "))
	}
}
