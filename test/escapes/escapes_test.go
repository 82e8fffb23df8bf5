package escapes

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"fence/test/bed"
	"fence/test/escapes/internal/wire"
)

// measured are all results of this test process, for docs/escapes.md.
var measured [arms]map[string]wire.Result

// TestEscapes runs the table in every arm.
func TestEscapes(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	abi := landlockABI(t)
	var list []wire.Row
	for _, r := range rows {
		list = append(list, wire.Row{Name: r.name, With: r.with})
	}
	for arm := range arms {
		t.Run(strings.ReplaceAll(armNames[arm], ", ", "-"), func(t *testing.T) {
			for _, a := range []struct {
				arm  int
				form string
			}{{namespace, "namespace"}, {bare, "bare"}, {boxNamespace, "namespace"}, {boxBare, "bare"}} {
				if a.arm != arm {
					continue
				}
				if form := b.form(t, arm); form != a.form {
					t.Fatalf("fence says that it is in the %s form", form)
				}
			}
			results := b.drive(t, arm, list)
			passed := 0
			for _, r := range rows {
				t.Run(r.name, func(t *testing.T) {
					p, err := r.parse()
					if err != nil {
						t.Fatal(err)
					}
					p = b.without(t, p, arm)
					result, ok := results[r.name]
					if !ok {
						t.Fatal("no result")
					}
					if wrong := p.compare(result, arm, abi); len(wrong) > 0 {
						t.Errorf("%s\n%s", r.what, strings.Join(wrong, "\n"))
						return
					}
					passed++
				})
			}
			t.Logf("%d of %d rows are as the table has them", passed, len(rows))
			measured[arm] = results
		})
	}
	t.Run("document", report)
	for _, o := range otherwise {
		t.Logf("row %s (%s): %s; %s", o.name, o.what, o.result, o.where)
	}
}

// TestEscapesAsRoot runs the table as user 0 of a container, which has all capabilities there until
// fence takes them. The outcomes are the same but for those in asRootOfContainer.
func TestEscapesAsRoot(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	abi := landlockABI(t)
	var list []wire.Row
	for _, r := range rows {
		list = append(list, wire.Row{Name: r.name, With: r.with})
	}
	for _, arm := range []int{boxNone, boxNamespace, boxBare} {
		results := b.drive(t, arm, list, fakeroot...)
		b.hold(t, results, arm, abi, asRootOfContainer, "as root")
	}
}

// hold compares the results of an arm with the table, in which the rows of
// other have other outcomes.
func (b tools) hold(t *testing.T, results map[string]wire.Result, arm, abi int, other map[string]string, what string) {
	t.Helper()
	for _, r := range rows {
		p, err := r.parse()
		if err != nil {
			t.Fatal(err)
		}
		p = b.without(t, p, arm)
		if o, ok := other[r.name]; ok {
			parsed, err := row{name: r.name, text: o}.parse()
			if err != nil {
				t.Fatal(err)
			}
			p = p.with(parsed)
		}
		if wrong := p.compare(results[r.name], arm, abi); len(wrong) > 0 {
			t.Errorf("%s, %s: row %s, %s\n%s", what, armNames[arm], r.name, r.what, strings.Join(wrong, "\n"))
		}
	}
}

// with is p with other outcomes for the steps, and changes if there are steps, of other.
func (p parsed) with(other parsed) parsed {
	p.steps = slices.Clone(p.steps)
	for i, s := range p.steps {
		for _, o := range other.steps {
			if o.name == s.name {
				p.steps[i] = o
			}
		}
	}
	p.changed = other.changed
	return p
}

func landlockABI(t *testing.T) int {
	t.Helper()
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		t.Fatal(err)
	}
	return abi
}

// without drops the steps whose fixtures are not there.
func (b tools) without(t *testing.T, p parsed, arm int) parsed {
	t.Helper()
	p = there(p, arm, machine())
	p.steps = slices.DeleteFunc(p.steps, func(s step) bool {
		lacks := s.name == "run-setuid" && b.setuid == "" || s.name == "run-filecaps" && b.filecaps == "" || s.name == "cgroup.procs" && b.cgroup == ""
		if lacks {
			t.Logf("not run: %s, for which only root can make the fixture", s.name)
		}
		return lacks
	})
	return p
}

// machine is this one's architecture as uname(2) has it.
func machine() string {
	return map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
}

// there drops the steps whose fixtures there are not in a container, and what only x86-64 has.
func there(p parsed, arm int, machine string) parsed {
	p.steps = slices.DeleteFunc(slices.Clone(p.steps), func(s step) bool {
		return arm >= boxNone && slices.Contains([]string{"run-setuid", "run-filecaps", "cgroup.procs"}, s.name) ||
			machine != "x86_64" && (p.row == "11" || p.row == "12" || slices.Contains([]string{"modify_ldt", "iopl", "ioperm"}, s.name))
	})
	return p
}
