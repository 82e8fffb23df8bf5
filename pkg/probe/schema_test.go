package probe

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

	"fence/pkg/internal/strictjson"
)

const schemaDir = "../../docs/schema"

// records are real ones of every kind, and what each is decoded into.
func records(t *testing.T) map[string]struct {
	data []byte
	into any
} {
	h, b, a := samples()
	strict, err := BuiltIn("strict")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]struct {
		data []byte
		into any
	}{}
	add := func(name string, into any, write func(*bytes.Buffer) error) {
		var buf bytes.Buffer
		if err := write(&buf); err != nil {
			t.Fatal(err)
		}
		all[name] = struct {
			data []byte
			into any
		}{buf.Bytes(), into}
	}
	add("probe.report", &Report{}, func(w *bytes.Buffer) error { return a.Write(w) })
	add("probe.diff", &Comparison{}, func(w *bytes.Buffer) error { return Diff(&h, b, a).Write(w) })
	add("probe.gate", &Verdict{}, func(w *bytes.Buffer) error { return Gate(a, &b, strict).Write(w) })
	add("probe.check", &checkRecord{}, func(w *bytes.Buffer) error {
		var list bytes.Buffer
		if err := ListJSON(&list); err != nil {
			return err
		}
		line, _, _ := bytes.Cut(list.Bytes(), []byte("\n"))
		w.Write(line)
		return nil
	})
	add("probe.canary", &Canary{}, func(w *bytes.Buffer) error {
		return writeJSON(w, listening(t, filepath.Join(t.TempDir(), "canary.json")))
	})
	return all
}

// What the probe finds here fits too, and comes back as it went.
func TestRecords_RealReport(t *testing.T) {
	r, err := RunAll(t.Context(), Options{Label: "host"})
	if err != nil {
		t.Fatal(err)
	}
	out := text(t, r)
	if err := validate(t, "probe.report", []byte(out)); err != nil {
		t.Error(err)
	}
	again, err := Decode("host.json", strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	if s := text(t, again); s != out {
		t.Errorf("decoded and printed again it differs:\n%s", s)
	}
	strict, err := BuiltIn("strict")
	if err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(*bytes.Buffer) error{
		"probe.diff": func(w *bytes.Buffer) error { return Diff(&again, again, again).Write(w) },
		"probe.gate": func(w *bytes.Buffer) error { return Gate(again, &again, strict).Write(w) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		if err := validate(t, name, b.Bytes()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if v := Gate(again, nil, strict); v.Answer != No {
		t.Errorf("without a fence strict says %s", v.Answer)
	}
	// Every requirement finds its attempts in a real report.
	for _, name := range Expectations() {
		e, err := BuiltIn(name)
		if err != nil {
			t.Fatal(err)
		}
		g := gate{views: views{after: viewOf(&again)}}
		for _, req := range slices.Concat(e.Closed, e.Open) {
			for _, p := range req {
				if len(g.matching(p)) == 0 {
					t.Errorf("%s asks for %s, which no real report has", name, p)
				}
			}
		}
	}
}

func TestRecords_FitTheirSchemas(t *testing.T) {
	for name, rec := range records(t) {
		if err := validate(t, name, rec.data); err != nil {
			t.Errorf("%s: %v\n%s", name, err, rec.data)
		}
		if _, err := strictjson.Unmarshal(rec.data, rec.into); err != nil {
			t.Errorf("%s: %v\n%s", name, err, rec.data)
		}
	}
}

func validate(t *testing.T, name string, data []byte) error {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(filepath.Join(schemaDir, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// A schema names exactly the fields that the type has, and requires those
// that are always written.
func TestSchemas_NameEveryField(t *testing.T) {
	for name, rec := range records(t) {
		data, err := os.ReadFile(filepath.Join(schemaDir, name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var s map[string]any
		if err := json.Unmarshal(data, &s); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(s["$id"].(string), name+"/v1") {
			t.Errorf("%s: $id is %s", name, s["$id"])
		}
		compareSchema(t, name, s, s, reflect.TypeOf(rec.into).Elem())
	}
}

func compareSchema(t *testing.T, where string, root, s map[string]any, typ reflect.Type) {
	if r, ok := s["$ref"].(string); ok {
		s = root["$defs"].(map[string]any)[strings.TrimPrefix(r, "#/$defs/")].(map[string]any)
	}
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch typ.Kind() {
	case reflect.Slice:
		compareSchema(t, where+"[]", root, s["items"].(map[string]any), typ.Elem())
	case reflect.Struct:
		fields, required := structFields(typ)
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
			compareSchema(t, where+"."+n, root, props[n].(map[string]any), ft)
		}
	}
}

func structFields(t reflect.Type) (map[string]reflect.Type, []string) {
	fields := map[string]reflect.Type{}
	var required []string
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			inner, req := structFields(f.Type)
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
