package terminus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Command is what is typed at once.
type Command struct {
	Keys string
	Wait time.Duration // afterwards, 0 to MaxWait
}

// MaxWait is the longest time that the model may wait for one command.
const MaxWait = 60 * time.Second

const usualWait = time.Second

// MaxReply is far more than a model says, in bytes: 250,000 tokens or so. It
// bounds the time that a reply takes to be read, and to be typed.
const MaxReply = 1 << 20

// Parsed is a reply as the agent understands it. If Error is not "", nothing
// of it is executed and there are no Commands.
type Parsed struct {
	Analysis, Plan string
	Commands       []Command
	Complete       bool
	Error          string
	Warnings       []string
}

// Parse reads a reply: one JSON object with the fields analysis, plan and
// commands, and perhaps task_complete. Prose around it is passed over with a
// warning. A reply with an error is tried again with each of the two usual
// mistakes mended.
//
// The rules, and which mistakes are errors, are those of Terminus-2 2.0.0 as of
// Harbor 0.26; docs/terminus.md lists the differences.
//
// A reply of more than MaxReply bytes is not read at all.
func Parse(reply string) Parsed {
	if len(reply) > MaxReply {
		return Parsed{Error: fmt.Sprintf("the reply has %d bytes, and more than %d are not read: do it in smaller steps", len(reply), MaxReply)}
	}
	first := parse(reply)
	if first.Error == "" {
		return first
	}
	mended := func(candidate, how string) (Parsed, bool) {
		p := parse(candidate)
		p.Warnings = append([]string{"AUTO-CORRECTED: " + how + "; please send it right the next time"}, p.Warnings...)
		return p, p.Error == ""
	}
	if missing := strings.Count(reply, "{") - strings.Count(reply, "}"); missing > 0 && first.broken() {
		if p, ok := mended(reply+strings.Repeat("}", missing), "the closing brace was missing"); ok {
			return p
		}
	}
	for object := range objects(reply) {
		if p, ok := mended(object, "the JSON was taken out of other text"); ok {
			return p
		}
	}
	return first
}

const (
	noObject    = "no JSON object was found in the reply"
	invalidJSON = "invalid JSON: "
)

// broken says that the error is one of JSON itself.
func (p Parsed) broken() bool { return p.Error == noObject || strings.HasPrefix(p.Error, invalidJSON) }

// order is that in which a model is to think.
var order = []string{"analysis", "plan", "commands"}

func parse(reply string) Parsed {
	object, before, after := extract(reply)
	var p Parsed
	warn := func(format string, a ...any) { p.Warnings = append(p.Warnings, fmt.Sprintf(format, a...)) }
	if object == "" {
		p.Error = noObject
		return p
	}
	if !blank(before) {
		warn("there is text before the JSON object")
	}
	if !blank(after) {
		warn("there is text after the JSON object")
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(object), &fields); err != nil {
		p.Error = invalidJSON + explain(object, err)
		return p
	}
	var missing []string
	for _, f := range order {
		if _, ok := fields[f]; !ok {
			missing = append(missing, f)
		}
	}
	if missing != nil {
		p.Error = "required fields are missing: " + strings.Join(missing, ", ")
		return p
	}
	text := func(field string) string {
		var s string
		if json.Unmarshal(fields[field], &s) != nil || isNull(fields[field]) {
			warn("field '%s' should be a string", field)
			return string(fields[field])
		}
		return s
	}
	p.Analysis, p.Plan = text("analysis"), text("plan")
	var list []json.RawMessage
	if json.Unmarshal(fields["commands"], &list) != nil || isNull(fields["commands"]) {
		return Parsed{Error: "field 'commands' must be an array", Warnings: p.Warnings}
	}
	if found := found(object); !slices.IsSortedFunc(found, func(a, b string) int {
		return slices.Index(order, a) - slices.Index(order, b)
	}) {
		warn("the fields come in the wrong order: %s instead of %s", strings.Join(found, ", "), strings.Join(order, ", "))
	}
	complete, right := truth(fields["task_complete"])
	if !right {
		warn("field 'task_complete' should be true or false")
	}
	commands, err := commands(list, warn)
	switch {
	case err != nil && complete:
		warn("%v", err)
	case err != nil:
		p.Error = err.Error()
		return p
	}
	p.Commands, p.Complete = commands, complete
	return p
}

// blank takes for space what Python does.
func blank(s string) bool {
	return strings.TrimFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }) == ""
}

func isNull(v json.RawMessage) bool { return string(v) == "null" }

// extract finds the first object whose braces balance outside of strings, and
// what stands around it. What it takes for a string begins at the first quote
// of the whole reply, also in prose, as with Terminus-2: its replies are read
// the same way here.
func extract(reply string) (object, before, after string) {
	start, depth := -1, 0
	inString, escaped := false, false
	for i := range len(reply) {
		c := reply[i]
		switch {
		case escaped:
			escaped = false
		case c == '\\':
			escaped = true
		case c == '"':
			inString = !inString
		case inString:
		case c == '{':
			if depth == 0 {
				start = i
			}
			depth++
		case c == '}':
			depth--
			if depth == 0 && start >= 0 {
				return reply[start : i+1], reply[:start], reply[i+1:]
			}
		}
	}
	return "", "", ""
}

// mostObjects bounds the work on a reply that is nothing but braces.
const mostObjects = 100

// objects are the objects of a reply, wherever they stand in it, also within
// one another, in the order in which they begin.
func objects(reply string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for range mostObjects {
			i := strings.IndexByte(reply, '{')
			if i < 0 {
				return
			}
			reply = reply[i:]
			var o json.RawMessage
			if json.NewDecoder(strings.NewReader(reply)).Decode(&o) == nil && !yield(string(o)) {
				return
			}
			reply = reply[1:]
		}
	}
}

var fieldName = regexp.MustCompile(`"(analysis|plan|commands)"\s*:`)

// found are the fields of an object in the order in which their names first
// stand there.
func found(object string) []string {
	var names []string
	for _, m := range fieldName.FindAllStringSubmatch(object, -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	return names
}

// truth is what task_complete says, and whether it is of a kind that it should
// be. Models say "true" and 1 as well.
func truth(v json.RawMessage) (value, right bool) {
	if v == nil {
		return false, true
	}
	var x any
	if json.Unmarshal(v, &x) != nil {
		return false, false
	}
	switch x := x.(type) {
	case nil:
		return false, true
	case bool:
		return x, true
	case string:
		return slices.Contains([]string{"true", "1", "yes"}, strings.ToLower(x)), true
	case float64:
		return x != 0, false
	case []any:
		return len(x) > 0, false
	case map[string]any:
		return len(x) > 0, false
	}
	return false, false
}

func commands(list []json.RawMessage, warn func(string, ...any)) ([]Command, error) {
	all := make([]Command, 0, len(list))
	for i, raw := range list {
		n := i + 1
		var c map[string]json.RawMessage
		if json.Unmarshal(raw, &c) != nil || c == nil {
			return nil, fmt.Errorf("command %d must be an object", n)
		}
		if _, ok := c["keystrokes"]; !ok {
			return nil, fmt.Errorf("command %d has no field 'keystrokes'", n)
		}
		var keys string
		if json.Unmarshal(c["keystrokes"], &keys) != nil || isNull(c["keystrokes"]) {
			return nil, fmt.Errorf("command %d: 'keystrokes' must be a string", n)
		}
		d, given := c["duration"]
		wait, ok := duration(d)
		switch {
		case !given:
			warn("command %d has no duration: 1.0 is taken", n)
		case !ok:
			warn("command %d: its duration is no number: 1.0 is taken", n)
		}
		delete(c, "keystrokes")
		delete(c, "duration")
		if len(c) > 0 {
			warn("command %d has unknown fields: %s", n, strings.Join(slices.Sorted(maps.Keys(c)), ", "))
		}
		if n < len(list) && keys != "" && !strings.HasSuffix(keys, "\n") {
			warn("command %d does not end with a newline, so the next one is typed onto the same line", n)
		}
		all = append(all, Command{keys, wait})
	}
	return all, nil
}

// duration reads seconds.
func duration(v json.RawMessage) (time.Duration, bool) {
	if len(v) == 0 || v[0] != '-' && (v[0] < '0' || v[0] > '9') {
		return usualWait, false
	}
	s, err := strconv.ParseFloat(string(v), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return usualWait, false
	}
	return time.Duration(math.Max(0, math.Min(s, MaxWait.Seconds())) * float64(time.Second)), true
}

// explain says where in the object the mistake is, with what stands there.
func explain(object string, err error) string {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err.Error()
	}
	at := max(0, min(int(syntax.Offset)-1, len(object)))
	line := 1 + bytes.Count([]byte(object[:at]), []byte("\n"))
	from := max(0, at-40)
	near := strings.ToValidUTF8(object[from:min(len(object), at+20)], "")
	return fmt.Sprintf("%s (line %d, near %q)", syntax, line, near)
}
