package depcheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// foreign are flags of other programs that hints and pages name.
var foreign = strings.Fields("array bind checksum expire fakeroot index-url mem no-deps no-mount no-sandbox overlay pid pre prune writable-tmpfs")

// Every flag that a hint or a page tells people to give is one of the four
// programs': its name stands as a string of its own in what declares them.
func TestFlagsThatAreNamed(t *testing.T) {
	flags := map[string]bool{"help": true, "version": true} // urfave/cli's
	named := map[string]string{}
	flag := regexp.MustCompile("(?:^|[ (])--([a-z][a-z0-9-]*[a-z0-9])")
	name := func(text, where string) {
		for _, m := range flag.FindAllStringSubmatch(text, -1) {
			named[m[1]] = where
		}
	}
	for path, file := range sources(t, "../../cmd", "../../pkg") {
		declares := strings.HasPrefix(path, "../../cmd/") || strings.HasSuffix(filepath.Dir(path), "flags") || strings.HasPrefix(path, "../../pkg/cli/")
		ast.Inspect(file, func(n ast.Node) bool {
			var hints []ast.Expr
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); declares && err == nil {
					flags[text] = true
				}
			case *ast.KeyValueExpr:
				if word(n.Key) == "Hint" {
					hints = []ast.Expr{n.Value}
				}
			case *ast.AssignStmt:
				for i, left := range n.Lhs {
					if strings.HasSuffix(word(left), "int") && len(n.Rhs) == len(n.Lhs) { // hint, e.Hint
						hints = append(hints, n.Rhs[i])
					}
				}
			case *ast.ValueSpec:
				if n.Names[0].Name == "hint" {
					hints = n.Values
				}
			case *ast.CallExpr:
				if w := word(n.Fun); strings.HasSuffix(w, "Usagef") || strings.HasSuffix(w, "aultf") {
					hints = n.Args
				}
			}
			for _, h := range hints {
				ast.Inspect(h, func(n ast.Node) bool {
					if lit, ok := n.(*ast.BasicLit); ok {
						text, _ := strconv.Unquote(lit.Value)
						name(text, path)
					}
					return true
				})
			}
			return true
		})
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(named) < 30 || len(flags) < 100 || len(pages) < 10 {
		t.Fatalf("%v: %d flags are named, of %d, and %d pages", err, len(named), len(flags), len(pages))
	}
	for _, page := range append(pages, "../../README.md", "../../SECURITY.md") {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, span := range regexp.MustCompile("`(?:--|rollout |sifbuild |probe |fence )[^`\n]*`").FindAllString(string(data), -1) {
			name(strings.Trim(span, "`"), page)
		}
	}
	for _, f := range slices.Sorted(maps.Keys(named)) {
		if !flags[f] && !slices.Contains(foreign, f) {
			t.Errorf("%s names --%s, which is no flag", named[f], f)
		}
	}
}

// word is the name that an expression ends with.
func word(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// sources are the Go files below folders, but for tests.
func sources(t *testing.T, roots ...string) map[string]*ast.File {
	t.Helper()
	all := map[string]*ast.File{}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				all[path], err = parser.ParseFile(token.NewFileSet(), path, nil, 0)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
