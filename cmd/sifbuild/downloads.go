package main

import (
	"path/filepath"
	"slices"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/fetch"
	"fence/pkg/step"
)

// downloadFlags are about what RUN steps fetch.
func downloadFlags() []urfave.Flag {
	return []urfave.Flag{
		&urfave.StringFlag{Name: "pypi", Usage: "keep what pip fetches, too: its index is `URL`, unless a Dockerfile says otherwise", EnvVars: []string{"PIP_INDEX_URL"}},
		&urfave.StringFlag{Name: "npm", Usage: "keep what npm fetches, too: its registry is `URL`, unless a Dockerfile says otherwise", EnvVars: []string{"NPM_CONFIG_REGISTRY", "npm_config_registry"}},
		&urfave.BoolFlag{Name: "no-downloads", Usage: "keep no downloads: apt, pip and npm ask their servers themselves"},
	}
}

// downloads starts the proxy through which apt, pip and npm fetch, and gives
// the files that tell them.
func downloads(c *urfave.Context, cache string) (close func() error, config []step.File, err error) {
	if c.Bool("no-downloads") {
		return func() error { return nil }, nil, nil
	}
	p, err := fetch.New(fetch.Options{Dir: filepath.Join(cache, "downloads"), PyPI: c.String("pypi"), NPM: c.String("npm")})
	if err != nil {
		return nil, nil, cli.Usagef("--no-downloads builds without", "keeping downloads: %w", err)
	}
	// Not /etc/pip.conf, which a Dockerfile may write to. npm's is below its
	// prefix: of Debian, of NodeSource, of the official images.
	all := []step.File{
		{Path: "/etc/apt/apt.conf.d/zz-sifbuild-proxy", Data: p.AptConfig(), Mode: 0o644},
		{Path: "/etc/xdg/pip/pip.conf", Data: p.PipConfig(), Mode: 0o644, Make: true},
		{Path: "/etc/npmrc", Data: p.NpmConfig(), Mode: 0o644},
		{Path: "/usr/etc/npmrc", Data: p.NpmConfig(), Mode: 0o644, Make: true},
		{Path: "/usr/local/etc/npmrc", Data: p.NpmConfig(), Mode: 0o644, Make: true},
	}
	return p.Close, slices.DeleteFunc(all, func(f step.File) bool { return f.Data == nil }), nil
}
