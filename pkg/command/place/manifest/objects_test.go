package manifest

// The types below are the objects of Compose and Kubernetes that the exporters may write. The tests decode manifests into them
// strictly, so that a misspelt or misplaced key fails.

// meta is the metadata of a Kubernetes object.
type meta struct {
	Name        string            `yaml:"name,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

// deployment keeps one pod of one instance running.
type deployment struct {
	APIVersion string         `yaml:"apiVersion"`
	Kind       string         `yaml:"kind"`
	Metadata   meta           `yaml:"metadata"`
	Spec       deploymentSpec `yaml:"spec"`
}

type deploymentSpec struct {
	Replicas int               `yaml:"replicas"`
	Strategy map[string]string `yaml:"strategy,flow"`
	Selector labelSelector     `yaml:"selector"`
	Template podTemplate       `yaml:"template"`
}

type labelSelector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

type podTemplate struct {
	Metadata meta    `yaml:"metadata"`
	Spec     podSpec `yaml:"spec"`
}

type podSpec struct {
	NodeSelector   map[string]string `yaml:"nodeSelector,omitempty"`
	Containers     []container       `yaml:"containers"`
	ResourceClaims []podClaim        `yaml:"resourceClaims,omitempty"`
}

type container struct {
	Name      string          `yaml:"name"`
	Image     string          `yaml:"image"`
	Command   []string        `yaml:"command,omitempty,flow"`
	Env       []envVar        `yaml:"env"`
	Ports     []containerPort `yaml:"ports"`
	Resources resources       `yaml:"resources"`
}

type envVar struct {
	Name  string `yaml:"name"`
	Value string `yaml:"value"`
}

type containerPort struct {
	Name          string `yaml:"name"`
	ContainerPort int    `yaml:"containerPort"`
}

type resources struct {
	Limits map[string]string `yaml:"limits,omitempty"`
	Claims []claimName       `yaml:"claims,omitempty"`
}

type claimName struct {
	Name string `yaml:"name"`
}

type podClaim struct {
	Name                      string `yaml:"name"`
	ResourceClaimTemplateName string `yaml:"resourceClaimTemplateName"`
}

// kubeService distributes a function's requests over its instances.
type kubeService struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   meta   `yaml:"metadata"`
	Spec       struct {
		Selector map[string]string `yaml:"selector"`
		Ports    []servicePort     `yaml:"ports"`
	} `yaml:"spec"`
}

type servicePort struct {
	Name       string `yaml:"name"`
	Port       int    `yaml:"port"`
	TargetPort string `yaml:"targetPort"`
}

// claimTemplate makes a resource claim for each pod (resource.k8s.io/v1).
type claimTemplate struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   meta   `yaml:"metadata"`
	Spec       struct {
		Spec struct {
			Devices deviceClaim `yaml:"devices"`
		} `yaml:"spec"`
	} `yaml:"spec"`
}

type deviceClaim struct {
	Requests    []deviceRequest `yaml:"requests"`
	Constraints []constraint    `yaml:"constraints,omitempty"`
}

type deviceRequest struct {
	Name    string  `yaml:"name"`
	Exactly exactly `yaml:"exactly"`
}

type exactly struct {
	DeviceClassName string     `yaml:"deviceClassName"`
	AllocationMode  string     `yaml:"allocationMode"`
	Count           int        `yaml:"count"`
	Selectors       []selector `yaml:"selectors,omitempty"`
	Capacity        capacity   `yaml:"capacity"`
}

type selector struct {
	CEL struct {
		Expression string `yaml:"expression"`
	} `yaml:"cel"`
}

type capacity struct {
	Requests map[string]string `yaml:"requests"`
}

type constraint struct {
	Requests          []string `yaml:"requests,flow"`
	DistinctAttribute string   `yaml:"distinctAttribute"`
}

// project is a Compose file or a stack file.
type project struct {
	Version  string             `yaml:"version,omitempty"` // for stacks; Docker before 2024 needs it
	Name     string             `yaml:"name,omitempty"`
	Services map[string]service `yaml:"services"`
	Networks map[string]netspec `yaml:"networks,omitempty"`
}

type service struct {
	Image       string             `yaml:"image"`
	User        string             `yaml:"user"`
	Entrypoint  []string           `yaml:"entrypoint,omitempty,flow"`
	Environment map[string]string  `yaml:"environment"`
	Ports       []string           `yaml:"ports,omitempty,flow"`
	IPC         string             `yaml:"ipc,omitempty"`
	ReadOnly    bool               `yaml:"read_only,omitempty"`
	CapDrop     []string           `yaml:"cap_drop,flow"`
	SecurityOpt []string           `yaml:"security_opt,omitempty,flow"`
	PidsLimit   int                `yaml:"pids_limit,omitempty"`
	Volumes     []mount            `yaml:"volumes"`
	Networks    map[string]network `yaml:"networks"`
	Restart     string             `yaml:"restart,omitempty"`
	Labels      map[string]string  `yaml:"labels"`
	Deploy      *deploy            `yaml:"deploy,omitempty"`
}

type network struct {
	Aliases []string `yaml:"aliases,flow"`
}

// netspec is a top-level network.
type netspec struct {
	Driver     string `yaml:"driver,omitempty"`
	Attachable bool   `yaml:"attachable,omitempty"`
	External   bool   `yaml:"external,omitempty"`
	Name       string `yaml:"name,omitempty"`
}

type deploy struct {
	Replicas      int                `yaml:"replicas,omitempty"`
	Placement     *constraints       `yaml:"placement,omitempty"`
	RestartPolicy *restartPolicy     `yaml:"restart_policy,omitempty"`
	Resources     containerResources `yaml:"resources,omitempty"`
}

type constraints struct {
	Constraints []string `yaml:"constraints,flow"`
}

type restartPolicy struct {
	Condition string `yaml:"condition"`
}

type containerResources struct {
	Limits       *hostLimits   `yaml:"limits,omitempty"`
	Reservations *reservations `yaml:"reservations,omitempty"`
}

type hostLimits struct {
	CPUs   string `yaml:"cpus,omitempty"`
	Memory string `yaml:"memory,omitempty"`
	Pids   int    `yaml:"pids,omitempty"`
}

type reservations struct {
	Devices          []reservation     `yaml:"devices,omitempty"`
	GenericResources []genericResource `yaml:"generic_resources,omitempty"`
}

type reservation struct {
	Driver       string   `yaml:"driver"`
	DeviceIDs    []string `yaml:"device_ids,flow"`
	Capabilities []string `yaml:"capabilities,flow"`
}

// mount is a folder or file of the machine. If it is missing, the container must not start,
// because Docker would create a folder owned by root in its place.
type mount struct {
	Type     string     `yaml:"type"`
	Source   string     `yaml:"source,omitempty"`
	Target   string     `yaml:"target"`
	ReadOnly bool       `yaml:"read_only,omitempty"`
	Bind     *bindMount `yaml:"bind,omitempty"`
}

type bindMount struct {
	CreateHostPath bool `yaml:"create_host_path"`
}

// genericResource is an amount of a resource that a swarm's node declares.
type genericResource struct {
	Discrete discreteResource `yaml:"discrete_resource_spec,flow"`
}

type discreteResource struct {
	Kind  string `yaml:"kind"`
	Value int    `yaml:"value"`
}
