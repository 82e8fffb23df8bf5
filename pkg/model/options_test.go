package model_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fence/pkg/model"
	"fence/test/modelserver"
)

func TestDiscover(t *testing.T) {
	vllm := `{"object":"list","data":[{"id":"m","object":"model","created":1,"max_model_len":32768,"permission":[{"id":"p","created":1}]}]}`
	llama := `{"models":[{"name":"m"}],"object":"list","data":[{"id":"m","meta":{"n_vocab":49152,"n_ctx_train":8192}}]}`
	llama26 := strings.Replace(llama, `"n_ctx_train"`, `"n_ctx":2048,"n_ctx_train"`, 1)
	for _, c := range []struct {
		name          string
		models, props string
		model         string
		given         model.Limits
		want          model.Limits
		says          string
	}{
		{"vLLM", vllm, "", "m", model.Limits{}, model.Limits{Context: 32768}, ""},
		{"what is given wins", vllm, "", "m", model.Limits{Context: 100, Output: 7}, model.Limits{Context: 100, Output: 7}, ""},
		{"the only model", vllm, "", "?", model.Limits{}, model.Limits{Context: 32768}, ""},
		{"llama.cpp", llama, "", "m", model.Limits{}, model.Limits{Context: 8192}, ""},
		{"llama.cpp with a slot", llama, `{"default_generation_settings":{"n_ctx":2048}}`, "m", model.Limits{}, model.Limits{Context: 2048}, ""},
		{"llama.cpp of 2026", llama26, `{}`, "m", model.Limits{}, model.Limits{Context: 2048}, ""},
		{"an adapter of vLLM's", strings.Replace(vllm, `"data":[`, `"data":[{"id":"lora","parent":"m","max_model_len":null},`, 1), "", "lora", model.Limits{}, model.Limits{Context: 32768}, ""},
		{"numbers as others write them", `{"data":[{"id":"m","created":1.5,"owned_by":7,"parent":3,"max_model_len":4096.0}]}`, "", "m", model.Limits{}, model.Limits{Context: 4096}, ""},
		{"no numbers", `{"data":[{"id":"m","max_model_len":"4096","context_length":-5,"loaded_context_length":0.5,"meta":"x"}]}`, "", "m", model.Limits{}, model.Limits{}, ""},
		{"a slot of nothing", llama, `{"default_generation_settings":{"n_ctx":-1}}`, "m", model.Limits{}, model.Limits{Context: 8192}, ""},
		{"a list with the key", `{"data":[{"id":"sk-123456"},{"id":"sk-12345\u0036\n"}]}`, "", "m", model.Limits{}, model.Limits{}, "it has [key], [key]"},
		{"a list of nothing", `{"data":[]}`, "", "m", model.Limits{}, model.Limits{}, "it has none"},
		{"no such model", vllm, "", "other", model.Limits{}, model.Limits{}, `no model "other"; it has m`},
		{"no list", "", "", "m", model.Limits{}, model.Limits{}, ""},
		{"no list, no name", "", "", "?", model.Limits{}, model.Limits{}, "404"},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := modelserver.Start(t, modelserver.Say("x"))
			srv.Models(c.models)
			srv.Props(c.props)
			o := model.Options{Base: srv.Base, Name: c.model, Limits: c.given, Key: key(t, "sk-123456")}
			cl, err := model.New(o)
			if c.model == "?" {
				o.Name = ""
				cl, err = model.New(o)
			}
			if err != nil {
				t.Fatal(err)
			}
			err = cl.Discover(t.Context(), 0)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("error %v, want %q", err, c.says)
				}
				return
			}
			if err != nil || cl.Limits() != c.want || cl.Name() != strings.Replace(c.model, "?", "m", 1) {
				t.Errorf("%+v of %s, %v", cl.Limits(), cl.Name(), err)
			}
		})
	}
}

func TestOptionsThatAreRefused(t *testing.T) {
	for _, o := range []model.Options{
		{Base: "node:8000"},
		{Base: "unix:"},
		{Base: ""},
		{Base: "ftp://h/v1"},
		{Base: "http://user:secret@h/v1"},
		{Base: "http://h/v1?key=secret"},
		{Base: "http://h:189620"},
		{Base: "http://h:0/v1"},
		{Base: "http://h", Extra: map[string]json.RawMessage{"stream": []byte("true")}},
		{Base: "http://h", Extra: map[string]json.RawMessage{"seed": []byte("tr")}},
	} {
		if _, err := model.New(o); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := model.New(model.Options{Base: "http://h:1", Extra: map[string]json.RawMessage{"seed": []byte("1")}}); err != nil {
		t.Error(err)
	}
}

func TestTheKeyIsNeverPrinted(t *testing.T) {
	k := key(t, "sk-abcdefgh")
	o := model.Options{Base: "http://127.0.0.1:1", Key: k}
	c := client(t, o)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", k, "options", fmt.Sprintf("%+v", o))
	js, _ := json.Marshal(struct{ Key model.Key }{k})
	for _, s := range []string{fmt.Sprintf("%v %+v %#v", k, o, k), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), log.String(), string(js)} {
		if strings.Contains(s, "abcdefgh") {
			t.Errorf("printed: %s", s)
		}
	}
}

// A server that repeats the key does not bring it into a record. A word that
// stands for none is left to the model.
func TestTheKeyInWhatAServerSays(t *testing.T) {
	for _, c := range []struct{ key, says, want string }{
		{"sk-123456", `Bearer sk-123456, \u0073k-12345\u0036`, "Bearer [key], [key]"},
		{`a/b"c1\n`, `a\/b\"c1\\n`, "[key]"},
		{"ollama", "pip install ollama", "pip install ollama"},
		{"EMPTY", "EMPTY", "EMPTY"},
	} {
		srv := modelserver.Start(t, modelserver.Raw(`{"model":"`+c.says+`","choices":[{"finish_reason":"`+c.says+`","message":{"content":"`+c.says+`","reasoning":"`+c.says+`"}}]}`),
			modelserver.Status(400, `{"error":{"message":"`+strings.Repeat("x", 290)+c.says+`"}}`))
		cl := client(t, model.Options{Base: srv.Base, Key: key(t, c.key)})
		r, err := cl.Chat(t.Context(), hello)
		if got := []string{r.Content, r.Reasoning, r.Model, r.Finish}; err != nil || strings.Join(got, "|") != strings.Repeat(c.want+"|", 3)+c.want {
			t.Errorf("%s: %q, %v", c.key, got, err)
		}
		if _, err := cl.Chat(t.Context(), hello); err == nil || strings.Contains(err.Error(), c.key[:3]) && strings.HasPrefix(c.key, "sk-") {
			t.Errorf("%s: %v", c.key, err)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Setenv("MODEL_KEY", " k1 ")
	if _, err := model.KeyEnv("MODEL_KEY"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "  ", "two words", "a\nb", "ü"} {
		t.Setenv("MODEL_KEY", bad)
		if _, err := model.KeyEnv("MODEL_KEY"); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if _, err := model.KeyEnv("NO_SUCH_VARIABLE_HERE"); err == nil {
		t.Error("a variable that is not there was taken")
	}
	dir := t.TempDir()
	fifo, large := filepath.Join(dir, "fifo"), filepath.Join(dir, "large")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.WriteFile(large, bytes.Repeat([]byte("k"), 65<<10), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"/nonexistent/key", fifo, dir, large, "/dev/zero"} {
		if _, err := model.KeyFile(bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
