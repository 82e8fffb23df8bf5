package probe

import (
	"fmt"
	"slices"
	"strings"
)

// Row is one of the guide's five lines: what a command could do before, and
// what it can do now.
type Row struct {
	Name   string `json:"name"`
	Host   *Cell  `json:"host,omitempty"`
	Before Cell   `json:"before"`
	After  Cell   `json:"after"`
	Want   string `json:"want"`   // the word a fence must leave in After
	Answer Answer `json:"answer"` // whether it did
	Note   string `json:"note,omitempty"`
}

// Cell is one word of a Row and the attempts that it rests on.
type Cell struct {
	Word    string `json:"word"`
	Why     string `json:"why,omitempty"`
	RestsOn []Key  `json:"rests_on"`
	made    []Key  // those of RestsOn that this report made: AFTER may need none where its lists have no such target
	state   state
	listed  bool // shut, and shown so by the kernel's list of mounts
	works   bool // no target was given, but such sockets work
	always  bool // shut whatever the target
}

func (c Cell) text() string {
	if c.Why == "" {
		return c.Word
	}
	return c.Word + ": " + c.Why
}

// rowRule says how one row is read off a report.
type rowRule struct {
	name    string
	ids     []string // the attempts that decide
	want    state
	words   map[Outcome]string // a word for each outcome that says something
	ask     string             // what to do when nothing was tried
	control string             // an attempt that shows that there was something to refuse, where no target was given
	leak    string             // an attempt that may work all the same
	leaks   string             // and what that means
}

var rowRules = []rowRule{
	{
		name:  "Shared project filesystem",
		ids:   []string{"fs.shared.list", "fs.shared.write"},
		want:  shut,
		words: map[Outcome]string{Reachable: "visible", Absent: "not mounted", Denied: "denied"},
		ask:   "no shared path was tried; name one with --shared",
		leak:  "fs.shared.stat",
		leaks: "names and sizes can still be seen: only a path that is absent or masked is out of sight",
	}, {
		name:    "TCP connection to an outside host",
		ids:     []string{"net.tcp.canary", "net.tcp.out", "net.tcp.cluster", "net.dns.tcp", "net.tcp.fastopen", "net.mptcp"},
		want:    shut,
		words:   map[Outcome]string{Reachable: "open", Denied: "denied", Absent: "no way out", Unreachable: "no way out"},
		ask:     "no canary was given; start `probe listen`",
		control: "net.loopback.own",
	}, {
		name:  "UDP socket (DNS)",
		ids:   []string{"net.udp.socket"},
		want:  shut,
		words: map[Outcome]string{Reachable: "allowed", Denied: "denied", Absent: "absent"},
		ask:   "no UDP socket was tried",
	}, {
		name: "System-call filter",
		want: open,
	}, {
		name:  "Writing inside the task's own directories",
		ids:   []string{"fs.task.write"},
		want:  open,
		words: map[Outcome]string{Reachable: "works", Denied: "denied", Absent: "absent"},
		ask:   "no directory was tried",
	},
}

// rows reads the five rows off the reports.
func (v views) rows() []Row {
	var rows []Row
	for _, rule := range rowRules {
		read := func(r *view) Cell {
			c := v.doorCell(rule, r)
			c.made = slices.DeleteFunc(slices.Clone(c.RestsOn), func(k Key) bool { return !r.made(k) })
			return c
		}
		if rule.ids == nil {
			read = filterCell
		}
		row := Row{Name: rule.name, Before: read(v.before), After: read(v.after), Want: rule.wanted()}
		if v.host != nil {
			c := read(v.host)
			row.Host = &c
		}
		row.Answer, row.Note = row.judge(rule, v.moreFilters())
		if row.After.state == shut && rule.leak != "" && v.after.reaches(rule.leak) {
			row.Note = rule.leaks
		}
		rows = append(rows, row)
	}
	return rows
}

func (r rowRule) wanted() string {
	switch {
	case r.ids == nil:
		return "active"
	case r.want == open:
		return r.words[Reachable]
	case r.words[Absent] == "not mounted":
		return "not mounted"
	}
	return r.words[Denied]
}

// judge says whether After is what a fence must leave, and what that rests
// on if it is not plain from the words.
func (r Row) judge(rule rowRule, moreFilters bool) (Answer, string) {
	controls := []Cell{r.Before}
	if r.Host != nil {
		controls = append(controls, *r.Host)
	}
	wasOpen := slices.ContainsFunc(controls, func(c Cell) bool { return c.state == open })
	switch {
	case r.After.state == unknown:
		return CannotTell, ""
	case r.After.state != rule.want && rule.want == open && rule.ids != nil && !wasOpen:
		return CannotTell, "it did not work before either, so this is not the fence's doing"
	case r.After.state != rule.want:
		return No, ""
	case rule.ids == nil && !moreFilters:
		return No, "there were as many filters before: the fence added none"
	case rule.want == shut && !wasOpen && r.After.always && slices.ContainsFunc(controls, func(c Cell) bool { return c.works }):
		return Yes, "no TCP socket is to be had, whatever the address; before, " + rule.control + " worked"
	case rule.want == shut && !wasOpen && r.After.listed:
		return Yes, "nothing was there to close before either; this rests on the kernel's list of mounts"
	case rule.want == shut && !wasOpen:
		return CannotTell, "it was not open before either: a HOST report may show that there was something to close"
	}
	return Yes, ""
}

// doorCell sums up the attempts of a rule in one word: one open door is an
// open row, and one doubt among shut ones is a doubt.
func (v views) doorCell(rule rowRule, r *view) Cell {
	keys := v.tried(rule.ids, r)
	by := map[state][]Key{}
	for _, k := range keys {
		s := v.state(r, k)
		if rule.control != "" && (k.Target == "" || r.itself(k.Target)) && s == open && r != v.after {
			continue // to a listener of its own, or of the node's, which is no outside host
		}
		if r.seen(k) == nil && r == v.after && v.gone(k) {
			s = shut
		}
		by[s] = append(by[s], k)
	}
	switch lost := v.lost(r, by[shut]); {
	case rule.want == open && len(lost) > 0:
		return Cell{Word: rule.word(r, lost), Why: strings.Join(bundle(lost, 3), ", ") + " worked before", RestsOn: lost, state: shut}
	case len(by[open]) > 0:
		return Cell{Word: rule.words[Reachable], RestsOn: by[open], state: open}
	case len(by[unknown]) > 0:
		k := by[unknown][0]
		if r.unlisted(k) {
			return Cell{Word: string(CannotTell), Why: "the mounts could not be listed", RestsOn: by[unknown]}
		}
		reason := fmt.Sprintf("%s: %s", k, why(r.seen(k)))
		if r.seen(k) == nil {
			reason += "; give probe the same flags in both runs"
		}
		return Cell{Word: string(CannotTell), Why: reason, RestsOn: by[unknown]}
	case len(by[shut]) > 0:
		c := Cell{Word: rule.word(r, by[shut]), RestsOn: by[shut], state: shut}
		c.always = rule.control != "" && !slices.ContainsFunc(by[shut], func(k Key) bool {
			s := r.seen(k)
			return s != nil && s.Syscall != "socket"
		})
		// The mounts of a container are listed whole; elsewhere it takes that
		// there was no path to try at all.
		c.listed = rule.words[Absent] == "not mounted" && (c.Word == "not mounted" || c.Word == "masked") &&
			(r.mountsListed() || len(keys) == 1 && keys[0].Target == "")
		return c
	}
	c := Cell{Word: string(CannotTell), Why: rule.ask, RestsOn: []Key{}}
	if s := r.seen(Key{ID: rule.control}); s != nil && s.Outcome == Reachable {
		c.works = true
	}
	return c
}

// reaches says whether an attempt of that id was open in the report.
func (v *view) reaches(id string) bool {
	return slices.ContainsFunc(v.rep.Checks, func(f Finding) bool { return f.ID == id && f.Outcome == Reachable })
}

// lost are the attempts among shut ones that worked before the fence. The
// working directory is the same place only if it says so.
func (v views) lost(r *view, keys []Key) (lost []Key) {
	if r != v.after {
		return nil
	}
	for _, k := range keys {
		if v.state(v.before, k) == open && (k.Target != "cwd" || !v.moved()) {
			lost = append(lost, k)
		}
	}
	return lost
}

// moved says whether the two reports may have different working directories.
func (v views) moved() bool {
	wd := Key{ID: "fs.cwd"}
	b, a := v.before.seen(wd), v.after.seen(wd)
	return b == nil || a == nil || b.Evidence != a.Evidence
}

// moreFilters says whether the fence added a system-call filter.
func (v views) moreFilters() bool {
	b, a := v.before.rep.Controls.Seccomp, v.after.rep.Controls.Seccomp
	return b.Mode == 0 || a.Filters > b.Filters // old kernels do not count them
}

// word is the one for the weakest of several shut doors: a mount that is
// refused is more than one that is not there.
func (r rowRule) word(v *view, keys []Key) string {
	var seen []*Seen
	for _, k := range keys {
		if s := v.seen(k); s != nil {
			seen = append(seen, s)
		}
	}
	for _, o := range []Outcome{Denied, Unreachable} {
		if slices.ContainsFunc(seen, func(s *Seen) bool { return s.Outcome == o }) {
			return r.words[o]
		}
	}
	if slices.ContainsFunc(seen, func(s *Seen) bool { return s.Mechanism == "masked" }) {
		return "masked"
	}
	return r.words[Absent]
}

// tried lists the attempts with one of ids that r made, and for the report
// behind the fence also those that were open in a control: to leave one out
// is no way to close it.
func (v views) tried(ids []string, r *view) []Key {
	var keys []Key
	known := map[Key]bool{}
	for _, f := range r.rep.Checks {
		if slices.Contains(ids, f.ID) && f.Outcome != Skipped && f.Outcome != Info {
			keys, known[f.Key()] = append(keys, f.Key()), true
		}
	}
	if r != v.after {
		return keys
	}
	for _, c := range []*view{v.host, v.before} {
		if c == nil {
			continue
		}
		for _, f := range c.rep.Checks {
			if slices.Contains(ids, f.ID) && f.Outcome == Reachable && !known[f.Key()] {
				keys, known[f.Key()] = append(keys, f.Key()), true
			}
		}
	}
	return keys
}

// filterCell reads the system-call filter off the process's own status.
func filterCell(r *view) Cell {
	filter := []Key{{ID: "ctl.seccomp"}}
	c := Cell{Word: "none", RestsOn: filter, made: filter, state: shut}
	if r.rep.Controls.Seccomp.Mode > 0 {
		c.Word, c.state = "active", open
	}
	return c
}

// functions are the checks of what must go on working: an open door there is
// what a task needs.
var functions = []string{"fs.task.write", "net.loopback.own", "proc.signal.own", "dev.pty"}

func isFunction(id string) bool {
	return strings.HasPrefix(id, "work.") || slices.Contains(functions, id)
}
