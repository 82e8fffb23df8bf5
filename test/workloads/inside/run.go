package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"fence/test/workloads"
)

// atOnce is how many workloads run at the same time.
const atOnce = 3

// run does the named workloads one way.
func run(arm string, names []string, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(workloads.Dir, 0o755); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(workloads.Dir, "programs"), workloads.Programs()); err != nil {
		return err
	}
	var list []workloads.Workload
	for _, name := range names {
		w, ok := workloads.Find(name)
		if !ok {
			return fmt.Errorf("no workload %q", name)
		}
		list = append(list, w)
	}
	var mu sync.Mutex
	var failed error
	enc := json.NewEncoder(out)
	next := make(chan workloads.Workload)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for w := range next {
				result, err := one(w, arm, w.Prefix(arm, self))
				mu.Lock()
				failed = errors.Join(failed, err, enc.Encode(result))
				mu.Unlock()
			}
		})
	}
	for _, w := range list {
		next <- w
	}
	close(next)
	wg.Wait()
	// The bare form refuses to start where there is one: another workload may meet it, or may not.
	if _, err := os.Lstat("/run/user"); err == nil {
		failed = errors.Join(failed, errors.New("a workload made /run/user"))
	}
	return failed
}

func one(w workloads.Workload, arm string, prefix []string) (workloads.Result, error) {
	r := workloads.Result{Name: w.Name, Arm: arm}
	dir := filepath.Join(workloads.Dir, w.Name)
	if err := os.MkdirAll(filepath.Join(dir, ".tmp"), 0o755); err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	argv := append(prefix, "/bin/bash", "-c", workloads.Prelude+w.Run)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LANG=C.UTF-8", "TERM=xterm", "PWD="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second // for what a workload left running with its output
	start := time.Now()
	err := cmd.Run()
	r.Seconds = time.Since(start).Seconds()
	r.Stdout, r.Stderr = stdout.Bytes(), stderr.Bytes()
	if cmd.ProcessState != nil {
		r.CPU = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		r.Broken = "took longer than five minutes"
	case errors.Is(err, exec.ErrWaitDelay):
		r.Broken = "left a process running that holds its output"
	case errors.As(err, &exit):
		r.Status = exit.ExitCode()
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			r.Status = 128 + int(ws.Signal())
		}
	case err != nil:
		r.Broken = err.Error()
	}
	return r, nil
}
