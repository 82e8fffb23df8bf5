package main

import "testing"

func TestLack(t *testing.T) {
	for _, c := range []struct {
		some, all int
		want      string
	}{
		{1, 1, "1 of 1 task has no plan"},
		{1, 9, "1 of 9 tasks has no plan"},
		{8, 9, "8 of 9 tasks have no plan"},
	} {
		if got := lack(c.some, c.all, "plan").Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
