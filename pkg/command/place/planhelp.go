package place

var planLong = `Plan the instances that serve a demand, and their places on GPUs. For each function,
the planner chooses the number of instances and their configurations from the profile,
so that the demand is served within the objective of the function.

Sharing. --model selects the rule by which instances share a GPU (not the GPU model,
which is --gpu-model). With rect, each instance has a rectangle of its GPU: a fixed
share of the SMs for one fixed part of each scheduling window. With tokens, an
instance has its share of the SMs at one or several times in each window, according to
the timetable in the plan.

GPUs. Without --inventory and --gpus, the number of GPUs is unlimited. Memory is
limited only with --inventory or --gpu-mem. A row of the profile applies only to GPUs
of its GPU model. If the profile has rows of several GPU models, and the inventory
does not name the models of all GPUs, --gpu-model is required; without it, the exit
status is 2. The plan contains the model of each GPU.

Objectives. The p95 latency objective of a function is its slo_ms in the demand; if that
is missing, its slo in the file of --functions, and otherwise the value of --slo.

Function file. The file of --functions also affects the plan as follows. An instance
of a function with gpus: N uses N GPUs of one node. Functions whose models have the
same name share the weights. The memory of an instance is the larger of the function's
gpu_mem, which is the limit that gfaas up sets, and the measured memory. Rows with a
batch above 1 count only for functions with batcher, or with inflight above 1, because
instances of other functions get one request at a time.

Weights. With --share-models, the instances of one tenant that use the same model on
the same GPU share one copy of its weights, which counts once. The size of the weights
is model_mem_mib of the profile or, if that is missing, the size of the model in the
function file. It is rounded up to a multiple of 2 MiB, the unit in which gfaas-modeld
allocates memory.

Unplaced demand. If a part of the demand cannot be placed, the plan lists it with the
reason, and contains the instances for the rest. The exit status is then 3.

Algorithms:

` + algorithmHelp() + `
Each plan contains a lower bound on the number of GPUs: no plan for this input needs
fewer, regardless of its configurations.

joint considers the SM time and the memory of all functions at once. It solves a linear
program whose variables are the possible sets of instances on one GPU (column
generation), rounds the solution, and then searches for a plan with fewer GPUs. If there
are too few GPUs, it maximizes the served requests/s. -v prints the reason for each
configuration. With --model tokens, it also makes a plan of rectangles, and uses that
plan if the timetable needs more GPUs or leaves more demand unplaced. For more than 250
functions on equal GPUs, it first chooses the configurations of each function, and then
packs the instances; the time is then proportional to the number of functions.

The search of joint ends when the plan reaches the lower bound, after a fixed amount of
work, or after 2 s. If you give --time-limit, it ends only at this limit or at the lower
bound. If the command makes several plans (--what-if, --current or --max-instances), the
search for each plan ends after the fixed amount of work, even with --time-limit. Unless
a time limit ends the search, the same input and seed give the same plan.

fast is the algorithm of the FaST-GShare paper. It chooses the configurations of each
function by heuristic scaling. The efficiency of a configuration is its throughput
divided by its share of the GPU (SM share × quota). The function gets as many instances
of the most efficient configuration as the demand keeps fully loaded. For the rest of
the demand, it gets one instance, of the configuration with the least throughput that
suffices. fast packs the instances with the maximal rectangles algorithm. It cannot place
instances that span several GPUs.

dilu is the algorithm of the Dilu paper. For each function, it uses one configuration,
the one with the best throughput for its SMs. Because Dilu divides SMs and not time, an
instance takes its SM share of a GPU, whatever its quota is. It places one
instance after the other, in the order in which the demand lists the functions. An
instance requests the SM share of the configuration. Its limit is that of the row or, if
the row states none, twice the request; for training (the kind of the function in
--functions), it is the smallest part of the GPU whose throughput is within 2% of that of
the largest part. The plan contains the limits, for gfaas-tokend --policy introspective.
On each GPU, the requests sum to at most --omega, and the limits to at most
--gamma. First, dilu considers the GPUs that host a friend of the instance's function:
another function that shares some GPU with it. Then, it considers the other GPUs in use,
and last the idle GPUs. Of the GPUs considered together, it takes the one with the least
remaining room, a sum of the remaining SMs and memory with the weights --alpha and
--beta.

fast and dilu make only rectangles; with --model tokens, the planner converts these to
a timetable. They do not search, so --seed and --time-limit have no effect on them.

--order arrival places the functions in the order in which the demand lists them. Each is
placed without knowledge of the following ones, as if functions were deployed one by one.
Without --algorithm, it implies fast.

Arrivals. --arrivals poisson assumes that requests arrive at random and do not wait
for earlier answers. The capacity of an instance is then its goodput, the largest rate
at which it answers 95% of the requests within the objective (docs/placement.md
describes the computation). --arrivals steady assumes that each request arrives when
another one has been answered, as in the papers on FaST-GShare and Dilu. The capacity
is then the whole throughput. By default, arrivals are random for functions with an
objective, and steady for others. --headroom keeps a fraction of each instance's
capacity free. LOAD in the table is the fraction of the time for which an instance works
under random arrivals.

Behind gfaas serve, an instance that accepts one call at a time (inflight: 1 in the
function file, the default) is idle for a short time between two calls. --hand-over is
this time. Plans for random arrivals take it into account; for steady arrivals, only
gfaas-sim plan does.

Processes. Each instance is a process with its own context on the GPU. MPS allows 48
processes on a GPU, or 60 with newer drivers. --max-instances limits the instances on
a GPU, in the plan and in its bound; without it, a note lists GPUs with more than 48
instances. If the memory in the profile does not include the contexts, give the memory
of one context with --context-mem (typically 100 to 500 MiB; NVML reports it).

Changes. --current changes a running plan as little as possible. Instances that are
still needed keep their ID, GPU and place. If the demand of a function is less, its
least efficient instances stop. If it is more, the planner makes two plans, and keeps
the one that serves more or, if equal, needs fewer GPUs. For the first plan, it starts
the configurations of heuristic scaling (see fast), on the GPUs where they leave the
least room. For the second plan, it uses --algorithm for the demand that does not fit on
the GPUs in use. --max-moves N allows N running instances to be stopped and started
elsewhere. An instance that cannot stay, because its GPU is missing or its configuration
misses the objective, stops in any case, and does not count as such a move. If the
running instances leave no room for demand that a new plan would serve, a note names this
demand. The table lists the instances that stop, start and stay; for other formats, use
gfaas-place diff.

What-if. --what-if 'rps=1,2 slo=0.5,1' lists factors for the rates and the objectives of
the demand; arrivals=poisson,steady can be added. The command plans for each combination,
and prints a row with the number of GPUs for each, as CSV unless you give -o. The column
unplaced is the number of functions with unplaced demand; -o json also has their names
(unplaced_functions). The exit status is 0 even if a part of a demand is unplaced.`

const planExample = `  # Plan for two functions and print tables
  gfaas-place plan --profile profile.csv --demand resnet=250,bert=40
  # Write a plan for gfaas up
  gfaas-place plan --profile profile.csv --demand demand.csv --gpu-mem 16GiB -o json > plan.json
  # Draw the plan, or write an HTML page
  gfaas-place plan --profile profile.csv --demand demand.csv --inventory gpus.csv -o svg --out-file plan.svg
  gfaas-place plan --profile profile.csv --demand demand.csv --inventory gpus.csv -o html --out-file plan.html
  # Change a running plan for a higher demand
  gfaas-place plan --profile profile.csv --demand resnet=300 --current plan.json --max-moves 2
  # Find out what more demand or tighter objectives would need
  gfaas-place plan --profile profile.csv --demand demand.csv --gpus 8 --what-if 'rps=1,1.5,2 slo=0.8,1'`
