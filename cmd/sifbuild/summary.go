package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"fence/pkg/build"
	"fence/pkg/check"
	"fence/pkg/cli"
	"fence/pkg/task"
)

// recorder prints a record for each task and remembers all for the summary.
type recorder struct {
	enc     *json.Encoder
	gone    func() // called when nobody reads the records any more
	print   bool
	reports []build.Report
	failed  int
}

func (o *recorder) add(t task.Task, r *build.Report) {
	one := *r
	one.Name, one.Task = t.Name, t.Dir
	one.Warnings = append(append([]string{}, t.Warnings...), r.Warnings...) // never null
	o.reports = append(o.reports, one)
	if one.Fault != nil {
		o.failed++
	}
	if !o.print {
		return
	}
	// What cannot be written is cli.Main's to say.
	if err := o.enc.Encode(one); errors.Is(err, syscall.EPIPE) {
		o.gone()
	}
}

// early says which tasks have no plan, before the others are built.
func (o *recorder) early(w io.Writer) {
	var rows []unplanned
	for _, r := range o.reports {
		rows = append(rows, unplanned{name: r.Name, text: r.Fault.Message, same: within(r.Task, r.Fault.Message)})
	}
	sayUnplanned(w, rows)
}

// unplanned is a task that has no plan: why, and why without its own path.
type unplanned struct{ name, text, hint, same string }

// sayUnplanned says each reason once, of the first task that has it.
func sayUnplanned(w io.Writer, rows []unplanned) {
	const most = 10
	said, printed := map[[2]string]int{}, 0
	for _, r := range rows {
		said[[2]string{r.same, r.hint}]++
	}
	for i, r := range rows {
		n := said[[2]string{r.same, r.hint}]
		if n == 0 {
			continue // with the first
		}
		if printed++; printed > most {
			rest := 0
			for _, r := range rows[i:] {
				rest += said[[2]string{r.same, r.hint}]
				delete(said, [2]string{r.same, r.hint})
			}
			fmt.Fprintf(w, "sifbuild: and %d more have no plan\n", rest)
			return
		}
		delete(said, [2]string{r.same, r.hint})
		more := ""
		if n > 1 {
			more = fmt.Sprintf(" (and %s more)", plural(n-1, "task"))
		}
		fmt.Fprintf(w, "sifbuild: %s: no plan: %s%s\n", cli.Printable(r.name), cli.Printable(r.text), more)
		if r.hint != "" {
			fmt.Fprintf(w, "hint: %s\n", cli.Printable(r.hint))
		}
	}
}

// most is how many tasks a list of the summary names: the records have all.
const most = 20

// summary says for people what came of the tasks.
func (o *recorder) summary(w io.Writer, columns int) {
	images, there, smoked := map[string]bool{}, 0, map[string]int{}
	var bytes int64
	where := "" // the images are
	classes := map[string]int{}
	var none, warned [][3]string
	var whys [][4]string // class, message, what was said last, hint: as they were met
	failures := map[[4]string][]build.Report{}
	for _, r := range o.reports {
		if f := r.Fault; f != nil {
			classes[f.Class]++
			why := [4]string{f.Class, within(r.Task, f.Message), lastSaid(f.Detail), within(r.Task, f.Hint)}
			if failures[why] = append(failures[why], r); len(failures[why]) == 1 {
				whys = append(whys, why)
			}
			continue
		}
		if images[r.Key] {
			continue
		}
		images[r.Key], where = true, filepath.Dir(r.Image)
		bytes += r.Bytes
		if r.Cached {
			there++
		}
		if r.Smoke != "ok" {
			smoked[r.Smoke]++
		}
		for _, f := range r.Findings {
			if f.Level == check.Warning {
				warned = append(warned, [3]string{r.Name, f.Class, f.Text})
			}
		}
		for _, text := range r.Warnings {
			warned = append(warned, [3]string{r.Name, "", within(r.Task, text)})
		}
	}
	for _, why := range whys {
		r, more := failures[why][0], ""
		if n := len(failures[why]); n > 1 {
			more = fmt.Sprintf(" (and %s more)", plural(n-1, "task"))
		}
		none = append(none, [3]string{r.Name, why[0], why[1] + more})
		if why[2] != "" {
			none = append(none, [3]string{"", "", "it said: " + why[2]})
		}
		if why[3] != "" {
			none = append(none, [3]string{"", "", "hint: " + why[3]})
		}
		if r.Log != "" {
			none = append(none, [3]string{"", logRow, r.Log})
		}
	}
	table(w, columns, "WARNING", once(warned))
	table(w, columns, "NO IMAGE", none)
	of := plural(len(o.reports), "task")
	if o.failed > 0 {
		of = fmt.Sprintf("%d of %s", len(o.reports)-o.failed, of)
	}
	fmt.Fprintf(w, "%s for %s: %d built, %d there before; %s\n", plural(len(images), "image"), of, len(images)-there, there, cli.Size(bytes))
	if where != "" && !o.print {
		fmt.Fprintf(w, "in %s: the same again with > images.jsonl says which is whose\n", cli.Printable(where))
	}
	for _, why := range slices.Sorted(maps.Keys(smoked)) {
		fmt.Fprintf(w, "smoke of %s: %s\n", plural(smoked[why], "image"), why)
	}
	if o.failed > 0 {
		var list []string
		for _, c := range slices.Sorted(maps.Keys(classes)) {
			list = append(list, fmt.Sprintf("%s %d", c, classes[c]))
		}
		fmt.Fprintf(w, "no image for %s: %s\n", plural(o.failed, "task"), strings.Join(list, ", "))
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// lack says that some of all tasks have no image, or what is named.
func lack(some, all int, what string) error {
	verb := "have"
	if some == 1 {
		verb = "has"
	}
	return fmt.Errorf("%d of %s %s no %s", some, plural(all, "task"), verb, what)
}

// lastSaid is the last line that a command printed, of the end of a log: lines
// with == and -- are the log's own.
func lastSaid(detail string) string {
	lines := strings.Split(strings.TrimSpace(detail), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	if strings.HasPrefix(last, "== ") || strings.HasPrefix(last, "-- ") {
		return ""
	}
	return last
}

// within is a text about a task, with the paths in its folder seen from there.
func within(dir, text string) string { return strings.ReplaceAll(text, dir+"/", "") }

// once are rows of which none says what another says: what an image gives away,
// which has a class, first, then what is said of a Dockerfile, each once with
// how many more tasks it is said of. So a warning of all tasks hides no other.
func once(rows [][3]string) (out [][3]string) {
	said := map[[2]string]int{}
	for _, r := range rows {
		said[[2]string{r[1], r[2]}]++
	}
	slices.SortStableFunc(rows, func(a, b [3]string) int { return cmp.Compare(min(len(b[1]), 1), min(len(a[1]), 1)) })
	for _, r := range rows {
		what := [2]string{r[1], r[2]}
		n := said[what]
		delete(said, what)
		switch {
		case n > 1:
			r[2] += fmt.Sprintf(" (and %s more)", plural(n-1, "task"))
			fallthrough
		case n == 1:
			out = append(out, r)
		}
	}
	return out
}

// logRow in the place of a class marks the path of a log.
const logRow = "log"

// table prints rows of a task, a class and a text that is wrapped to the
// terminal. A row without a task goes on with the one before it. The path of a
// log stays whole, so that it can be copied.
func table(w io.Writer, columns int, heading string, rows [][3]string) {
	if len(rows) == 0 {
		return
	}
	tasks, left, class, rest := 0, len(heading), 0, 0
	for i, r := range rows {
		if r[0] != "" {
			if tasks++; tasks > most {
				for _, r := range rows[i:] {
					if r[0] != "" {
						rest++
					}
				}
				rows = rows[:i]
				break
			}
		}
		left = max(left, len([]rune(cli.Printable(r[0]))))
		class = max(class, len(r[1]))
	}
	left = min(left, columns/4)
	indent := left + 2
	if class > 0 {
		indent += class + 2
	}
	fmt.Fprintln(w, heading)
	for _, r := range rows {
		if r[1] == logRow {
			text := "log: " + cli.Printable(r[2])
			fmt.Fprintln(w, strings.Repeat(" ", max(2, min(indent, columns-len([]rune(text)))))+text)
			continue
		}
		prefix := fmt.Sprintf("%-*s  ", left, cli.Short(cli.Printable(r[0]), left))
		if class > 0 {
			prefix += fmt.Sprintf("%-*s  ", class, r[1])
		}
		for _, line := range cli.Fold(cli.Printable(r[2]), max(20, columns-indent)) {
			fmt.Fprintln(w, prefix+line)
			prefix = strings.Repeat(" ", indent)
		}
	}
	if rest > 0 {
		fmt.Fprintf(w, "and %d more: the records have all\n", rest)
	}
	fmt.Fprintln(w)
}
