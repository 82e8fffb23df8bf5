package model

import (
	"slices"
	"strings"
	"testing"
)

// Each wording is that of a message which no other one finds.
func TestTooLong_EveryWording(t *testing.T) {
	var found []string
	for wording, message := range map[string]string{
		"context length exceeded":                 "Context length exceeded",
		"context_length_exceeded":                 "code: context_length_exceeded",
		"maximum context length":                  "This model's maximum context length is 4096 tokens",
		"`inputs` tokens + `max_new_tokens`":      "`inputs` tokens + `max_new_tokens` must be <= 2048",
		"model's context length":                  "The prompt (5000 tokens) is above the model’s context length (4096)",
		"prompt is too long":                      "prompt is too long: 5000 tokens",
		"input is too long for requested model":   "Input is too long for requested model.",
		"exceeds the available context size":      "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
		"exceed_context_size_error":               "type: exceed_context_size_error",
		"exceed context window":                   "Requested tokens (5000) exceed context window of 4096",
		"exceeds the context window":              "Your input exceeds the context window of this model.",
		"longer than the model's context":         "The input (5000 tokens) is longer than the model’s context (4096 tokens).",
		"exceeds the maximum allowed length":      "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens).",
		"input length exceeds the context length": "the input length exceeds the context length",
		"maximum model length":                    "The prompt is longer than the maximum model length of 4096",
	} {
		if !TooLong(message) {
			t.Errorf("%q is not known", message)
		}
		plain := strings.ReplaceAll(strings.ToLower(message), "’", "'")
		for _, w := range tooLong {
			if w != wording && strings.Contains(plain, w) {
				t.Errorf("%q is found by %q, too", message, w)
			}
		}
		found = append(found, wording)
	}
	slices.Sort(found)
	if want := slices.Sorted(slices.Values(tooLong)); !slices.Equal(found, want) {
		t.Errorf("there are messages for %q\nof %q", found, want)
	}
}
