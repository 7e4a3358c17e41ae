package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// variable is an environment variable that a program or library of gfaas reads, or sets for child processes.
type variable struct{ name, text string }

// environment is the content of gfaas-environment(7), in groups. It omits the settings, which correspond to flags
// and are documented with the commands.
var environment = []struct {
	title, about string
	variables    []variable
}{
	{"FILES AND FOLDERS", "All programs read these variables. A variable with an empty value counts as not set.", []variable{
		{"GFAAS_CONFIG", "The settings file, like --config. Default: gfaas/config.yaml in XDG_CONFIG_HOME or, if that file does not exist, /etc/gfaas/config.yaml."},
		{"GFAAS_RUN_DIR", "The run directory: the folder of the daemons' sockets, which must be owned by the user. Each run directory has its own daemons. Default: if XDG_RUNTIME_DIR is set to another folder than /run/user/UID, its subfolder gfaas. Otherwise, the default is one of three folders: /run/user/UID/gfaas (if the user has a session), /run/gfaas (if the user is root or owns this folder) or /tmp/gfaas-UID. It is the folder in which a daemon is running or, if no daemon is running, the first of them. So a program finds the daemons of the same user with and without a session."},
		{"GFAAS_STATE", "The state file, which has the functions and instances. Its folder also contains state.db.previous, the content before the last change, and the logs of instances. Default: gfaas/state.db in XDG_STATE_HOME."},
		{"GFAAS_LIB_DIR", "The folder of the preload library, libgfaas.so; its subfolder sim contains the simulated driver. Default: the folders lib and lib/gfaas next to the folder of the program, then those of the system."},
		{"XDG_CONFIG_HOME", "The folder of settings files. Default: ~/.config."},
		{"XDG_RUNTIME_DIR", "The folder of the user's session; see GFAAS_RUN_DIR."},
		{"XDG_STATE_HOME", "The folder of state files. Default: ~/.local/state."},
	}},
	{"SETTINGS", "", []variable{
		{"GFAAS_FLAG", "Every flag of every program can be set by a variable: --gpu-mem by GFAAS_GPU_MEM, for example. A flag on the command line has priority. A note names unknown variables that begin with GFAAS_."},
		{"CUDA_VISIBLE_DEVICES", "The GPUs that commands may use, like --gpu. If --gpu or a plan names a GPU that is not in the list, the command fails. A number is that of nvidia-smi. If the value is empty, -1 or NoDevFiles, no GPU is visible. The page docs/sharing.md of the source has the rules. For a program in a slice, gfaas sets the variable to the GPUs of the slice. The program may replace the list by another one of these GPUs; CUDA ignores the first GPU outside the slice and all entries after it. The simulated driver reads the variable like NVIDIA's driver."},
		{"NO_COLOR", "With any value, output has no colours, as with --no-color."},
		{"TERM", "With the value dumb, gfaas top prints its table once and shows no screen."},
		{"DOCKER_HOST", "The Docker Engine for instances with an image. DOCKER_CERT_PATH, DOCKER_TLS_VERIFY and DOCKER_API_VERSION are read too."},
		{"DOCKER_CONTEXT", "The context of the docker command, whose settings are in DOCKER_CONFIG (default ~/.docker). gfaas run refuses docker run if the engine of the context is on another machine."},
		{"DOCKER_CONFIG", "See DOCKER_CONTEXT."},
		{"CONTAINER_HOST", "The engine of podman. gfaas run refuses podman run if it is on another machine."},
	}},
	{"THE SIMULATED GPU", "These variables are read by the simulated driver, in every program that loads it, and by commands of gfaas that need the number and size of the GPUs.", []variable{
		{"GFAAS_SIM_GPU", "The shape of the simulated GPU, such as sms=80,mem=16GiB,count=1,context=0,poison=0. The page docs/simulated-gpu.md of the source describes the keys."},
		{"GFAAS_SIM_DIR", "The folder of the simulated GPU's files. Default: /dev/shm/gfaas-sim-UID. Processes with different folders are on different GPUs."},
		{"GFAAS_SIM_NOTED", "With any value, the note that the GPU is simulated is not printed again. gfaas's commands set this variable for the programs that they start."},
	}},
	{"FOR FUNCTIONS", "Set these variables in the env of a function's file, or for the program under gfaas run.", []variable{
		{"GFAAS_NO_NVML", "With the value 1, NVML returns the values of the whole GPU to the program, and not those of the slice, as with gfaas run --no-nvml."},
		{"GFAAS_OVERSUBSCRIBE", "With the value 1, the program's GPU memory is moved to the host while the program has no work, so that the limits of all slices may sum to more than the GPU's memory. gfaas run --oversubscribe sets this variable. With the value ordered, which gfaas serve --park=swap sets, the memory is moved only when the gateway decides so."},
	}},
	{"IN A SLICE", "gfaas run, up and serve and gfaas-profile set these variables for the programs that they start, and the libraries in these programs read them. A program may set CUDA_VISIBLE_DEVICES to a part of the list for its workers. It must not change the other variables.", []variable{
		{"PORT", "The port on which a function must listen. gfaas-kerneld function reads it too."},
		{"GFAAS_FUNCTION", "The name of the function."},
		{"GFAAS_INSTANCE", "The name of the instance or slice. If it is set, gfaas's programs do not read GFAAS_SOCKET, GFAAS_OVERSUBSCRIBE and GFAAS_NO_NVML as settings."},
		{"GFAAS_JOB", "The folder for the state of a job, for its supervisor only (docs/training.md of the source)."},
		{"GFAAS_SECRET", "The secret by which gfaas-tokend recognizes the instance. The library overwrites it where other processes could read it."},
		{"GFAAS_GRANT", "The signed grant with which an instance registers itself at gfaas-tokend --trust, in files of gfaas-place export --sign. The preload library sends it before it identifies the instance."},
		{"GFAAS_SOCKET", "The socket of gfaas-tokend to which the preload library connects."},
		{"GFAAS_DEVICES", "The GPUs of the slice, with which the preload library compares CUDA_VISIBLE_DEVICES (by the UUIDs of the GPUs)."},
		{"GFAAS_MODEL_SOCKET", "The socket of gfaas-modeld, for functions with a model. Default: model.sock in the run directory."},
		{"LD_PRELOAD", "libgfaas.so, before earlier entries."},
		{"LD_LIBRARY_PATH", "On the simulated GPU, the folder of the simulated driver, before earlier entries. For functions with a model, also the folder of libgfaas-model.so, after earlier entries. The programs of gfaas search the folders in this variable for an NVIDIA driver."},
		{"PYTHONPATH", "For functions with a model, the folder of gfaas_model, after earlier entries."},
		{"CUDA_DEVICE_ORDER", "PCI_BUS_ID, so that a GPU has the same number in all programs."},
		{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "The SM share."},
		{"CUDA_MPS_PIPE_DIRECTORY", "The folder of the MPS daemon of the slice. gfaas-tokend and gfaas doctor also read it, to find an MPS daemon of root or of the user (default /tmp/nvidia-mps)."},
		{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "If the slice has a memory limit and uses MPS: the limit, which MPS enforces in addition to the preload library."},
	}},
	{"FOR OTHER ENGINES", "The files of gfaas-place export compose and swarm refer to this variable and to GFAAS_RUN_DIR, GFAAS_LIB_DIR, GFAAS_SIM_DIR, GFAAS_SIM_GPU, GFAAS_SECRET and CUDA_MPS_PIPE_DIRECTORY. gfaas register writes their values. Files of --sign contain the secrets and do not refer to GFAAS_SECRET; GFAAS_LIB_DIR is /usr/lib/gfaas by default there.", []variable{
		{"GFAAS_USER", "The user and group of the containers, as UID:GID. gfaas register writes those of gfaas-tokend. Default: the user of the image."},
	}},
	{"DAEMONS", "", []variable{
		{"NOTIFY_SOCKET", "The socket of systemd, to which a daemon reports that it is ready, reloads its settings or ends. Daemons do not pass this variable on to the programs that they start."},
	}},
}

var roff = strings.NewReplacer(`\`, `\e`, "-", `\-`, ".", `\&.`, "'", `\(aq`)

// writeEnvironment writes gfaas-environment(7).
func writeEnvironment(dir string) error {
	var page strings.Builder
	page.WriteString(`.TH "GFAAS\-ENVIRONMENT" "7" "Jan 2026" "gfaas" "gfaas"
.SH NAME
gfaas\-environment \- environment variables that gfaas reads and sets
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
