package main

import (
	urfave "github.com/urfave/cli/v2"
)

func checkCmd() *urfave.Command { return &urfave.Command{Name: "check"} }
