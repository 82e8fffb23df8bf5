package page

import ("testing";"os";"path/filepath";"fmt";"fence/pkg/report")

func TestDemo(t *testing.T) {
	out := os.Getenv("PAGE_OUT")
	if out == "" { t.Skip() }
	in := run(1000)
	for i := range in.Trials {
		turns, text := 12, ""
		if i == 1 { text = evil }
		if i == 2 { turns = 200 }
		played(t, &in.Trials[i], filepath.Join(t.TempDir(), fmt.Sprint(i)), turns, text)
	}
	if err := Write(out, []report.Input{in}); err != nil { t.Fatal(err) }
}
