package registry

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"fence/test/registrytest"
)

const user, secret = "somebody", "correct-horse"

// login writes a file that docker login or podman login could have written.
func login(t *testing.T, file string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o755)
	}
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func auths(hosts ...string) any {
	all := map[string]any{}
	for _, h := range hosts {
		all[h] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + secret))}
	}
	return map[string]any{"auths": all}
}

// seen are the credentials that a server was shown.
type seen struct {
	mu  sync.Mutex
	all []string
}

func (s *seen) add(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := r.Header.Get("Authorization"); a != "" && !slices.Contains(s.all, a) {
		s.all = append(s.all, a)
	}
}

// basic lets in who has the name and password.
func basic(seen *seen) registrytest.Fault {
	return func(w http.ResponseWriter, r *http.Request, _ int) bool {
		seen.add(r)
		if u, p, ok := r.BasicAuth(); ok && u == user && p == secret {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(401)
		io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`)
		return true
	}
}

// bearer lets in who has got a token at /token for name and password.
func bearer(seen *seen) registrytest.Fault {
	return func(w http.ResponseWriter, r *http.Request, _ int) bool {
		seen.add(r)
		if r.URL.Path == "/token" {
			if u, p, _ := r.BasicAuth(); u != user || p != secret || r.URL.Query().Get("scope") != "repository:some/image:pull" {
				w.WriteHeader(401)
			} else {
				io.WriteString(w, `{"token":"t0ken"}`)
			}
			return true
		}
		if r.Header.Get("Authorization") == "Bearer t0ken" {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="x",scope="repository:some/image:pull"`, r.Host))
		w.WriteHeader(401)
		return true
	}
}

// Where credentials are found.
func TestCredentials(t *testing.T) {
	reg := registrytest.Serve(t)
	ref := tag(t, reg.Push("some/image:1", picture(t, 1)))
	for name, c := range map[string]struct {
		set  func(t *testing.T, home string)
		fail string
	}{
		"docker login": {func(t *testing.T, home string) { login(t, home+"/.docker/config.json", auths(reg.Host)) }, ""},
		"DOCKER_CONFIG": {func(t *testing.T, home string) {
			login(t, home+"/.docker/config.json", auths("example.com"))
			login(t, home+"/x/config.json", auths(reg.Host))
			t.Setenv("DOCKER_CONFIG", home+"/x")
		}, ""},
		"podman login": {func(t *testing.T, home string) {
			login(t, home+"/run/containers/auth.json", auths(reg.Host))
			t.Setenv("XDG_RUNTIME_DIR", home+"/run")
		}, ""},
		"REGISTRY_AUTH_FILE, beside a docker login": {func(t *testing.T, home string) {
			login(t, home+"/.docker/config.json", auths("example.com"))
			login(t, home+"/auth.json", auths(reg.Host))
			t.Setenv("REGISTRY_AUTH_FILE", home+"/auth.json")
		}, ""},
		"a helper": {func(t *testing.T, home string) {
			login(t, home+"/.docker/config.json", map[string]any{"credHelpers": map[string]string{reg.Host: "test"}})
			helper(t, home, fmt.Sprintf(`read server; [ "$1" = get ] && [ "$server" = %s ] && echo '{"ServerURL":"x","Username":"%s","Secret":"%s"}'`, reg.Host, user, secret))
		}, ""},
		"none": {func(*testing.T, string) {}, "does not give it out (401): check the name, or log in with docker login " + reg.Host},
		"a helper that is not there": {func(t *testing.T, home string) {
			login(t, home+"/.docker/config.json", map[string]any{"credsStore": "nosuch"})
		}, `(the credentials that are kept for it could not be read: error getting credentials - err: exec: "docker-credential-nosuch": executable file not found in $PATH)`},
		"a helper that fails": {func(t *testing.T, home string) {
			login(t, home+"/.docker/config.json", map[string]any{"credsStore": "test"})
			helper(t, home, "echo "+secret+"; exit 1")
		}, "(the credentials that are kept for it could not be read: error getting credentials - err: exit status 1)"},
		"a file that is damaged": {func(t *testing.T, home string) {
			login(t, home+"/.docker/config.json", secret)
		}, "(the credentials that are kept for it could not be read: "},
		"others": {func(t *testing.T, home string) {
			login(t, home+"/.docker/config.json", auths("example.com"))
		}, "does not give it out (401)"},
	} {
		for kind, lets := range map[string]func(*seen) registrytest.Fault{"basic": basic, "bearer": bearer} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				home := alone(t)
				c.set(t, home)
				s := &seen{}
				reg.Reset(lets(s))
				_, err := pull(t.Context(), client(t, Options{Dir: t.TempDir()}), ref)
				if (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
					t.Errorf("%v, not %q", err, c.fail)
				}
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("it tells: %v", err)
				}
				if c.fail != "" && len(s.all) > 0 {
					t.Errorf("shown: %q", s.all)
				}
			})
		}
	}
}

// alone is a home folder of its own, with no login in it.
func alone(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, v := range []string{"DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_AUTH_CONFIG"} {
		t.Setenv(v, "")
	}
	return home
}

// helper is a program docker-credential-test.
func helper(t *testing.T, home, text string) {
	t.Helper()
	bin := filepath.Join(home, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "docker-credential-test"), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// A registry's credentials reach neither its mirror nor a host that it
// redirects to; a mirror gets its own.
func TestCredentials_GoNowhereElse(t *testing.T) {
	for kind, lets := range map[string]func(*seen) registrytest.Fault{"basic": basic, "bearer": bearer} {
		t.Run(kind, func(t *testing.T) {
			origin, mirror := registrytest.Serve(t), registrytest.Serve(t)
			img := picture(t, 1)
			ref := tag(t, origin.Push("some/image:1", img))
			mirror.Push("some/image:1", img)
			login(t, alone(t)+"/.docker/config.json", auths(origin.Host))
			atOrigin, atMirror, elsewhere := &seen{}, &seen{}, &seen{}
			blobs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				elsewhere.add(r)
				rec := httptest.NewRecorder()
				origin.Inner().ServeHTTP(rec, httptest.NewRequest(r.Method, r.URL.Path, nil))
				w.Write(rec.Body.Bytes())
			}))
			defer blobs.Close()
			let := lets(atOrigin)
			origin.Reset(func(w http.ResponseWriter, r *http.Request, n int) bool {
				if let(w, r, n) {
					return true
				}
				if strings.Contains(r.URL.Path, "/blobs/") {
					http.Redirect(w, r, blobs.URL+r.URL.Path+"?signature="+secret, http.StatusTemporaryRedirect)
					return true
				}
				return false
			})
			mirror.Reset(lets(atMirror)) // which wants credentials, too
			cl := client(t, Options{Dir: t.TempDir(), Mirrors: mirrors(t, origin.Host+"="+mirror.Host)})
			if _, err := pull(t.Context(), cl, ref); err != nil {
				t.Fatal(err)
			}
			if len(atOrigin.all) == 0 {
				t.Error("the registry was shown none")
			}
			if len(atMirror.all)+len(elsewhere.all) > 0 {
				t.Errorf("the mirror saw %q, the redirect's host %q", atMirror.all, elsewhere.all)
			}
			if mirror.Count("GET") == 0 {
				t.Error("the mirror was not asked")
			}
			// With a login of its own, the mirror gives everything.
			login(t, alone(t)+"/.docker/config.json", auths(mirror.Host))
			cl = client(t, Options{Dir: t.TempDir(), Mirrors: mirrors(t, origin.Host+"="+mirror.Host)})
			if _, err := pull(t.Context(), cl, ref); err != nil || len(cl.From(ref.Context())) != 1 {
				t.Errorf("%v, from %q", err, cl.From(ref.Context()))
			}
			// What a redirect carries is told to nobody.
			blobs.Close()
			login(t, alone(t)+"/.docker/config.json", auths(origin.Host))
			cl = client(t, Options{Dir: t.TempDir()})
			if _, err := pull(t.Context(), cl, ref); err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "GET of "+strings.TrimPrefix(blobs.URL, "http://")+"/v2/some/image/blobs/sha256:") {
				t.Errorf("%v", err)
			}
		})
	}
}

// A redirect from https to http is not followed.
func TestRedirect_NotDown(t *testing.T) {
	reg := registrytest.Serve(t)
	img := picture(t, 1)
	reg.Push("some/image:1", img)
	down := true
	tls := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down && strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, "http://"+reg.Host+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		reg.ServeHTTP(w, r)
	}))
	defer tls.Close()
	ref := tag(t, strings.TrimPrefix(tls.URL, "https://")+"/some/image:1")
	for _, down = range []bool{true, false} {
		cl := client(t, Options{Dir: t.TempDir()})
		cl.wire = tls.Client().Transport
		if _, err := pull(t.Context(), cl, ref); (err == nil) == down || err != nil && !strings.Contains(err.Error(), errRedirect.Error()) {
			t.Errorf("down %t: %v", down, err)
		}
	}
}
