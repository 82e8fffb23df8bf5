package strictjson

import (
	"encoding/json"
	"strings"
	"testing"
)

type inner struct {
	ID   string `json:"id"`
	Note string `json:"note,omitempty"`
	Skip string `json:"-"`
}

// Part is embedded, as the key of an attempt is.
type Part struct {
	Target string `json:"target"`
}

type record struct {
	Part
	Schema string            `json:"schema"`
	N      int               `json:"n"`
	F      float64           `json:"f"`
	OK     bool              `json:"ok"`
	In     inner             `json:"in"`
	Opt    *inner            `json:"opt"`
	List   []inner           `json:"list"`
	Map    map[string]uint64 `json:"map,omitempty"`
}

const good = `{
 "schema": "x/v1", "target": "t", "n": 1, "f": 0.5, "ok": true,
 "in": {"id": "a"}, "opt": null,
 "list": [
  {"id": "b", "note": "c"},
  {"id": "d"}],
 "map": {"net": 4026531833, "Net": 2}
}
`

func TestUnmarshal(t *testing.T) {
	var r record
	lines, err := Unmarshal([]byte(good), &r)
	if err != nil {
		t.Fatal(err)
	}
	if lines["list[0]"] != 5 || lines["list[1]"] != 6 || r.List[1].ID != "d" || r.Map["net"] != 4026531833 {
		t.Errorf("lines %v, record %+v", lines, r)
	}
}

func TestUnmarshal_Refuses(t *testing.T) {
	swap := func(from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatalf("no %q in the good record", from)
		}
		return strings.Replace(good, from, to, 1)
	}
	for _, tc := range []struct{ in, want string }{
		{"", "line 1: empty"},
		{" \n", "line 1: empty"},
		{"INFO: x", "line 1: not JSON: invalid character 'I' looking for beginning of value"},
		{good[:75], "line 3: ends in the middle: cut short"},
		{good + "{}", "line 9: not JSON: invalid character '{' after top-level value"},
		{"[]", "line 1: the record is a JSON array, must be an object"},
		{swap(`"n": 1`, `"n": "1"`), "line 2: n is a JSON string, must be a whole number that fits int"},
		{swap(`"n": 1`, `"n": 1.5`), "line 2: n is a JSON number 1.5, must be a whole number that fits int"},
		{swap(`0.5`, `1e999`), "line 2: f is a JSON number 1e999, must be a number"},
		{swap(`"n": 1`, `"n": 1, "m": 2`), `line 2: the record has an unknown field "m"`},
		{swap(`"target": "t", `, ``), `line 8: the record has no "target"`},
		{swap(`"n": 1`, `"N": 1`), `line 2: the record has an unknown field "N"`},
		{swap(`"n": 1`, `"n": 1, "n": 2`), `line 2: the record has "n" twice`},
		{swap(`"n": 1,`, ``), `line 8: the record has no "n"`},
		{swap(`"n": 1`, `"n": null`), `line 2: n is null`},
		{swap(`{"id": "d"}`, `null`), `line 6: list[1] is null`},
		{swap(`{"id": "d"}`, `{"Id": "d"}`), `line 6: list[1] has an unknown field "Id"`},
		{swap(`{"id": "d"}`, `{"id": "d", "Skip": "x"}`), `line 6: list[1] has an unknown field "Skip"`},
		{swap(`{"id": "d"}`, `{}`), `line 6: list[1] has no "id"`},
		{swap(`"in": {"id": "a"}`, `"in": {"id": "a", "id": "b"}`), `line 3: in has "id" twice`},
		{swap(`"Net": 2`, `"net": 2`), `line 7: map has "net" twice`},
	} {
		var r record
		_, err := Unmarshal([]byte(tc.in), &r)
		if err == nil || err.Error() != tc.want {
			t.Errorf("Unmarshal(%.40q): %v, want %s", tc.in, err, tc.want)
		}
	}
}

// What encoding/json writes is taken, and what is taken says the same when
// written again.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(good))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r record
		if _, err := Unmarshal(data, &r); err != nil {
			return
		}
		if r.List == nil {
			t.Fatalf("%q was taken without its list", data)
		}
		out, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var again record
		if _, err := Unmarshal(out, &again); err != nil {
			t.Fatalf("%s from %q: %v", out, data, err)
		}
	})
}
