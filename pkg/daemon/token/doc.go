// Package token is the live token daemon: it turns sockets, timers and
// processes into events for the schedulers of pkg/policy/token, one a GPU, and
// their actions into opened and closed gates.
//
// # Who is trusted with what
//
// The control socket is its user's and root's, by mode. Who may use it decides
// who runs on the GPU, and is trusted.
//
// A client proves with its hello that it is of an instance: the secret is
// compared in constant time and kept as a hash only. Clients are root's, the
// daemon's own user's, or of users that were named (ClientUIDs), by SO_PEERCRED.
// Root within a container is root here, unless the engine maps users; then it
// is another user, for whom ClientUIDs is. A container is given the folder of
// its instance's own socket and sees no other's.
//
// Beyond that a client is not trusted with anything of others. What it sends is
// bounded in size, in number and in rate; what it does not read ends its
// connection; what it does not say in time too. A report of more GPU time than
// passed since its grant counts as that time, and none at all from a client
// whose slot says that it launched as well. A page is of one instance's
// processes on one GPU, its size is sealed, and the daemon reads nothing from
// it but counters that it prints. A client that dies, however it does, frees
// what it held with its connection; one that is stopped while it drains, or does
// not give its lease back for half a minute, is no longer waited for. Descriptors
// that it passes the kernel refuses, or they end its connection and are closed
// where nobody waits for that. When one says that what it has in flight is nearly
// over, who waits for its SMs is let in at once; if it was wrong, nobody else is until
// it gives its lease back, and soon it is hardly ever believed.
//
// A client is trusted with its own instance's share, because nothing here could
// hold a program that is out to cheat: the preload library is a fence for honest
// programs, not a jail. Such a program can open the gate word in its page, which
// is mapped writable, as it can call the driver past the library; and what it
// reports below the truth it is not charged. Where programs are hostile the
// driver's own means have to hold them: MPS limits, MIG, or a GPU each.
package token
