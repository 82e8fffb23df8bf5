// Package strictjson reads JSON that a program wrote and refuses whatever
// that program would not have written: an unknown, repeated or missing
// field, a null, the wrong kind of value, more text after the end.
//
// encoding/json takes the last of two equal fields, matches names in any
// case and fills in what is missing; each of these turns a damaged record
// into one that says something else.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
)

// Error is one thing wrong, and where.
type Error struct {
	Line int // from 1
	Msg  string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Msg) }

// Lines holds the line on which each object in a list starts, under its path
// ("checks[12]").
type Lines map[string]int

// Unmarshal reads data into v, a pointer to a struct, and accepts exactly
// what encoding/json writes for that struct. On an error v holds nothing to
// be relied on; the error is an *Error.
//
// v is made of structs, slices, maps with string keys, strings, booleans and
// numbers, and may hold pointers to these; a pointer alone may be null.
func Unmarshal(data []byte, v any) (Lines, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, &Error{1, "empty"}
	}
	if err := json.Unmarshal(data, v); err != nil {
		return nil, explain(data, err)
	}
	w := walker{data: data, dec: json.NewDecoder(bytes.NewReader(data)), lines: Lines{}}
	if err := w.value(reflect.TypeOf(v).Elem(), ""); err != nil {
		return nil, err
	}
	return w.lines, nil
}

// explain says in our words what encoding/json found.
func explain(data []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax) && syntax.Error() == "unexpected end of JSON input":
		return &Error{lineAt(data, int64(len(bytes.TrimSpace(data)))), "ends in the middle: cut short"}
	case errors.As(err, &syntax):
		return &Error{lineAt(data, syntax.Offset), "not JSON: " + syntax.Error()}
	case errors.As(err, &kind):
		what := kind.Field
		if what == "" {
			what = "the record"
		}
		return &Error{lineAt(data, kind.Offset), fmt.Sprintf("%s is a JSON %s, must be %s", what, kind.Value, kindName(kind.Type))}
	}
	return &Error{1, err.Error()}
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	}
	return "a whole number that fits " + t.Kind().String()
}

// lineAt is the line that the byte before offset is on.
func lineAt(data []byte, offset int64) int {
	offset = min(max(offset-1, 0), int64(len(data)))
	return 1 + bytes.Count(data[:offset], []byte("\n"))
}

// walker goes through data once more, beside the type it was read into.
// json.Unmarshal succeeded on the same data, so the kinds are known to agree.
type walker struct {
	data  []byte
	dec   *json.Decoder
	lines Lines
}

func (w *walker) errorf(format string, a ...any) error {
	return &Error{lineAt(w.data, w.dec.InputOffset()), fmt.Sprintf(format, a...)}
}

func (w *walker) value(t reflect.Type, path string) error {
	null := t.Kind() == reflect.Pointer
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	tok, err := w.dec.Token()
	if err != nil {
		return w.errorf("%v", err)
	}
	if tok == nil && !null {
		return w.errorf("%s is null", path)
	}
	switch tok {
	case json.Delim('['):
		return w.list(t.Elem(), path)
	case json.Delim('{'):
		if strings.HasSuffix(path, "]") {
			w.lines[path] = lineAt(w.data, w.dec.InputOffset())
		}
		return w.object(t, path)
	}
	return nil
}

func (w *walker) list(elem reflect.Type, path string) error {
	for i := 0; w.dec.More(); i++ {
		if err := w.value(elem, fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	_, err := w.dec.Token()
	return err
}

func (w *walker) object(t reflect.Type, path string) error {
	where := "the record"
	if path != "" {
		where = path
	}
	fields, required := fieldsOf(t)
	seen := map[string]bool{}
	for w.dec.More() {
		tok, err := w.dec.Token()
		if err != nil {
			return w.errorf("%v", err)
		}
		name := tok.(string)
		if seen[name] {
			return w.errorf("%s has %q twice", where, name)
		}
		seen[name] = true
		elem := fields[name]
		if t.Kind() == reflect.Map {
			elem = t.Elem()
		}
		if elem == nil {
			return w.errorf("%s has an unknown field %q", where, name)
		}
		if err := w.value(elem, strings.TrimPrefix(path+"."+name, ".")); err != nil {
			return err
		}
	}
	if _, err := w.dec.Token(); err != nil {
		return w.errorf("%v", err)
	}
	for _, name := range required {
		if !seen[name] {
			return w.errorf("%s has no %q", where, name)
		}
	}
	return nil
}

// fieldsOf lists the JSON names of a struct's fields, and those that are
// always written.
func fieldsOf(t reflect.Type) (fields map[string]reflect.Type, required []string) {
	fields = map[string]reflect.Type{}
	if t.Kind() != reflect.Struct {
		return fields, nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		if f.Anonymous && tag == "" && f.Type.Kind() == reflect.Struct {
			inner, always := fieldsOf(f.Type)
			maps.Copy(fields, inner)
			required = append(required, always...)
			continue
		}
		if !f.IsExported() || tag == "-" {
			continue
		}
		name, opts, _ := strings.Cut(tag, ",")
		if name == "" {
			name = f.Name
		}
		fields[name] = f.Type
		if !strings.Contains(","+opts+",", ",omitempty,") {
			required = append(required, name)
		}
	}
	return fields, required
}
