package clitest

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemaDir is seen from the folder of a package, two below the module's.
const schemaDir = "../../docs/schema"

// Validate says what in a record does not fit its schema.
func Validate(t testing.TB, name string, data []byte) error {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(filepath.Join(schemaDir, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, data)
	}
	return s.Validate(v)
}

// NamesEveryField checks that a schema names exactly the fields that the type
// has, and requires those that are always written.
func NamesEveryField(t testing.TB, name string, typ reflect.Type) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(schemaDir, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var s map[string]any
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	if s["$id"] != "urn:fence:"+name+"/v1" {
		t.Errorf("%s: $id is %s", name, s["$id"])
	}
	compare(t, name, s, s, typ)
}

func compare(t testing.TB, where string, root, s map[string]any, typ reflect.Type) {
	if r, ok := s["$ref"].(string); ok {
		s = root["$defs"].(map[string]any)[strings.TrimPrefix(r, "#/$defs/")].(map[string]any)
	}
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ.Implements(reflect.TypeFor[json.Marshaler]()) {
		return // it is not its fields that are written
	}
	switch typ.Kind() {
	case reflect.Slice:
		compare(t, where+"[]", root, s["items"].(map[string]any), typ.Elem())
	case reflect.Struct:
		fields, required := fieldsOf(typ)
		props, _ := s["properties"].(map[string]any)
		if got, want := slices.Sorted(maps.Keys(props)), slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
			t.Errorf("%s: schema has %v, type has %v", where, got, want)
			return
		}
		var listed []string
		for _, r := range s["required"].([]any) {
			listed = append(listed, r.(string))
		}
		slices.Sort(listed)
		slices.Sort(required)
		if !slices.Equal(listed, required) {
			t.Errorf("%s: schema requires %v, type always writes %v", where, listed, required)
		}
		if s["additionalProperties"] != false {
			t.Errorf("%s: schema takes unknown fields", where)
		}
		for n, ft := range fields {
			compare(t, where+"."+n, root, props[n].(map[string]any), ft)
		}
	}
}

// fieldsOf are the fields of a type by their names in JSON, and those that
// are always written.
func fieldsOf(t reflect.Type) (map[string]reflect.Type, []string) {
	fields := map[string]reflect.Type{}
	var required []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			inner, req := fieldsOf(f.Type)
			maps.Copy(fields, inner)
			required = append(required, req...)
		case f.IsExported() && name != "-":
			fields[name] = f.Type
			if !strings.Contains(opts, "omitempty") {
				required = append(required, name)
			}
		}
	}
	return fields, required
}
