package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/registry"
)

// registryFlags are about where images of registries come from.
func registryFlags() []urfave.Flag {
	return []urfave.Flag{
		&urfave.StringSliceFlag{Name: "mirror", Usage: "`REGISTRY=HOST/PREFIX`: ask there first; several are asked in order, the registry last; or a list with commas in the variable SIF_MIRROR", EnvVars: []string{"SIF_MIRROR"}},
		&urfave.StringSliceFlag{Name: "registry-limit", Usage: "`REGISTRY=N/TIME`: at most N pulls in TIME, such as docker.io=80/6h"},
		&urfave.StringFlag{Name: "lock", Usage: "what tags lead to is kept in `FILE` (default: lock.json in the cache), and not asked again"},
		&urfave.BoolFlag{Name: "update-lock", Usage: "ask again what the tags in use lead to"},
		&urfave.BoolFlag{Name: "offline", Usage: "ask no registry: every base is local, or was fetched before"},
	}
}

// registries asks the registries as the flags say, and keeps images in dir.
func registries(c *urfave.Context, dir string) (*registry.Client, error) {
	o := registry.Options{Dir: dir, Lock: c.String("lock"), LockMust: c.String("lock") != "", UpdateLock: c.Bool("update-lock"), Offline: c.Bool("offline")}
	if o.Lock == "" && dir != "" {
		o.Lock = filepath.Join(filepath.Dir(dir), "lock.json")
	}
	if o.Offline && o.UpdateLock {
		return nil, cli.Usagef("--update-lock asks registries", "--update-lock and --offline exclude each other")
	}
	for _, s := range c.StringSlice("mirror") {
		m, err := registry.ParseMirror(s)
		if err != nil {
			return nil, cli.Usagef("--mirror docker.io=mirror.example.org/hub", "--mirror: %w", err)
		}
		o.Mirrors = append(o.Mirrors, m)
	}
	for _, s := range c.StringSlice("registry-limit") {
		l, err := registry.ParseLimit(s)
		if err != nil {
			return nil, cli.Usagef("--registry-limit docker.io=80/6h", "--registry-limit: %w", err)
		}
		o.Limits = append(o.Limits, l)
	}
	client, err := registry.New(o)
	if err != nil {
		return nil, cli.Usagef("", "%w", err)
	}
	return client, nil
}

// sayRegistries says what a person may want to know of the registries: that tags
// were not asked about, and what is left of limits.
func sayRegistries(w io.Writer, c *registry.Client) {
	if n, oldest := c.Pinned(); n > 0 {
		fmt.Fprintf(w, "sifbuild: %s of base images as in the lock file, since %s at the earliest; --update-lock asks anew\n", plural(n, "tag"), oldest.Local().Format("2006-01-02"))
	}
	for _, s := range c.States() {
		if limit, _, ok := strings.Cut(s.Limit, ";"); ok && s.Remaining != "" {
			left, _, _ := strings.Cut(s.Remaining, ";")
			fmt.Fprintf(w, "sifbuild: %s: %s of %s pulls left\n", s.Registry, cli.Printable(left), cli.Printable(limit))
		}
	}
}
