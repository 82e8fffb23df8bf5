package box

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// Of boxes in one control group, whose process has the kernel killed?
func TestVictims(t *testing.T) {
	const gone = -1
	living := os.Getpid()
	type ask struct {
		of        string
		n, before int
		used      int64
		killed    bool
		want      string
	}
	for name, c := range map[string]struct {
		a, b map[int]int64
		asks []ask
	}{
		"nothing was killed":          {map[int]int64{gone: 9}, nil, []ask{{"a", 1, 1, 0, false, ""}, {"b", 1, 1, 900, true, ""}}},
		"the largest, whoever looks":  {map[int]int64{living: 50}, map[int]int64{gone: 60}, []ask{{"a", 2, 2, 0, false, "b"}, {"b", 2, 2, 0, false, ""}}},
		"of two that are gone":        {map[int]int64{gone: 70}, map[int]int64{gone: 60}, []ask{{"b", 2, 2, 0, false, "a"}}},
		"grown since it was looked":   {map[int]int64{gone: 5}, map[int]int64{living: 60}, []ask{{"b", 2, 2, 0, false, ""}, {"a", 2, 1, 500, false, "a"}, {"b", 2, 2, 0, false, ""}}},
		"never seen":                  {nil, map[int]int64{living: 60}, []ask{{"b", 2, 2, 0, false, ""}, {"b", 2, 1, 3, false, ""}, {"a", 2, 2, 0, false, ""}, {"b", 2, 2, 0, false, "a b"}}},
		"of a command":                {nil, map[int]int64{living: 60}, []ask{{"a", 2, 1, 5, true, "a"}, {"b", 2, 2, 0, false, ""}}},
		"another was taken for it":    {nil, map[int]int64{gone: 60}, []ask{{"b", 2, 2, 0, false, "b"}, {"a", 2, 1, 500, false, "a"}}},
		"another was, and rightly":    {nil, map[int]int64{gone: 60}, []ask{{"b", 2, 2, 0, false, "b"}, {"a", 2, 1, 50, false, ""}}},
		"another was, and is no more": {nil, map[int]int64{gone: 60}, []ask{{"b", 2, 2, 0, false, "b"}, {"a", 2, 2, 500, true, ""}, {"a", 3, 2, 0, true, "a"}}},
		"in a group of its own":       {nil, nil, []ask{{"c", 1, 0, 5, false, "c"}, {"a", 1, 1, 0, false, ""}}},
	} {
		boxesOf := map[string]*Box{"a": {group: "/job", sizes: c.a}, "b": {group: "/job", sizes: c.b}, "c": {group: "/step", sizes: map[int]int64{living: 1}}}
		all := boxes{up: map[*Box]bool{}, groups: map[string]*kills{"/job": {n: 1}, "/step": {}}}
		for _, b := range boxesOf {
			all.up[b] = true
		}
		for i, x := range c.asks {
			var got []string
			for _, v := range all.victims(boxesOf[x.of], x.n, x.before, x.used, x.killed) {
				for name, b := range boxesOf {
					if b == v {
						got = append(got, name)
					}
				}
			}
			slices.Sort(got)
			if fmt.Sprint(got) != "["+x.want+"]" {
				t.Errorf("%s, %d: %v, want %s", name, i, got, x.want)
			}
		}
	}
}
