package gfaas

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	runtimeJob   = "job"     // what ps prints as the runtime of a job
	stateRunning = "running" // of a job
)

// runningJobs returns the jobs whose owner lives, or of which the token daemon shows
// processes.
func runningJobs(runDir string, clients []wire.ClientStatus) ([]tokend.Owned, error) {
	jobs, err := tokend.Jobs(runDir)
	return slices.DeleteFunc(jobs, func(j tokend.Owned) bool {
		return !ownerLives(j) && !slices.ContainsFunc(clients, func(c wire.ClientStatus) bool { return c.Instance == j.Instance })
	}), err
}

func ownerLives(j tokend.Owned) bool {
	lives, err := procfs.Lives(j.OwnerPID, j.OwnerStart)
	return lives || err != nil
}

// jobEntry returns the entry of a job.
func jobEntry(j tokend.Owned, faults map[string]wire.InstanceFault) psEntry {
	e := entry(launch.RegisteredRecord(j.Registration), stateRunning)
	e.Runtime, e.PID = runtimeJob, j.OwnerPID
	if f, ok := faults[j.Instance]; ok && !f.Ended {
		e.State, e.Fault = stateFaulted, f.String()
	}
	if now := procfs.Now(); j.OwnerStart > 0 && j.OwnerStart <= now {
		const tick = 10 * time.Millisecond
		e.Started = time.Now().Add(-time.Duration(now-j.OwnerStart) * tick).Format(time.RFC3339)
	}
	return e
}

// explainJob replaces the error about a missing instance if the name is a job's, which
// only its owner ends.
func explainJob(runDir string, err error) error {
	var missing *ports.NotFoundError
	if !errors.As(err, &missing) {
		return err
	}
	jobs, _ := tokend.Jobs(runDir) // the error stays if they cannot be read
	for _, j := range jobs {
		if slices.Contains(missing.Names, j.Instance) && ownerLives(j) {
			return cli.Fail(cli.ExitFailure, fmt.Sprintf("'kill %d' ends it", j.OwnerPID),
				fmt.Errorf("cannot stop %s: it is a job of process %d (%s), not an instance of a function", j.Instance, j.OwnerPID, procfs.Program(j.OwnerPID)))
		}
	}
	return err
}
