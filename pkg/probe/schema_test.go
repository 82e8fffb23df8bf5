package probe

import (
	"bytes"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fence/pkg/internal/strictjson"
	"fence/test/clitest"
)

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
	if err := clitest.Validate(t, "probe.report", []byte(out)); err != nil {
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
		if err := clitest.Validate(t, name, b.Bytes()); err != nil {
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
		if err := clitest.Validate(t, name, rec.data); err != nil {
			t.Errorf("%s: %v\n%s", name, err, rec.data)
		}
		if _, err := strictjson.Unmarshal(rec.data, rec.into); err != nil {
			t.Errorf("%s: %v\n%s", name, err, rec.data)
		}
	}
}

func TestSchemas_NameEveryField(t *testing.T) {
	for name, rec := range records(t) {
		clitest.NamesEveryField(t, name, reflect.TypeOf(rec.into).Elem())
	}
}
