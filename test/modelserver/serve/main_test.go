package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"fence/pkg/model"
)

// Each turn has its line, and the one after the last is done, as a client of
// rollout's reads it.
func TestHandler(t *testing.T) {
	s := httptest.NewServer(handler([]string{"ls", "pwd"}))
	defer s.Close()
	c, err := model.New(model.Options{Base: s.URL + "/v1"})
	if err == nil {
		err = c.Discover(t.Context(), 0)
	}
	if err != nil || c.Name() != "by-hand" || c.Limits().Context != 32768 {
		t.Fatalf("%v, %q, %+v", err, c.Name(), c.Limits())
	}
	talk := []model.Message{{Role: "user", Content: "Do it."}}
	for n, want := range []string{`"keystrokes":"ls\n"`, `"keystrokes":"pwd\n"`, `"commands":[],"task_complete":true`, `"task_complete":true`} {
		reply, err := c.Chat(t.Context(), talk)
		if err != nil || !strings.Contains(reply.Content, want) {
			t.Errorf("turn %d: %v, %s", n+1, err, reply.Content)
		}
		talk = append(talk, model.Message{Role: "assistant", Content: reply.Content}, model.Message{Role: "user", Content: "And then?"})
	}
}
