package policy_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"fence/pkg/policy"
	"fence/policies"
)

// The examples of docs/policy.md do what the text beside them says.
func TestDocs(t *testing.T) {
	data, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	n := 0
	for _, block := range strings.Split(doc, "\n```")[1:] {
		kind, text, _ := strings.Cut(block, "\n")
		text += "\n"
		switch kind {
		case "toml":
			if _, err := policy.Parse("wheels.toml", []byte(text), options()); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		case "refused":
			_, err := policy.Parse("wheels.toml", []byte(text), options())
			var e *policy.Error
			if !errors.As(err, &e) || !strings.Contains(doc, "    fence: "+err.Error()+"\n    hint: "+e.Hint+"\n") {
				t.Errorf("%v is not what the text says\n%s", err, text)
			}
		case "site":
			if _, err := policy.ParseSite("site.toml", []byte(text)); err != nil {
				t.Error(err)
			}
		default:
			continue
		}
		n++
	}
	if n < 6 {
		t.Errorf("only %d examples found", n)
	}
	for _, name := range policies.Names() {
		if !strings.Contains(doc, "| `"+name+"` |") {
			t.Errorf("%s is not described", name)
		}
	}
	for _, w := range policy.Weaknesses {
		if !strings.Contains(doc, "| `"+w+"` |") {
			t.Errorf("%s is not described", w)
		}
	}
}
