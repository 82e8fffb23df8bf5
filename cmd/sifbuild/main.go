package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"fence/pkg/step"
)

func main() {
	step.Main()
	var s step.Spec
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		panic(err)
	}
	r, err := step.Do(context.Background(), s, os.Stderr)
	fmt.Printf("%+v %v\n", r, err)
}
