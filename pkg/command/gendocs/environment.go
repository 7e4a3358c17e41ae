package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// variable is one of the environment that a program or a library of ours reads, or sets
// for what it starts.
type variable struct{ name, text string }

// environment is what gfaas-environment(7) lists, in groups. Settings, which stand for
// flags, are on the pages of the commands.
var environment = []struct {
	title, about string
	variables    []variable
}{
	{"FILES AND FOLDERS", "Read by all programs. A variable that is empty counts as one that is not set.", []variable{
		{"GFAAS_CONFIG", "The settings file, as --config. Without it gfaas/config.yaml in XDG_CONFIG_HOME, else in /etc."},
		{"GFAAS_RUN_DIR", "The run directory: the folder of the daemons' sockets, which must be the user's own. Each run directory has its own daemons. Default: gfaas in XDG_RUNTIME_DIR, if that is not /run/user/UID. Otherwise all programs of a user have the same default, with or without XDG_RUNTIME_DIR. The candidates are, in this order, /run/user/UID/gfaas (if the user has a session), /run/gfaas (for root and its owner) and /tmp/gfaas-UID: the first one in which a daemon is running or, if there is none, the first one."},
		{"GFAAS_STATE", "The file with the functions and instances. Its previous generation and the logs of instances are beside it. Without it gfaas/state.db in XDG_STATE_HOME."},
		{"GFAAS_LIB_DIR", "The folder of libgfaas.so, and of the simulated driver in its subfolder sim. Without it the folders lib and lib/gfaas beside that of the program, then those of the system."},
		{"XDG_CONFIG_HOME", "~/.config where it is not set."},
		{"XDG_RUNTIME_DIR", "See GFAAS_RUN_DIR."},
		{"XDG_STATE_HOME", "~/.local/state where it is not set."},
	}},
	{"SETTINGS", "", []variable{
		{"GFAAS_FLAG", "Every flag of every program has one: GFAAS_GPU_MEM is --gpu-mem. The flag wins. Variables of this prefix that nothing knows are told of."},
		{"CUDA_VISIBLE_DEVICES", "The GPUs that commands may use, like --gpu. If --gpu or a plan names a GPU that is not in the list, the command fails. Numbers count as nvidia-smi does. If it is empty, -1 or NoDevFiles, no GPU is visible. docs/sharing.md of the source has the rules. In a slice it lists the slice's GPUs: a program may spell them differently, and the list ends at the first GPU outside the slice. The simulated driver reads it as NVIDIA's does."},
		{"NO_COLOR", "Anything: no colours, as --no-color."},
		{"TERM", "dumb: gfaas top prints its table once and shows no screen."},
		{"DOCKER_HOST", "The Docker engine that instances with an image run on; DOCKER_CERT_PATH, DOCKER_TLS_VERIFY and DOCKER_API_VERSION go with it."},
		{"DOCKER_CONTEXT", "With the settings in DOCKER_CONFIG (without it ~/.docker), the engine of the docker command: gfaas run refuses docker run on another machine's engine."},
		{"DOCKER_CONFIG", "See DOCKER_CONTEXT."},
		{"CONTAINER_HOST", "The engine of podman, likewise."},
	}},
	{"THE SIMULATED GPU", "Read by the simulated driver, in whatever program has loaded it, and by the commands that have to know what there is.", []variable{
		{"GFAAS_SIM_GPU", "Its shape, as in sms=80,mem=16GiB,count=1,context=0,poison=0; docs/simulated-gpu.md of the source has the keys."},
		{"GFAAS_SIM_DIR", "The folder with its files. Without it /dev/shm/gfaas-sim-UID. Processes with another folder are on another GPU."},
		{"GFAAS_SIM_NOTED", "Anything: it has been said that the GPU is simulated, and is not said again. Set by gfaas's commands for what they start."},
	}},
	{"OF A FUNCTION", "For the env of a function's file, or the program under gfaas run.", []variable{
		{"GFAAS_NO_NVML", "1: what the program reads of NVML is as the driver has it, not the slice's, as gfaas run --no-nvml."},
		{"GFAAS_OVERSUBSCRIBE", "1: its memory may be larger than the GPU's, and waits on the host while it has no work. Set by gfaas run --oversubscribe."},
	}},
	{"IN A SLICE", "Set for what gfaas run, up and serve and gfaas-profile start, and read by the libraries that are loaded into it. A program may narrow CUDA_VISIBLE_DEVICES for its workers, and leaves the others as they are.", []variable{
		{"PORT", "Where a function is to listen. Of gfaas-kerneld function too."},
		{"GFAAS_FUNCTION", "The function's name."},
		{"GFAAS_INSTANCE", "The name of the instance or slice. Where it is set, GFAAS_SOCKET, GFAAS_OVERSUBSCRIBE and GFAAS_NO_NVML are no settings of gfaas's programs."},
		{"GFAAS_SECRET", "What the instance proves itself with to gfaas-tokend; the library writes over it in what others can see of the process."},
		{"GFAAS_SOCKET", "The socket of gfaas-tokend for clients."},
		{"GFAAS_DEVICES", "The slice's GPUs, as CUDA_VISIBLE_DEVICES was at first. The library compares the two by the GPUs' UUIDs."},
		{"GFAAS_MODEL_SOCKET", "The socket of gfaas-modeld, for functions with a model; without it model.sock in the run directory."},
		{"LD_PRELOAD", "libgfaas.so, in front of what was there."},
		{"LD_LIBRARY_PATH", "On the simulated GPU its folder, in front of what was there; for functions with a model that of libgfaas-model.so, behind. Read to find out whether there is an NVIDIA driver."},
		{"PYTHONPATH", "For functions with a model the folder of gfaas_model, behind what was there."},
		{"CUDA_DEVICE_ORDER", "PCI_BUS_ID: GPUs have the same numbers everywhere."},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "The share of the multiprocessors."},
		{"CUDA_MPS_PIPE_DIRECTORY", "The MPS daemon that the slice is under. gfaas-tokend and gfaas doctor read it too: the daemon of the machine's owner, without it that in /tmp/nvidia-mps."},
		{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "With a memory limit and MPS: MPS's own, a second fence."},
	}},
	{"FOR OTHER ENGINES", "Besides GFAAS_RUN_DIR, GFAAS_LIB_DIR, GFAAS_SIM_DIR, GFAAS_SIM_GPU, GFAAS_SECRET and CUDA_MPS_PIPE_DIRECTORY what the files of gfaas-place export compose and swarm want to know, and gfaas register writes.", []variable{
		{"GFAAS_USER", "UID:GID that containers run as, which is gfaas-tokend's. Without it the image's own."},
	}},
	{"DAEMONS", "", []variable{
		{"NOTIFY_SOCKET", "Where systemd is told that a daemon is ready, reloads or ends. What daemons start does not get it."},
	}},
}

var roff = strings.NewReplacer(`\`, `\e`, "-", `\-`, ".", `\&.`, "'", `\(aq`)

// writeEnvironment writes gfaas-environment(7).
func writeEnvironment(dir string) error {
	var page strings.Builder
	page.WriteString(`.TH "GFAAS\-ENVIRONMENT" "7" "Jan 2026" "gfaas" "gfaas"
.SH NAME
gfaas\-environment \- variables of the environment that gfaas reads and sets
`)
	for _, group := range environment {
		fmt.Fprintf(&page, ".SH %s\n", group.title)
		if group.about != "" {
			fmt.Fprintf(&page, "%s\n", roff.Replace(group.about))
		}
		for _, v := range group.variables {
			fmt.Fprintf(&page, ".TP\n\\fB%s\\fP\n%s\n", roff.Replace(v.name), roff.Replace(v.text))
		}
	}
	page.WriteString(".SH SEE ALSO\n\\fBgfaas(1)\\fP, \\fBgfaas\\-run(1)\\fP, \\fBgfaas\\-tokend(1)\\fP\n")
	return os.WriteFile(filepath.Join(dir, "gfaas-environment.7"), []byte(page.String()), 0o644)
}
