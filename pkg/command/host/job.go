package host

import (
	"os"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/job"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/instance"
)

// superviseJob is the internal argument that makes gfaas the supervisor of a job.
const superviseJob = "__supervise-job"

// SuperviseJob runs the supervisor of a job if the program's arguments request it. The arguments are
// those of process.Config.Supervisor.
func SuperviseJob(args []string) (status int, handled bool) {
	if len(args) < 5 || args[0] != superviseJob {
		return 0, false
	}
	restarts, err := strconv.Atoi(args[2])
	deadline, fault := strconv.ParseInt(args[3], 10, 64)
	if err != nil || fault != nil {
		return cli.ExitUsage, true
	}
	return job.Supervise(instance.Job{MaxRestarts: restarts, Deadline: time.Duration(deadline)}, os.Getenv(job.Variable), args[1], args[4:], os.Stderr), true
}
