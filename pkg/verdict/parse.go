package verdict

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ParseText reads a reward.txt: one number as Python's float() takes it, with
// blanks around it. An error is an *Error.
func ParseText(data []byte) (Verdict, error) {
	if !utf8.Valid(data) {
		return Verdict{}, &Error{Invalid, fmt.Sprintf("reward.txt is not text: it has %s", quote(string(data)))}
	}
	text := strings.TrimFunc(string(data), blank)
	if text == "" {
		return Verdict{}, &Error{Empty, "reward.txt is empty: the tests must write a number to it"}
	}
	f, ok := pythonFloat(text)
	if !ok {
		return Verdict{}, &Error{Invalid, fmt.Sprintf("reward.txt has %s, which is no finite number", quote(text))}
	}
	return of(Text, map[string]float64{Key: f}), nil
}

// ParseJSON reads a reward.json: one finite number, or an object of them. An
// error is an *Error.
func ParseJSON(data []byte) (Verdict, error) {
	invalid := func(format string, args ...any) (Verdict, error) {
		return Verdict{}, &Error{Invalid, "reward.json " + fmt.Sprintf(format, args...)}
	}
	if len(bytes.TrimFunc(data, blank)) == 0 {
		return Verdict{}, &Error{Empty, "reward.json is empty: the tests must write {\"reward\": NUMBER} to it"}
	}
	if !utf8.Valid(data) {
		return invalid("is not JSON: it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	rewards := map[string]float64{}
	first, err := d.Token()
	if err != nil {
		return invalid("is not JSON: %s", syntax(err))
	}
	switch first := first.(type) {
	case json.Number:
		f, ok := finite(first)
		if !ok {
			return invalid("has the number %s, which is larger than any", quote(first.String()))
		}
		rewards[Key] = f
	case json.Delim:
		if first != '{' {
			return invalid("is a list: it must be an object of numbers, as {\"reward\": 1}")
		}
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return invalid("is not JSON: %s", syntax(err))
			}
			name, _ := k.(string)
			if _, ok := rewards[name]; ok {
				return invalid("has %s twice", quote(name))
			}
			v, err := d.Token()
			if err != nil {
				return invalid("is not JSON: %s", syntax(err))
			}
			n, ok := v.(json.Number)
			if !ok {
				return invalid("has under %s %s: each must be a number", quote(name), kind(v))
			}
			if rewards[name], ok = finite(n); !ok {
				return invalid("has under %s %s, which is larger than any number", quote(name), quote(n.String()))
			}
		}
		if _, err := d.Token(); err != nil {
			return invalid("is not JSON: %s", syntax(err))
		}
	default:
		return invalid("is %s: it must be a number or an object of numbers, as {\"reward\": 1}", kind(first))
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("is not JSON: there is more after its value")
	}
	if len(rewards) == 0 {
		return invalid("is an object without a number: it must be as {\"reward\": 1}")
	}
	return of(JSON, rewards), nil
}

// finite is a JSON number (RFC 8259, section 6) as a float64.
func finite(n json.Number) (float64, bool) {
	f, err := n.Float64()
	return f, err == nil && !math.IsInf(f, 0)
}

// kind names a JSON value that is no number.
func kind(v json.Token) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case string:
		return "the text " + quote(v)
	case json.Delim:
		if v == '{' {
			return "an object"
		}
		return "a list"
	}
	return "something else"
}

// syntax is what the decoder found, which says "EOF" where the text ends early.
func syntax(err error) string {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return "it ends in the middle"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// pythonFloat is float(s) of Python 3, without nan and the infinities: decimal
// digits of any script, an underscore between two digits, no hexadecimal
// (https://docs.python.org/3/library/functions.html#float).
func pythonFloat(s string) (float64, bool) {
	var b strings.Builder
	for _, r := range s {
		if d, ok := digit(r); ok {
			r = '0' + d
		} else if !strings.ContainsRune("+-._eE", r) {
			return 0, false
		}
		b.WriteRune(r)
	}
	s = b.String()
	for i := range len(s) {
		if s[i] == '_' && (i == 0 || i == len(s)-1 || !isDigit(s[i-1]) || !isDigit(s[i+1])) {
			return 0, false
		}
	}
	// Too large a number is inf in Python, and an error here.
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return f, err == nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// digit is the value of a decimal digit. In Unicode each script has its ten in
// a row, and of a run of several such rows each begins at a multiple of ten
// from the run's beginning.
func digit(r rune) (rune, bool) {
	if r < utf8.RuneSelf {
		return r - '0', '0' <= r && r <= '9'
	}
	for _, run := range unicode.Nd.R16 {
		if rune(run.Lo) <= r && r <= rune(run.Hi) {
			return (r - rune(run.Lo)) % 10, true
		}
	}
	for _, run := range unicode.Nd.R32 {
		if rune(run.Lo) <= r && r <= rune(run.Hi) {
			return (r - rune(run.Lo)) % 10, true
		}
	}
	return 0, false
}

// blank is what Python's str.strip takes away.
func blank(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }

// quote shows what a verifier wrote, in one short line.
func quote(s string) string {
	const most = 40
	if runes := []rune(s); len(runes) > most {
		return strconv.Quote(string(runes[:most])) + "..."
	}
	return strconv.Quote(s)
}
