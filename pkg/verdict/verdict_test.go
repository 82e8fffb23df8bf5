package verdict

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// show is a result in one line.
func show(v Verdict, err error) string {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Class + ": " + e.Message
	} else if err != nil {
		return "error: " + err.Error()
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(v.Rewards)) {
		parts = append(parts, fmt.Sprintf("%s=%v", k, v.Rewards[k]))
	}
	line := fmt.Sprintf("%v from %s of %s", v.Reward, v.From, strings.Join(parts, " "))
	if len(v.Notes) > 0 {
		line += "; " + strings.Join(v.Notes, "; ")
	}
	return line
}

func TestParseText(t *testing.T) {
	for text, want := range map[string]string{
		"1":                       "1",
		"0":                       "0",
		" 0.5\r\n":                "0.5",
		"\x1f1\u3000":             "1",
		"-1e3":                    "-1000",
		"+.5":                     "0.5",
		"5.":                      "5",
		"1_0":                     "10",
		"1_0.2_5":                 "10.25",
		"1e-400":                  "0",
		"\u0661\u0662":            "12",  // Arabic-Indic
		"\U0001d7d8.\U0001d7dd":   "0.5", // mathematical: double-struck 0, 5
		"\U0001d7ce\U0001d7d9":    "1",   // bold 0, double-struck 1: one run of five scripts
		"":                        Empty,
		" \n":                     Empty,
		"nan":                     Invalid,
		"inf":                     Invalid,
		"-Infinity":               Invalid,
		"1e999":                   Invalid,
		"passed":                  Invalid,
		"1 0":                     Invalid,
		"1\n0":                    Invalid,
		"1,5":                     Invalid,
		"0x1p3":                   Invalid,
		"0x10":                    Invalid,
		"_1":                      Invalid,
		"1_":                      Invalid,
		"1__0":                    Invalid,
		"1_.5":                    Invalid,
		"1e_5":                    Invalid,
		".":                       Invalid,
		"e5":                      Invalid,
		"--1":                     Invalid,
		"1\x00":                   Invalid,
		"\ufeff1":                 Invalid, // Python takes no byte order mark either
		"\xff1":                   Invalid,
		"\u00b2":                  Invalid, // superscript 2 is no decimal
		strings.Repeat("1", 400):  Invalid,
		strings.Repeat("x", 4000): Invalid,
	} {
		v, err := ParseText([]byte(text))
		got := show(v, err)
		if want == Empty || want == Invalid {
			if !strings.HasPrefix(got, want+": reward.txt ") || len(got) > 200 || strings.ContainsAny(got, "\n\x00") || v.Rewards != nil {
				t.Errorf("%q: %s", text, got)
			}
		} else if want := want + " from reward.txt of reward=" + want; got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestParseJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"reward": 1}`:                         "1 from reward.json of reward=1",
		` {"reward": 0.25, "speed": 3e2} `:      "0.25 from reward.json of reward=0.25 speed=300",
		`{"score": 0.5}`:                        "0.5 from reward.json of score=0.5",
		`{"a": 1e308, "b": 1.5e308}`:            `1.25e+308 from reward.json of a=1e+308 b=1.5e+308; reward.json has 2 rewards and none that is called "reward" (it has "a", "b"): their mean counts`,
		`0.5`:                                   "0.5 from reward.json of reward=0.5",
		`-1`:                                    "-1 from reward.json of reward=-1",
		`{"a": 1, "b": 2}`:                      `1.5 from reward.json of a=1 b=2; reward.json has 2 rewards and none that is called "reward" (it has "a", "b"): their mean counts`,
		`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}`: `1 from reward.json of a=1 b=1 c=1 d=1 e=1 f=1; reward.json has 6 rewards and none that is called "reward" (it has "a", "b", "c", "d", "e", ...): their mean counts`,
		``:                                      "reward_empty: reward.json is empty: the tests must write {\"reward\": NUMBER} to it",
		"\n ":                                   "reward_empty: reward.json is empty: the tests must write {\"reward\": NUMBER} to it",
		`{}`:                                    `reward_invalid: reward.json is an object without a number: it must be as {"reward": 1}`,
		`{"reward": NaN}`:                       `reward_invalid: reward.json is not JSON: invalid character 'N' looking for beginning of value`,
		`Infinity`:                              `reward_invalid: reward.json is not JSON: invalid character 'I' looking for beginning of value`,
		`{"reward": 1e999}`:                     `reward_invalid: reward.json has under "reward" "1e999", which is larger than any number`,
		`1e999`:                                 `reward_invalid: reward.json has the number "1e999", which is larger than any`,
		`{"reward": "1"}`:                       `reward_invalid: reward.json has under "reward" the text "1": each must be a number`,
		`{"reward": true}`:                      `reward_invalid: reward.json has under "reward" true: each must be a number`,
		`{"reward": null}`:                      `reward_invalid: reward.json has under "reward" null: each must be a number`,
		`{"reward": {"x": 1}}`:                  `reward_invalid: reward.json has under "reward" an object: each must be a number`,
		`{"reward": [1]}`:                       `reward_invalid: reward.json has under "reward" a list: each must be a number`,
		`{"reward": 0, "reward": 1}`:            `reward_invalid: reward.json has "reward" twice`,
		`{"reward": 0, "rew\u0061rd": 1}`:       `reward_invalid: reward.json has "reward" twice`,
		`[1]`:                                   `reward_invalid: reward.json is a list: it must be an object of numbers, as {"reward": 1}`,
		`"1"`:                                   `reward_invalid: reward.json is the text "1": it must be a number or an object of numbers, as {"reward": 1}`,
		`null`:                                  `reward_invalid: reward.json is null: it must be a number or an object of numbers, as {"reward": 1}`,
		`{"reward": 1`:                          `reward_invalid: reward.json is not JSON: it ends in the middle`,
		`{"reward": 1,}`:                        `reward_invalid: reward.json is not JSON: invalid character '}' looking for beginning of object key string`,
		`{"reward": 1} {"reward": 0}`:           `reward_invalid: reward.json is not JSON: there is more after its value`,
		`{"reward": 01}`:                        `reward_invalid: reward.json is not JSON: invalid character '1' after object key:value pair`,
		`{"reward": 0x1}`:                       `reward_invalid: reward.json is not JSON: invalid character 'x' after object key:value pair`,
		"{\"\xff\": 1}":                         "reward_invalid: reward.json is not JSON: it is not UTF-8",
		`passed`:                                `reward_invalid: reward.json is not JSON: invalid character 'p' looking for beginning of value`,
	} {
		if got := show(ParseJSON([]byte(text))); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}

func TestRead(t *testing.T) {
	write := func(name, text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644) }
	}
	link := func(target, name string) func(string) error {
		return func(dir string) error { return os.Symlink(target, filepath.Join(dir, name)) }
	}
	type setup []func(dir string) error
	for _, row := range []struct {
		name string
		do   setup
		want string
	}{
		{"nothing", nil, "reward_missing: the tests wrote no reward: neither /logs/verifier/reward.json nor reward.txt is there when they end"},
		{"another name", setup{write("rewards.json", `{"reward": 1}`)}, "reward_missing: the tests wrote no reward: neither /logs/verifier/reward.json nor reward.txt is there when they end"},
		{"text", setup{write(Text, "1\n")}, "1 from reward.txt of reward=1"},
		{"json", setup{write(JSON, `{"reward": 1}`)}, "1 from reward.json of reward=1"},
		{"both agree", setup{write(JSON, `{"reward": 1, "time": 3}`), write(Text, "1.0")}, "1 from reward.json of reward=1 time=3"},
		{"json wins", setup{write(JSON, `{"reward": 0}`), write(Text, "1")}, "0 from reward.json of reward=0; reward.json counts, and reward.txt says something else: 1"},
		{"text is no number", setup{write(JSON, `1`), write(Text, "ok")}, `1 from reward.json of reward=1; reward.json counts; reward.txt has "ok", which is no finite number`},
		{"text is a link", setup{write(JSON, `1`), link(JSON, Text)}, `1 from reward.json of reward=1; reward.json counts; reward.txt is a link: the tests must write a file`},
		// A broken reward.json is not made good by the other file.
		{"json is broken", setup{write(JSON, `{`), write(Text, "1")}, "reward_invalid: reward.json is not JSON: it ends in the middle"},
		{"json is empty", setup{write(JSON, ``), write(Text, "1")}, `reward_empty: reward.json is empty: the tests must write {"reward": NUMBER} to it`},
		{"link beside", setup{write("x", "1"), link("x", Text)}, "reward_invalid: reward.txt is a link: the tests must write a file"},
		{"link out", setup{link("/etc/hostname", JSON)}, "reward_invalid: reward.json is a link: the tests must write a file"},
		{"link to nothing", setup{link("none", Text)}, "reward_invalid: reward.txt is a link: the tests must write a file"},
		{"link to itself", setup{link(Text, Text)}, "reward_invalid: reward.txt is a link: the tests must write a file"},
		{"hard link", setup{write("x", "1"), func(dir string) error { return os.Link(filepath.Join(dir, "x"), filepath.Join(dir, Text)) }}, "1 from reward.txt of reward=1"},
		{"folder", setup{func(dir string) error { return os.Mkdir(filepath.Join(dir, Text), 0o755) }}, "reward_invalid: reward.txt is not a regular file: the tests must write a file"},
		{"pipe", setup{func(dir string) error { return unix.Mkfifo(filepath.Join(dir, Text), 0o644) }}, "reward_invalid: reward.txt is not a regular file: the tests must write a file"},
		{"socket", setup{func(dir string) error { return unix.Mknod(filepath.Join(dir, JSON), unix.S_IFSOCK|0o644, 0) }}, "reward_invalid: reward.json cannot be read: no such device or address"},
		{"full", setup{write(Text, strings.Repeat(" ", limit-1)+"1")}, "1 from reward.txt of reward=1"},
		{"large", setup{write(Text, strings.Repeat(" ", limit)+"1")}, "reward_invalid: reward.txt has 1048577 bytes: a reward has at most 1048576"},
	} {
		dir := t.TempDir()
		for _, do := range row.do {
			if err := do(dir); err != nil {
				t.Fatal(err)
			}
		}
		if got := show(Read(dir)); got != row.want {
			t.Errorf("%s:\n got %s\nwant %s", row.name, got, row.want)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func TestCombine(t *testing.T) {
	type m = map[string]float64
	for _, row := range []struct {
		name     string
		strategy string
		steps    []m
		want     string
	}{
		{"mean", Mean, []m{{"reward": 1}, {"reward": 0}}, "map[reward:0.5]"},
		{"a step without rewards is left out", Mean, []m{{"reward": 1}, nil}, "map[reward:1]"},
		{"a name that is missing is 0", Mean, []m{{"reward": 1, "style": 1}, {"reward": 1}}, "map[reward:1 style:0.5]"},
		{"rounded as the sum over the number", Mean, []m{{"r": 0.1}, {"r": 0.2}, {"r": 0.3}}, "map[r:0.20000000000000004]"},
		{"large", Mean, []m{{"r": math.MaxFloat64}, {"r": math.MaxFloat64}}, "map[r:1.7976931348623157e+308]"},
		{"large and opposite", Mean, []m{{"r": math.MaxFloat64}, {"r": math.MaxFloat64}, {"r": -math.MaxFloat64}, {"r": -math.MaxFloat64}}, "map[r:0]"},
		{"none", Mean, []m{nil, nil}, "map[]"},
		{"no step", Mean, nil, "map[]"},
		{"final", Final, []m{{"reward": 1}, {"reward": 0.25, "x": 1}}, "map[reward:0.25 x:1]"},
		{"final has none", Final, []m{{"reward": 1}, nil}, "map[]"},
		{"no final", Final, nil, "map[]"},
	} {
		got, err := Combine(row.strategy, row.steps)
		if err != nil || fmt.Sprint(got) != row.want || len(got) == 0 && got != nil {
			t.Errorf("%s: %v %v, want %s", row.name, got, err, row.want)
		}
	}
	for _, strategy := range []string{"", "min", "Mean"} {
		if got, err := Combine(strategy, []m{{"reward": 1}}); err == nil || got != nil {
			t.Errorf("%q: %v %v", strategy, got, err)
		}
	}
	steps := []m{{"reward": 1}}
	got, _ := Combine(Final, steps)
	got["reward"] = 2
	if steps[0]["reward"] != 1 {
		t.Error("the result is the step's own table")
	}
}

func TestShort(t *testing.T) {
	type m = map[string]float64
	for _, row := range []struct {
		rewards, least m
		want           string
	}{
		{m{"reward": 1}, m{"reward": 1}, ""},
		{m{"reward": 0.5}, m{"reward": 1}, `"reward" is 0.5, less than 1`},
		{nil, m{"reward": 0}, `"reward" is missing, less than 0`},
		{m{"x": 5}, m{"reward": -1e300}, `"reward" is missing, less than -1e+300`},
		{m{"x": 5}, m{"reward": math.Inf(-1)}, ""},
		{m{"a": 1, "b": 0}, m{"b": 1, "c": 1, "a": 1}, `"b" is 0, less than 1; "c" is missing, less than 1`},
		{m{"reward": 1}, m{"reward": math.NaN()}, `"reward" is 1, less than NaN`},
		{nil, nil, ""},
	} {
		if got := Short(row.rewards, row.least); got != row.want {
			t.Errorf("%v of %v: %s, want %s", row.rewards, row.least, got, row.want)
		}
	}
}

// Whatever a verifier writes, the outcome is one number or more, all finite, or
// an error of one line.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"1", "nan", "{\"reward\": 1}", "[1]", "{\"a\": 1, \"a\": 2}", "1_0", "\u0661", "{\"a\": {}}", "{\"a\" 1}", "1e999"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range []func([]byte) (Verdict, error){ParseText, ParseJSON} {
			v, err := parse(data)
			if err != nil {
				if e := (*Error)(nil); !errors.As(err, &e) || strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 1000 || v.Rewards != nil {
					t.Fatalf("%q %#v", err, v)
				}
				continue
			}
			if len(v.Rewards) == 0 || math.IsNaN(v.Reward) || math.IsInf(v.Reward, 0) {
				t.Fatalf("%#v", v)
			}
			for _, r := range v.Rewards {
				if math.IsNaN(r) || math.IsInf(r, 0) {
					t.Fatalf("%#v", v)
				}
			}
		}
	})
}
