// Package wanted says which Python packages tasks install: by pip and uv, in
// the RUN lines of their Dockerfiles and in the shell scripts of their
// solution/ and tests/. It reads; it runs nothing.
//
// A command is read as a shell reads it. What depends on what is not known
// before it runs (a variable that nobody sets, the output of a command, a
// folder of the image) is not guessed: it is listed, with the reason.
package wanted

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"fence/pkg/wheel"
)

// script is a text that a shell runs, and what is known when it does.
type script struct {
	name string                                                 // for people: TASK FILE
	line int                                                    // of its first line
	cwd  string                                                 // absolute, "" if it is not known
	env  map[string]string                                      // variables whose value is known
	file func(abs string) (name string, text []byte, err error) // a file of the container
}

// result is what was found.
type result struct {
	sets   []wheel.Set
	unread []wheel.Unread
}

func (r *result) skip(where, text, format string, a ...any) {
	const most = 200
	text = strings.Join(strings.Fields(credentials.ReplaceAllString(text, "://")), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	r.unread = append(r.unread, wheel.Unread{Where: where, Text: text, Reason: credentials.ReplaceAllString(fmt.Sprintf(format, a...), "://")})
}

// credentials are those in an address: the record goes where trials read it.
var credentials = regexp.MustCompile(`://[^/?#@\s'"]*@`)

// mention is a text that may be about packages, so that a script which cannot be
// read is worth a word.
var mention = regexp.MustCompile(`(?i)\b(pip3?(\.\d+)?|uvx?|pipx|poetry|pipenv|easy_install)\b`)

// Limits for what nobody wrote for a shell to run.
const (
	// deepest is how far a script may hold another: sh -c "sh -c ...".
	deepest = 5
	// scriptMax is how long a script may be, in bytes. The parser calls itself for
	// each "(" that is open, with up to 4 KB of stack, and a Go program whose stack
	// has grown to 1 GB ends, whatever recovers.
	scriptMax = 128 << 10
	// nestMax is how deep its tree may be.
	nestMax = 1000
	// expandMax is how many bytes may come of all the variables of a script:
	// a=$b$b; b=$c$c; ... doubles with each.
	expandMax = 16 << 20
)

// parsing is held by whoever parses: see scriptMax.
var parsing sync.Mutex

// parse reads a script of at most scriptMax bytes.
func parse(text string) (*syntax.File, error) {
	if len(text) > scriptMax {
		return nil, fmt.Errorf("it is longer than %d KiB", scriptMax>>10)
	}
	parsing.Lock()
	defer parsing.Unlock()
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return nil, err
	}
	depth, most := 0, 0
	syntax.Walk(file, func(n syntax.Node) bool {
		if n == nil { // all of a node has been seen
			depth--
			return true
		}
		depth++
		most = max(most, depth)
		return true
	})
	if most > nestMax {
		return nil, errors.New("its commands are nested too deep")
	}
	return file, nil
}

func (s script) read(r *result, text string, depth int) {
	if !mention.MatchString(text) {
		return
	}
	where := fmt.Sprintf("%s:%d", s.name, s.line)
	if depth > deepest {
		r.skip(where, text, "scripts within scripts are not followed further")
		return
	}
	file, err := parse(text)
	if err != nil {
		r.skip(where, text, "it is no shell script that can be read: %v", err)
		return
	}
	w := walker{script: s, result: r, depth: depth, vars: map[string]string{}}
	w.variables(file)
	syntax.Walk(file, func(n syntax.Node) bool {
		if st, ok := n.(*syntax.Stmt); ok {
			if call, ok := st.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 {
				w.call(st, call)
			}
		}
		return true
	})
}

// walker goes through one script.
type walker struct {
	script
	*result
	depth int
	vars  map[string]string // that have one known value throughout
	moves []move            // its cd commands
	spent int               // of expandMax
}

type move struct {
	at  uint
	dir string // "" if it is not known
}

// variables finds those that the script sets once, to something known, and the
// folders it changes to. One that is set twice, by a loop or by read, has no
// value here; one of the environment that the script never sets keeps its own.
func (w *walker) variables(file *syntax.File) {
	values := map[string][]*syntax.Word{} // nil: unknown
	unknown := func(name string) { values[name] = append(values[name], nil, nil) }
	forOne := map[*syntax.Assign]bool{} // NAME=VALUE COMMAND
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Assign:
			if n.Name == nil || n.Naked || forOne[n] { // naked: export NAME
				break
			}
			if n.Append || n.Array != nil || n.Index != nil {
				unknown(n.Name.Value)
				break
			}
			values[n.Name.Value] = append(values[n.Name.Value], n.Value)
			if n.Value == nil {
				values[n.Name.Value] = append(values[n.Name.Value], nil) // NAME=: as good as unknown
			}
		case *syntax.WordIter:
			unknown(n.Name.Value)
		case *syntax.CallExpr:
			for _, a := range n.Assigns {
				forOne[a] = len(n.Args) > 0
			}
			if len(n.Args) > 1 {
				switch n.Args[0].Lit() {
				case "read", "mapfile", "readarray", "unset", "getopts", "printf":
					for _, a := range n.Args[1:] {
						if name := a.Lit(); name != "" {
							unknown(name)
						}
					}
				}
			}
		}
		return true
	})
	if _, set := values["HOME"]; !set {
		w.vars["HOME"] = "~" // some folder
	}
	for name, v := range w.env {
		if _, set := values[name]; !set {
			w.vars[name] = v
		}
	}
	// A value may be made of others, and those of others.
	for range min(len(values), 20) {
		known := len(w.vars)
		for name, list := range values {
			if _, done := w.vars[name]; done || len(list) != 1 || list[0] == nil {
				continue
			}
			if v, err := w.literal(list[0]); err == nil {
				w.vars[name] = v
			}
		}
		if len(w.vars) == known {
			break
		}
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		switch call.Args[0].Lit() {
		case "cd":
			m := move{at: call.Pos().Offset()}
			if len(call.Args) == 2 {
				m.dir, _ = w.literal(call.Args[1])
			}
			w.moves = append(w.moves, m)
		case "pushd", "popd":
			w.moves = append(w.moves, move{at: call.Pos().Offset()})
		}
		return true
	})
}

// place is the folder that a command at this offset runs in, "" if that is not
// known: a script with several cd has too many ways through it.
func (w *walker) place(at uint) string {
	switch {
	case len(w.moves) == 0 || len(w.moves) == 1 && w.moves[0].at > at:
		return w.cwd
	case len(w.moves) > 1 || w.moves[0].dir == "":
		return ""
	case path.IsAbs(w.moves[0].dir):
		return path.Clean(w.moves[0].dir)
	case w.cwd == "":
		return ""
	}
	return path.Join(w.cwd, w.moves[0].dir)
}

// config expands words with what is known and nothing else.
func (w *walker) config(word *syntax.Word) (*expand.Config, error) {
	var bad error
	cost := 0
	syntax.Walk(word, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Lit:
			// {1..999999999} and {a,b}{a,b}{a,b}... make more words than anybody means.
			if strings.Count(n.Value, "{") > 1 || strings.Contains(n.Value, "{") && strings.Contains(n.Value, "..") {
				bad = errors.New("it depends on an expansion that cannot be followed")
			}
		case *syntax.ParamExp:
			if n.Param == nil {
				bad = errors.New("it depends on an expansion that cannot be followed")
			} else if _, known := w.vars[n.Param.Value]; !known {
				bad = fmt.Errorf("it depends on $%s, which is not known before it runs", n.Param.Value)
			} else if n.Exp != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull) || n.Excl || n.Index != nil {
				bad = errors.New("it depends on an expansion that cannot be followed")
			} else if cost += len(w.vars[n.Param.Value]); n.Repl != nil && len(w.vars[n.Param.Value]) > 1<<10 {
				bad = errors.New("it changes a long text")
			}
		case *syntax.CmdSubst, *syntax.ProcSubst:
			bad = errors.New("it depends on the output of a command")
		case *syntax.ArithmExp:
			bad = errors.New("it depends on arithmetic")
		}
		return bad == nil
	})
	if w.spent += cost; bad == nil && cost > 0 && w.spent > expandMax {
		bad = errors.New("it depends on variables that grow too long")
	}
	if bad != nil {
		return nil, bad
	}
	return &expand.Config{NoUnset: true, Env: expand.FuncEnviron(func(name string) string { return w.vars[name] })}, nil
}

func (w *walker) literal(word *syntax.Word) (string, error) {
	c, err := w.config(word)
	if err != nil {
		return "", err
	}
	return expand.Literal(c, word)
}

// argument is a word of a command, or why it is not known.
type argument struct {
	text string
	err  error
}

// call reads a simple command.
func (w *walker) call(st *syntax.Stmt, call *syntax.CallExpr) {
	var args []argument
	for _, word := range call.Args {
		c, err := w.config(word)
		var fields []string
		if err == nil {
			fields, err = expand.Fields(c, word)
		}
		if err != nil {
			args = append(args, argument{err: err})
			continue
		}
		for _, f := range fields {
			args = append(args, argument{text: f})
		}
	}
	if args[0].err != nil {
		// $VENV/bin/pip is pip, wherever it is.
		parts := call.Args[0].Parts
		if end, ok := parts[len(parts)-1].(*syntax.Lit); ok && len(parts) > 1 && strings.Contains(end.Value, "/") {
			args[0] = argument{text: path.Base(end.Value)}
		}
	}
	var text strings.Builder
	_ = syntax.NewPrinter(syntax.SingleLine(true)).Print(&text, call)
	c := command{
		where: fmt.Sprintf("%s:%d", w.name, w.line+int(st.Pos().Line())-1),
		text:  text.String(), cwd: w.place(st.Pos().Offset()), walker: w, env: map[string]string{},
	}
	for name, v := range w.vars {
		c.env[name] = v
	}
	for _, a := range call.Assigns {
		if a.Name != nil && a.Value != nil {
			delete(c.env, a.Name.Value)
			if v, err := w.literal(a.Value); err == nil {
				c.env[a.Name.Value] = v
			}
		}
	}
	for _, redirect := range st.Redirs {
		if redirect.Hdoc != nil {
			c.stdin, _ = w.literal(redirect.Hdoc)
		}
	}
	c.run(args)
}

var pipName = regexp.MustCompile(`^pip(3(\.\d+)?)?$`)
var pythonName = regexp.MustCompile(`^python(\d(\.\d+)?)?$`)

// mentions says whether arguments hold a command that installs packages, behind
// something that is not known here.
func mentions(args []argument) bool {
	for i, a := range args {
		base := path.Base(a.text)
		if base == "uvx" || base == "uv" && i+1 < len(args) && slices.Contains([]string{"pip", "add", "tool", "sync"}, args[i+1].text) {
			return true
		}
		if pipName.MatchString(base) && slices.ContainsFunc(args[i+1:], func(a argument) bool { return a.text == "install" }) {
			return true
		}
		if strings.ContainsAny(a.text, " \n") && regexp.MustCompile(`(?i)\b(pip3?|uv pip) +install\b`).MatchString(a.text) {
			return true
		}
	}
	return false
}
