// Package token implements the token daemon. For each GPU it runs a scheduler of
// pkg/policy/token. It converts messages, timers and the ends of processes into events for the
// schedulers, and performs their actions by opening and closing gates. A gate is a word in memory
// that the daemon shares with a process: while it is closed, the preload library holds back the
// process's launches. pkg/command/tokend runs the daemon.
//
// # Layers
//
// A file refers to names of its own layer and of those below it. From the bottom:
//
//	shared parts              core.go, config.go
//	mechanisms                page.go (shared memory with the gates), conn.go, socket.go, lineage.go
//	                          (ancestors of processes, killing processes), census.go (all processes)
//	scheduling                device.go (one GPU and its clients), stopped.go, schedulers.go
//	                          (all GPUs, their clock and timer)
//	registry                  allocation.go (sessions of processes, their slots in a page, memory of
//	                          stored models), bypass.go, instance.go, record.go (files), registry.go,
//	                          grants.go (registrations by grants)
//	watching and parking      unmanaged.go (processes without the preload library), foreign.go
//	                          (occupancy: memory that the library does not see), park.go
//	sessions                  poller.go, sessions.go (hello, messages)
//	interface                 control.go, status.go, daemon.go
//
// The registry refers to the schedulers; parking, the census and the occupancy of GPUs refer to
// the registry; the sessions refer to the registry and to parking. The registry calls the sessions
// only to accept connections at an instance's socket. One lock, in core, guards the state of all
// parts.
//
// # Trust
//
// The control socket can be used only by the daemon's user and root, because of its mode. They
// decide which programs run on the GPU, and are trusted.
//
// A client proves with its hello that it belongs to an instance: the daemon compares the secret in
// constant time and stores only its hash. According to SO_PEERCRED, clients are processes of root,
// of the daemon's own user, or of the users in ClientUIDs. Root in a container is root here, unless
// the engine maps users; then it is another user, which ClientUIDs can name. A container receives
// the folder of its own instance's socket and does not see other sockets.
//
// Instances with grants (Config.Grants) share one socket, which processes of all users may use. Such a process proves
// with a grant that a trusted signer allows the slice, and with the secret, whose hash is in the grant, that the slice is
// its own. At this socket, no process can reach an instance that was registered at the control socket.
//
// Beyond that, a client cannot harm other instances:
//
//   - The size, number and rate of its messages are bounded. The daemon ends the connection of a
//     client that does not read a message or does not send its hello in time.
//   - A client reports its GPU time when it returns a lease. If the report exceeds the time since the
//     grant, or is 0 although the client's slot in the page counts new launches, the daemon uses the
//     time since the grant instead.
//   - A page belongs to one instance's processes on one GPU. Its size is sealed, so that a process
//     cannot truncate it. The daemon reads only counters from it, which it prints.
//   - When a client dies, the end of its connection frees its lease and memory. Other clients do not
//     wait for a client that is stopped while it drains, nor for a client that keeps its lease for more
//     than half a minute after a revocation.
//   - If a client passes file descriptors, the daemon ends the connection and closes the descriptors in
//     a separate goroutine, so that other clients do not wait.
//   - If a client announces that its work in flight ends soon, the scheduler grants its SMs to the
//     next client at once. If the announcement is wrong, the scheduler grants them to no further
//     client until the first client returns its lease, and soon ignores that client's announcements.
//
// A client is trusted with its own instance's share, because the daemon cannot restrain a program
// that cheats: the preload library is a fence for honest programs, not a jail. A hostile program can
// open the gate word in its page, which is mapped writable; it can call the driver without the
// library; and it is not charged for GPU time that it does not report. Hostile programs need the
// driver's own means: MPS limits, MIG, or separate GPUs.
package token
