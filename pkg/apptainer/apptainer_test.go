package apptainer

import (
	"errors"
	"testing"
)

func TestLastWords(t *testing.T) {
	for said, want := range map[string]string{
		"": "it says nothing (signal: killed)",
		"INFO:    one\nFATAL:   no such image\nmore\n":                                 "no such image",
		"\x1b[91mERROR  : Failed to create user namespace: too many\n\x1b[0m":          "Failed to create user namespace: too many",
		"WARNING: x\nfence: not fenced, and the command was not run: y\nhint: fence\n": "not fenced, and the command was not run: y",
		"one\n\ntwo\n\n": "two",
	} {
		if got := LastWords(said, errors.New("signal: killed")); got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}

func TestTail(t *testing.T) {
	to := Tail{Most: 4}
	for range 9 {
		to.Write([]byte("abc"))
	}
	if got := to.String(); got != "cabc" {
		t.Errorf("%q", got)
	}
}
