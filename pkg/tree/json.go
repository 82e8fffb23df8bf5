package tree

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Names on disk are bytes, and JSON is Unicode: a name that is not is written
// as NUL, which no name holds, and Go's quoting of the bytes.

func toJSON(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return "\x00" + strconv.QuoteToASCII(s)
}

func fromJSON(s *string) error {
	quoted, ok := strings.CutPrefix(*s, "\x00")
	if !ok {
		return nil
	}
	name, err := strconv.Unquote(quoted)
	if err != nil {
		return fmt.Errorf("the name %q: %w", quoted, err)
	}
	*s = name
	return nil
}

type (
	plainEntry   Entry
	plainMatch   Match
	plainSpecial Special
)

func (e Entry) MarshalJSON() ([]byte, error) {
	e.Path, e.Link = toJSON(e.Path), toJSON(e.Link)
	return json.Marshal(plainEntry(e))
}

func (e *Entry) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, (*plainEntry)(e)); err != nil {
		return err
	}
	if err := fromJSON(&e.Path); err != nil {
		return err
	}
	return fromJSON(&e.Link)
}

func (m Match) MarshalJSON() ([]byte, error) {
	m.Source, m.Path, m.Name = toJSON(m.Source), toJSON(m.Path), toJSON(m.Name)
	return json.Marshal(plainMatch(m))
}

func (m *Match) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, (*plainMatch)(m)); err != nil {
		return err
	}
	for _, s := range []*string{&m.Source, &m.Path, &m.Name} {
		if err := fromJSON(s); err != nil {
			return err
		}
	}
	return nil
}

func (s Special) MarshalJSON() ([]byte, error) {
	s.Path = toJSON(s.Path)
	return json.Marshal(plainSpecial(s))
}

func (s *Special) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, (*plainSpecial)(s)); err != nil {
		return err
	}
	return fromJSON(&s.Path)
}
