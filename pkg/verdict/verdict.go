// Package verdict says what a verifier decided: it reads the reward from what
// was fetched of /logs/verifier, and puts the rewards of a task with several
// steps together. Both as Harbor does (src/harbor/verifier/verifier.py and
// src/harbor/trial), but that only a finite number is a reward: of nan and inf
// no mean can be taken.
//
// Where the files come from is not for this package to say: they count because
// the agent could not write to the folder they were fetched from.
package verdict

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/result"
)

// The files of a reward. The first is looked for first and counts if it is
// there, whatever the other says.
const (
	JSON = "reward.json"
	Text = "reward.txt"
)

// Key is the name of the number in reward.txt, and of the one that counts
// where reward.json has several.
const Key = "reward"

// Why there is no reward: the class of an Error.
const (
	Missing = "reward_missing" // neither file
	Empty   = "reward_empty"   // the one that counts has nothing but blanks
	Invalid = "reward_invalid" // what it has is no reward
)

// limit is how long a file may be, in bytes: thousands of numbers.
const limit = 1 << 20

// Error is why there is no reward. It is about the verifier, not about the
// answer that it had to judge: never take it for a reward of 0.
type Error struct {
	Class   string // Missing, Empty or Invalid
	Message string // one line
}

func (e *Error) Error() string { return e.Message }

// Verdict is a verifier's decision.
type Verdict struct {
	// Rewards are the numbers by name, at least one, all finite.
	Rewards map[string]float64
	Reward  float64  // the one number of them, see result.One
	From    string   // JSON or Text
	Notes   []string // what is odd about it, a line each
}

// Read reads the reward from dir, a copy of /logs/verifier. What is not a
// regular file is not read, and counts as a file that is there: a link would
// have been followed to who knows what. An error is an *Error, unless dir could
// not be read.
func Read(dir string) (Verdict, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Verdict{}, fmt.Errorf("reading the reward: %w", err)
	}
	defer root.Close()
	files := map[string][]byte{}
	problems := map[string]error{}
	for _, name := range []string{JSON, Text} {
		data, err := regular(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		files[name], problems[name] = data, err
	}
	return decide(files, problems)
}

// decide chooses between the files that are there: their content, or why it
// could not be had.
func decide(files map[string][]byte, problems map[string]error) (Verdict, error) {
	parse := func(name string) (Verdict, error) {
		if err := problems[name]; err != nil {
			return Verdict{}, &Error{Invalid, err.Error()}
		}
		if name == JSON {
			return ParseJSON(files[name])
		}
		return ParseText(files[name])
	}
	_, hasJSON := files[JSON]
	_, hasText := files[Text]
	switch {
	case !hasJSON && !hasText:
		return Verdict{}, &Error{Missing, "the tests wrote no reward: neither /logs/verifier/reward.json nor reward.txt is there when they end"}
	case !hasJSON:
		return parse(Text)
	}
	v, err := parse(JSON)
	if !hasText || err != nil {
		return v, err
	}
	if other, err := parse(Text); err != nil {
		v.Notes = append(v.Notes, "reward.json counts; "+err.Error())
	} else if text := other.Rewards[Key]; v.Reward != text {
		v.Notes = append(v.Notes, fmt.Sprintf("reward.json counts, and reward.txt says something else: %v", text))
	}
	return v, nil
}

// regular reads a file of the folder.
func regular(root *os.Root, name string) ([]byte, error) {
	named, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if named.Mode().Type() == fs.ModeSymlink {
		return nil, fmt.Errorf("%s is a link: the tests must write a file", name)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", name, errors.Unwrap(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || !os.SameFile(named, info) {
		return nil, fmt.Errorf("%s is not a regular file: the tests must write a file", name)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes: a reward has at most %d", name, info.Size(), limit)
	}
	data := make([]byte, info.Size())
	n, err := f.ReadAt(data, 0)
	if err != nil && n < len(data) {
		return nil, fmt.Errorf("%s cannot be read: %w", name, err)
	}
	return data, nil
}

// of makes a verdict of numbers that were found to be finite.
func of(from string, rewards map[string]float64) Verdict {
	v := Verdict{Rewards: rewards, Reward: result.One(rewards), From: from}
	if _, ok := rewards[Key]; !ok && len(rewards) > 1 {
		v.Notes = []string{fmt.Sprintf("%s has %d rewards and none that is called %q (it has %s): their mean counts",
			from, len(rewards), Key, shortList(slices.Sorted(maps.Keys(rewards))))}
	}
	return v
}

// shortList quotes the first few names: they are the verifier's.
func shortList(names []string) string {
	var b strings.Builder
	for i, n := range names {
		if i == 5 {
			b.WriteString(", ...")
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(quote(n))
	}
	return b.String()
}
