package registry

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// A keychain finds credentials where docker login and podman login keep them,
// in a file or with the helper (docker-credential-NAME) that the file names.
// They are looked up by the host that is asked, so a mirror gets what is kept
// for its own host and nothing else.
//
// A helper or file that fails is no reason to fail: many have copied a
// configuration to a cluster that lacks the helper, and most images are for
// everybody. It is said where a registry then gives nothing out.
type keychain struct {
	mu     sync.Mutex
	failed map[string]string // by registry: why its credentials were not found
}

// Resolve implements authn.Keychain.
func (k *keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	for _, path := range authFiles(os.Getenv) {
		auth, err := fromFile(path, r.RegistryStr())
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			// What a helper printed stands behind "out:", and may be anything.
			why, _, _ := strings.Cut(err.Error(), ", out:")
			why, _, _ = strings.Cut(why, "\n")
			k.mu.Lock()
			k.failed[r.RegistryStr()] = why
			k.mu.Unlock()
		case auth != authn.Anonymous:
			return auth, nil
		}
	}
	return authn.Anonymous, nil
}

// help is what to say where a registry gives nothing out.
func (k *keychain) help(registry string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if why, ok := k.failed[registry]; ok {
		return " (the credentials that are kept for it could not be read: " + why + ")"
	}
	return ""
}

// authFiles are the files that may hold credentials, the first to ask first:
// containers-auth.json(5), and docker login's --config.
func authFiles(env func(string) string) []string {
	all := []string{env("REGISTRY_AUTH_FILE")}
	add := func(dir string, more ...string) {
		if dir != "" {
			all = append(all, filepath.Join(append([]string{dir}, more...)...))
		}
	}
	if env("DOCKER_CONFIG") != "" {
		add(env("DOCKER_CONFIG"), "config.json")
	} else {
		add(env("HOME"), ".docker", "config.json")
	}
	add(env("XDG_RUNTIME_DIR"), "containers", "auth.json")
	if env("XDG_CONFIG_HOME") != "" {
		add(env("XDG_CONFIG_HOME"), "containers", "auth.json")
	} else {
		add(env("HOME"), ".config", "containers", "auth.json")
	}
	if all[0] == "" {
		all = all[1:]
	}
	return all
}

// fromFile is what a file has for a registry, authn.Anonymous for nothing.
func fromFile(path, registry string) (authn.Authenticator, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := config.LoadFromReader(f)
	if err != nil {
		return nil, err
	}
	keys := []string{registry}
	if registry == name.DefaultRegistry {
		keys = []string{authn.DefaultAuthKey, "docker.io"} // of docker login, and of podman login
	}
	for _, key := range keys {
		a, err := c.GetAuthConfig(key)
		if err != nil {
			return nil, err
		}
		a.ServerAddress = ""
		if a != (types.AuthConfig{}) {
			return authn.FromConfig(authn.AuthConfig{Username: a.Username, Password: a.Password, Auth: a.Auth, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}), nil
		}
	}
	return authn.Anonymous, nil
}
