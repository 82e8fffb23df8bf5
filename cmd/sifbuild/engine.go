package main

import (
	"context"
	"errors"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/build"
	"fence/pkg/cli"
)

// sandbox is the Apptainer that steps begin inside, "" for those that need none.
func sandbox(c *urfave.Context, apptainer string) (string, error) {
	switch name := c.String("engine"); name {
	case "native":
		return "", nil
	case "sandbox":
		if apptainer == "" {
			return "", cli.Usagef("load a module that has it, or leave the flag out", "--engine sandbox: apptainer is not on this node")
		}
		return apptainer, nil
	default:
		return "", cli.Usagef("--engine native, or --engine sandbox", "--engine: %q is not known", name)
	}
}

// preflight says why nothing can be built here and, if that is so, that the
// other engine could: it was tried. run is of Preflight.
func preflight(ctx context.Context, b *build.Builder, o build.Options, run bool) error {
	err := b.Preflight(ctx, run)
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*build.ScratchError)):
		return cli.Usagef("--scratch DIR on a disk of this node (ext4, xfs, btrfs)", "nothing can be built here: %w", err)
	case o.Sandbox != "":
		return cli.Usagef(otherNode, "nothing can be built here inside Apptainer: %w", err)
	case o.Apptainer != "" && ctx.Err() == nil:
		o.Sandbox = o.Apptainer
		if other, newErr := build.New(o); newErr == nil {
			defer other.Close()
			if other.Preflight(ctx, run) == nil {
				return cli.Usagef("inside Apptainer it can: --engine sandbox", "nothing can be built here: %w", err)
			}
		}
	}
	return cli.Usagef(otherNode, "nothing can be built here: %w", err)
}

const otherNode = "'fence check' says what this node allows; another node may allow more"
