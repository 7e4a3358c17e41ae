package preload

// Where a container has our files.
const (
	InsideHook   = "/opt/gfaas/" + HookFile
	InsideSim    = "/opt/gfaas/sim"
	InsideSocket = "/opt/gfaas/run"       // the folder of the instance's socket, token.sock
	InsideModels = "/opt/gfaas/model"     // the folder of the model daemon's socket
	InsideClient = "/opt/gfaas/modellib/" // the model client library, and in python its module
)
