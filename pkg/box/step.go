package box

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/apptainer"
	"fence/pkg/session"
)

// Step has each box in a step of its own of the Slurm job that this process is
// in, so that Slurm keeps its memory: a control group where the site has them,
// else Slurm's accounting.
type Step struct {
	Srun      string // absolute
	Job, Node string // as Slurm knows them
}

// ThisStep is for the job that this process is in, on a node of that.
func ThisStep() (*Step, error) {
	s := &Step{Job: os.Getenv("SLURM_JOB_ID"), Node: os.Getenv("SLURMD_NODENAME")}
	switch {
	case s.Job == "":
		return nil, errors.New("this is no job of Slurm's")
	case s.Node == "": // a shell of salloc's, which may be on a login node
		return nil, fmt.Errorf("this is not on a node of the Slurm job %s", s.Job)
	}
	at, err := exec.LookPath("srun")
	if err == nil {
		s.Srun, err = filepath.Abs(at)
	}
	return s, err
}

// oomSaid is how Slurm says that a step was beyond its memory: by its accounting,
// or the kernel's word of the control group. "Exceeded job memory limit" goes to
// all steps of a job.
var oomSaid = regexp.MustCompile(`(?im)^.*(?:StepId=\S+ exceeded (?:virtual )?memory limit|oom.kill event|task 0: Out Of Memory).*$`)

// stepEnding waits, where a command was killed, for what may have been the first
// sign of the end of all: Slurm kills one process after the other.
func (b *Box) stepEnding(exit session.Exit) {
	if b.o.Step == nil || !killed(exit) {
		return
	}
	select {
	case <-b.life.Done():
	case <-b.done:
	case <-time.After(stepEnds):
	}
}

// killed says that a command was ended by SIGKILL, and not by rollout.
func killed(exit session.Exit) bool {
	return exit.Code == 128+int(unix.SIGKILL) && exit.Reason == ""
}

// stepEnds is more than Slurm takes, as far as it was seen, from its first signal
// to srun's end.
const stepEnds = 3 * time.Second

// step is how the container is started in its step: with all processors that the
// job has here. Of steps that overlap, each with --exact is given the first that
// fit, and so all of them the same. What Slurm and the caller have
// set for other steps in environ (binding, memory, GRES: srun(1), INPUT
// ENVIRONMENT VARIABLES) does not count.
func (o Options) step(environ []string) *apptainer.Step {
	s := o.Step
	if s == nil {
		return nil
	}
	mem := "0" // all that the job has
	if o.Limits.Memory > 0 {
		mem = fmt.Sprintf("%dM", (o.Limits.Memory+1<<20-1)>>20)
	}
	return &apptainer.Step{
		Argv: []string{s.Srun, "--jobid=" + s.Job, "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=" + s.Node,
			"--mem=" + mem, "--gres=none", "--mpi=none", "--input=none", "--export=NONE", "--job-name=trial", "--chdir=/"},
		Env: slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
			for _, p := range []string{"SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "SBATCH_"} {
				if strings.HasPrefix(kv, p) {
					return !strings.HasPrefix(kv, "SLURM_CONF") // where it finds its controller
				}
			}
			return false
		}),
		Dir: o.in("own"),
	}
}
