package probe

import (
	"fmt"
	"io"
	"strings"
)

// Markdown prints the comparison for a page that operators read: the guide's
// table first, then what it rests on and what stayed open.
func (c Comparison) Markdown(w io.Writer) error {
	p := &page{w: w, columns: 80}
	o := c.After
	p.line("# What a command can reach on %s", md(o.Hostname))
	p.line("")
	p.line("Linux %s, %s, uid %d. Answer: **%s**.", md(o.Kernel), md(o.Arch), o.UID, c.Answer)
	p.line("")
	if len(c.Differ) > 0 {
		p.line("These reports cannot be compared:")
		p.line("")
		p.bullets(c.Differ)
		return p.err
	}
	p.mdRows(c)
	p.line("")
	p.line("## The reports")
	p.line("")
	p.line("| Report | Where | Controls on the process | Made | Command |")
	p.line("|---|---|---|---|---|")
	for _, r := range c.origins() {
		p.line("| %s | %s | %s | %s | %s |", r.role, md(r.o.where()), r.o.controls(), md(r.o.made()), code(strings.Join(r.o.Argv, " ")))
	}
	if c.Answer != Yes {
		p.line("")
		p.line("## Why the answer is not yes")
		p.line("")
		p.bullets(c.Reasons)
	}
	for _, s := range c.sections() {
		p.mdSection(s)
	}
	p.line("")
	head, kinds := c.tally()
	p.line("%s:", head)
	p.line("")
	p.bullets(kinds)
	if len(c.Notes) > 0 {
		p.line("")
		p.bullets(c.Notes)
	}
	p.line("")
	p.line("*Denied* means that an attempt was made and refused, beside a control that")
	p.line("shows it works without the fence. Landlock and seccomp share the node's kernel:")
	p.line("they stop ordinary code, they are not a virtual machine.")
	return p.err
}

func (p *page) mdRows(c Comparison) {
	head, line := "| Probe |", "|---|"
	var names []string
	for _, r := range c.origins() {
		names = append(names, r.role)
		head += " " + r.role + " |"
		line += "---|"
	}
	p.line("%s", head)
	p.line("%s", line)
	for _, r := range c.Rows {
		cells := ""
		for _, cell := range r.cells() {
			cells += " " + cell.Word + " |"
		}
		p.line("| %s |%s", r.Name, cells)
	}
	p.line("")
	p.line("What each line rests on:")
	p.line("")
	for _, r := range c.Rows {
		var on []string
		for _, e := range r.rests(names, 4) {
			for i := range e.names {
				e.names[i] = code(e.names[i])
			}
			on = append(on, e.said+strings.Join(e.names, ", "))
		}
		s := fmt.Sprintf("- %s: %s", r.Name, nonEmpty(strings.Join(on, "; "), "nothing"))
		for i, cell := range r.cells() {
			if cell.Why != "" {
				s += "; " + names[i] + " " + md(cell.text())
			}
		}
		if r.Note != "" {
			s += "; " + md(r.Note)
		}
		p.line("%s", s)
	}
}

// namedOrigin is a report by the part it has in the comparison.
type namedOrigin struct {
	role string
	o    Origin
}

func (c Comparison) origins() []namedOrigin {
	list := []namedOrigin{{"before", c.Before}, {"after", c.After}}
	if c.Host != nil {
		list = append([]namedOrigin{{"host", *c.Host}}, list...)
	}
	return list
}

func (p *page) mdSection(s section) {
	if len(s.changes) == 0 {
		return
	}
	p.line("")
	p.line("## %s (%d)", s.title, len(s.changes))
	p.line("")
	for _, e := range s.entries(4) {
		var names []string
		for _, n := range e.names {
			names = append(names, code(n))
		}
		list := strings.Join(names, ", ")
		switch {
		case e.said == "":
			p.line("- %s", list)
		case s.lead:
			p.line("- %s: %s", md(e.said), list)
		default:
			p.line("- %s: %s", list, md(e.said))
		}
	}
}

func (p *page) bullets(list []string) {
	for _, s := range list {
		p.line("- %s", md(s))
	}
}

// md makes text from a report safe inside a line or a table cell.
func md(s string) string {
	s = printable(s)
	for _, c := range []string{`\`, "`", "*", "_", "|", "<", ">", "[", "]", "#", "&"} {
		s = strings.ReplaceAll(s, c, `\`+c)
	}
	return s
}

// code sets text in a code span that fits in a table cell.
func code(s string) string {
	s = strings.ReplaceAll(printable(s), "|", `\|`)
	if !strings.Contains(s, "`") {
		return "`" + s + "`"
	}
	return "`` " + strings.ReplaceAll(s, "``", "` `") + " ``"
}
