package workloads

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/workloads.md")

const document = "../../docs/workloads.md"

// The tables of the document are the table's.
func TestDocument(t *testing.T) {
	data, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	have, want := string(data), string(data)
	for name, rows := range map[string]string{"works": works(), "refused": refused()} {
		before, rest, ok := strings.Cut(want, "<!-- "+name+" -->\n")
		_, after, ok2 := strings.Cut(rest, "<!-- end -->")
		if !ok || !ok2 {
			t.Fatalf("%s: no place for the table %q", document, name)
		}
		want = before + "<!-- " + name + " -->\n" + rows + "<!-- end -->" + after
	}
	policy, err := fs.ReadFile(Programs(), "root.toml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(have, "```toml\n"+string(policy)+"```") {
		t.Errorf("%s: root.toml is not as the test has it", document)
	}
	if have == want {
		return
	}
	if !*update {
		t.Fatalf("%s is not what the table says: go test ./test/workloads -run Document -args -update", document)
	}
	if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func works() string {
	var b strings.Builder
	b.WriteString("| workload | breaks without the right |\n|---|---|\n")
	for _, w := range Table {
		switch {
		case w.Less != "":
			fmt.Fprintf(&b, "| %s | %s |\n", about(w), w.Less)
		case w.Idle != "":
			fmt.Fprintf(&b, "| %s | none: %s |\n", about(w), w.Idle)
		}
	}
	return b.String()
}

func refused() string {
	var b strings.Builder
	b.WriteString("| workload | what it says | works with |\n|---|---|---|\n")
	for _, w := range Table {
		if w.Denied == "" {
			continue
		}
		open := "no flag"
		if w.Open != nil {
			open = "`" + strings.ReplaceAll(strings.Join(w.Open, " "), Dir+"/programs/", "") + "`"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", about(w), w.Denied, open)
	}
	return b.String()
}

func about(w Workload) string {
	if w.As != "" && !w.Slow {
		return w.About + " (as " + string(w.As) + ")"
	}
	return w.About
}
