package wire

import (
	"fmt"
	"time"
)

// InstanceFault describes the first CUDA error of a process after which every call of the process
// fails.
type InstanceFault struct {
	Instance string    `json:"instance"`
	Function string    `json:"function"`
	GPU      string    `json:"gpu"`
	PID      int       `json:"pid"`
	Call     string    `json:"call"` // driver API function that returned the error
	Code     uint32    `json:"code"` // as in CUresult
	Name     string    `json:"name"` // of the code; empty if unknown
	Time     time.Time `json:"time"`

	// After is the instance that faulted first, if both are clients of the same MPS server: the
	// driver ends all clients of a server when one client faults.
	After string `json:"after,omitempty"`

	// Ended reports that the process is no longer connected.
	Ended bool `json:"ended,omitempty"`
}

// String returns a text like "CUDA error 700 (CUDA_ERROR_ILLEGAL_ADDRESS) from cuCtxSynchronize".
func (f InstanceFault) String() string {
	text := fmt.Sprintf("CUDA error %d", f.Code)
	if f.Name != "" {
		text += " (" + f.Name + ")"
	}
	text += " from " + f.Call
	if f.After != "" {
		text += ", after the fault of " + f.After
	}
	return text
}

// OfGPU reports whether the GPU itself may be the cause of the error, such as a memory error that it has contained.
func (f InstanceFault) OfGPU() bool { return f.Code == contained }

// Faults is the answer to GET /v1/faults.
type Faults struct {
	Faults []InstanceFault `json:"faults"`
}

// contained is the code of an error that the GPU has contained to one process.
const contained = 226

// faultNames maps the codes of errors that end a process's use of CUDA to their names.
var faultNames = map[uint32]string{
	contained: "CUDA_ERROR_CONTAINED",
	700:       "CUDA_ERROR_ILLEGAL_ADDRESS",
	702:       "CUDA_ERROR_LAUNCH_TIMEOUT",
	710:       "CUDA_ERROR_ASSERT",
	714:       "CUDA_ERROR_HARDWARE_STACK_ERROR",
	715:       "CUDA_ERROR_ILLEGAL_INSTRUCTION",
	716:       "CUDA_ERROR_MISALIGNED_ADDRESS",
	717:       "CUDA_ERROR_INVALID_ADDRESS_SPACE",
	718:       "CUDA_ERROR_INVALID_PC",
	719:       "CUDA_ERROR_LAUNCH_FAILED",
	810:       "CUDA_ERROR_MPS_CLIENT_TERMINATED",
	911:       "CUDA_ERROR_EXTERNAL_DEVICE",
}

// FaultName returns the name of an error that ends a process's use of CUDA, or "" for other codes.
func FaultName(code uint32) string { return faultNames[code] }
