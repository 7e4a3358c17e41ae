package manifest

// The types below are the Kubernetes objects that the exporters may write. The tests decode manifests into them
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
