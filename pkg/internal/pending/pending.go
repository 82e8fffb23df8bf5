//go:build pending

// Package pending keeps modules in go.mod that packages under way will import.
package pending

import (
	_ "github.com/apptainer/sif/v2/pkg/sif"
	_ "github.com/google/go-containerregistry/pkg/registry"
	_ "github.com/google/go-containerregistry/pkg/v1/layout"
	_ "github.com/google/go-containerregistry/pkg/v1/remote"
	_ "github.com/google/go-containerregistry/pkg/v1/tarball"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/moby/buildkit/frontend/dockerfile/instructions"
	_ "github.com/moby/buildkit/frontend/dockerfile/parser"
	_ "github.com/moby/buildkit/frontend/dockerfile/shell"
	_ "github.com/moby/patternmatcher/ignorefile"
	_ "github.com/sylabs/squashfs"
	_ "github.com/ulikunitz/xz"
	_ "golang.org/x/sync/errgroup"
)
