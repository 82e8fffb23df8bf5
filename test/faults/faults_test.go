// Package faults holds the launcher against the rule that fence fails closed:
// whatever fails between its start and the exec of the command, either the
// command does not run, or every protection is in force and the status line
// says only what is so. README.md says how.
package faults

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fence/test/faults/inject"
)

// full is set by `make test-all`: every errno at every site of a call.
var full = os.Getenv("TEST_FULL") != ""

// An injection is one fault and the call of the trace that it hits.
type injection struct {
	call inject.Call
	inject.Fault
}

func (i injection) String() string {
	how := fmt.Sprintf("returns %d without effect", i.Ret)
	if i.Signal != 0 {
		how = "is when " + i.Signal.String() + " comes"
	} else if i.Ret < 0 {
		how = "fails with " + errnoName(syscall.Errno(-i.Ret))
	}
	return fmt.Sprintf("%v %s", i.call, how)
}

func errnoName(e syscall.Errno) string {
	for i, n := range []string{"EPERM", "ENOSYS", "EINVAL", "ENOMEM", "E2BIG"} {
		if errnos[i] == e {
			return n
		}
	}
	return e.Error()
}

// sample is how many of the runtime's own calls are left out between two that
// are taken, without TEST_FULL.
const sample = 8

// A planner turns traces into faults. Every call fails with one errno, another in each scene, and
// every call that protects also does nothing. In full, every call of a whole scene has all errnos;
// in the others each site in the program has them once, in a brief scene if it had not in another.
type planner struct {
	tried map[inject.Site]bool // with all errnos, in any scene
}

func (p *planner) plan(sc *scene, calls []inject.Call, shift int) (list []injection, runtimeCalls, sampled int) {
	n := 0
	times := map[string]int{}
	here := map[inject.Site]bool{}
	for _, c := range calls {
		own := !isRuntime(c.Address)
		known := here[c.Site] || sc.brief && p.tried[c.Site]
		if own && !c.Site.Whole {
			known = false // it may be any
		}
		all := full && (sc.whole || !known)
		// Of what is done alike for many files a part is taken.
		if times[c.Name]++; times[c.Name] > 100 && times[c.Name]%sample != 0 && !all && (!full || sc.shaky) {
			continue
		}
		fault := inject.Fault{Address: c.Address}
		if !own {
			runtimeCalls++
			if !full && runtimeCalls%sample != shift%sample {
				continue
			}
		}
		news := sc.news && own && !p.tried[c.Site]
		if slices.Contains(infallible, c.Name) || sc.brief && !isProtect(c) && !news {
			continue
		}
		if !own {
			sampled++
		}
		here[c.Site] = true
		for j, e := range errnos {
			if all || j == (n+shift)%len(errnos) {
				fault.Ret = -int64(e)
				list = append(list, injection{c, fault})
			}
		}
		n++
		if isProtect(c) {
			fault.Ret = max(c.Ret, 0)
			list = append(list, injection{c, fault})
		}
	}
	maps.Copy(p.tried, here)
	return list, runtimeCalls, sampled
}

// each runs f for every item, a few at a time.
func each[T any](list []T, f func(T)) {
	next := make(chan T)
	var wg sync.WaitGroup
	for range min(runtime.NumCPU()+1, 4) {
		wg.Go(func() {
			for item := range next {
				f(item)
			}
		})
	}
	for _, item := range list {
		next <- item
	}
	close(next)
	wg.Wait()
}

func TestFaults(t *testing.T) {
	s := newStage(t)
	p := &planner{map[inject.Site]bool{}}
	for i, sc := range scenes(s) {
		t.Run(sc.name, func(t *testing.T) { sc.inject(t, p, i) })
	}
}

func (sc *scene) inject(t *testing.T, p *planner, shift int) {
	base := sc.launch(t, nil)
	if bad := sc.judge(base, nil); len(bad) > 0 || !base.Ran {
		t.Fatalf("without a fault: %s %s\n%s", base.exit(), base.stderr, strings.Join(bad, "\n"))
	}
	sc.base = base
	// Once more, now that it is known what is hidden, and that what is made in
	// the first launch is there.
	sc.traced = time.Now()
	again := sc.launch(t, nil)
	if bad := sc.judge(again, nil); len(bad) > 0 || !again.Ran {
		t.Fatalf("without a fault: %s %s\n%s", again.exit(), again.stderr, strings.Join(bad, "\n"))
	}
	base.Calls = again.Calls
	if !sc.shaky {
		sc.repeats(t)
	}

	list, runtimeCalls, sampled := p.plan(sc, base.Calls, shift)
	counts := tally{}
	absent := absences{}
	each(list, func(i injection) {
		o := sc.launch(t, &i.Fault)
		if !o.Hit {
			absent.add(t, sc, i, o)
			return
		}
		counts.add(o, "")
		if bad := sc.judge(o, &i.Fault); len(bad) > 0 {
			t.Errorf("%v:\n\t%s", i, strings.Join(bad, "\n\t"))
		}
	})
	t.Logf("%d calls, %d of them the runtime's (%d tried), %d faults: %s; not reached: %v",
		len(base.Calls), runtimeCalls, sampled, len(list), counts, absent)
	absent.check(t, list)
}

// repeats makes sure that what the launcher calls it calls every time: that
// nothing in an address is by chance, or a fault would miss.
func (sc *scene) repeats(t *testing.T) {
	t.Helper()
	count := func(calls []inject.Call) map[inject.Address]int {
		n := map[inject.Address]int{}
		for _, c := range calls {
			if !mayBeAbsent(c.Address) {
				n[c.Address]++
			}
		}
		return n
	}
	want := count(sc.base.Calls)
	each(make([]int, 4), func(int) {
		got := count(sc.launch(t, nil).Calls)
		for a := range want {
			if got[a] == 0 {
				t.Errorf("%v came in one launch and not in another", a)
			}
		}
		for a := range got {
			if want[a] == 0 {
				t.Errorf("%v did not come in one launch and came in another", a)
			}
		}
	})
}

// mayBeAbsent says that a call need not come in each launch: the runtime's, those of the threads
// above the command, which work while it is being fenced, and how often the machine's mounts, which
// may change, take a read.
func mayBeAbsent(a inject.Address) bool {
	return isRuntime(a) || a.Thread == inject.Above || a.Name == "read" && strings.HasSuffix(a.Path, "/mountinfo")
}

// absences counts, by name, the calls that a fault was to hit and that did not
// come.
type absences map[string]int

var countLock sync.Mutex

// add is called with a launch in which the call of i did not come, and so in
// which nothing was injected.
func (a absences) add(t *testing.T, sc *scene, i injection, o *outcome) {
	t.Helper()
	if bad := sc.judge(o, nil); len(bad) > 0 || !o.Ran {
		t.Errorf("%v: the call did not come, and without it: %s %s\n\t%s", i, o.exit(), o.stderr, strings.Join(bad, "\n\t"))
	} else if !mayBeAbsent(i.call.Address) && !sc.moved(i.call.Path) {
		t.Errorf("%v: the call did not come", i)
	}
	countLock.Lock()
	defer countLock.Unlock()
	if i.every() {
		a["runtime"]++
	}
	a[i.call.Name]++
}

// every says that a call is one that most launches make: the runtime's, but how
// often its threads wait depends on how they are scheduled alone, and those of
// the threads above the command, which work while it is being fenced.
func (i injection) every() bool {
	return (isRuntime(i.call.Address) || i.call.Thread == inject.Above) && !slices.Contains(scheduled, i.call.Name)
}

// check holds the number against that of the faults.
func (a absences) check(t *testing.T, list []injection) {
	t.Helper()
	n := 0
	for _, i := range list {
		if i.every() {
			n++
		}
	}
	if a["runtime"] > n/4 {
		t.Errorf("of %d calls of the runtime %d did not come", n, a["runtime"])
	}
}

// moved says whether a file that others on the machine made and removed is the
// reason that a call about it did not come.
func (sc *scene) moved(path string) bool {
	if !sc.shaky {
		return false
	}
	info, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() && info.ModTime().After(sc.traced)
}

// tally counts how launches ended.
type tally map[string]int

func (c tally) add(o *outcome, how string) {
	if how == "" {
		how = "ran, all in force"
		if !o.Ran {
			how = o.ended()
		}
	}
	countLock.Lock()
	defer countLock.Unlock()
	c[how]++
}

func (c tally) String() string {
	var parts []string
	for how, n := range c {
		parts = append(parts, fmt.Sprintf("%s: %d", how, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
