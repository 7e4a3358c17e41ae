/* Generated from pkg/wire by go generate: do not edit.
 * The client protocol of gfaas-tokend and the instance page. Little-endian;
 * one message is one SEQPACKET record. */
#ifndef GF_WIRE_H
#define GF_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define GF_MAGIC 0x31544647u
#define GF_VERSION 2
#define GF_MAX_MESSAGE 512
#define GF_MAX_GRANT 4096
#define GF_MSG_HELLO 1
#define GF_MSG_WELCOME 2
#define GF_MSG_REFUSED 3
#define GF_MSG_REQUEST 4
#define GF_MSG_LEASE_END 5
#define GF_MSG_RETURN 6
#define GF_MSG_UNMANAGED 7
#define GF_MSG_NOTED 8
#define GF_MSG_ENDING 9
#define GF_MSG_FAULT 10
#define GF_MSG_MOVE 11
#define GF_MSG_MOVED 12
#define GF_MSG_GRANT 13
#define GF_UNMANAGED_RESTORED 0
#define GF_UNMANAGED_STATIC 1
#define GF_UNMANAGED_LIBC 2
#define GF_UNMANAGED_SETUID 3
#define GF_UNMANAGED_CAPABLE 4
#define GF_UNMANAGED_MACHINE 5
#define GF_UNMANAGED_KINDS 6
#define GF_RETURN_WANTS_MORE 1
#define GF_NAME_SIZE 64
#define GF_REASON_SIZE 128
#define GF_HELLO_MANY_SLOTS 1
#define GF_HELLO_MOVES 2
#define GF_REFUSED_FULL 1
#define GF_PAGE_SLOTS 64
#define GF_PAGE_SLOTS_MOST 1024
#define GF_PAGE_SLOTS_OFFSET 4096
#define GF_PAGE_SLOT_SIZE 128
#define GF_PAGE_SIZE 12288
#define GF_PAGE_SIZE_MOST 135168
#define GF_PAGE_METERED 1
#define GF_PAGE_ENDINGS 2
#define GF_PAGE_FAULTS 4
#define GF_PAGE_PIDS 8

/* start of every message */
struct gf_header {
	uint32_t magic;
	uint16_t type;
	uint16_t version;
	uint32_t size;
	uint32_t flags;
};
_Static_assert(sizeof(struct gf_header) == 16, "size of gf_header");
_Static_assert(offsetof(struct gf_header, magic) == 0, "layout of gf_header");
_Static_assert(offsetof(struct gf_header, type) == 4, "layout of gf_header");
_Static_assert(offsetof(struct gf_header, version) == 6, "layout of gf_header");
_Static_assert(offsetof(struct gf_header, size) == 8, "layout of gf_header");
_Static_assert(offsetof(struct gf_header, flags) == 12, "layout of gf_header");

/* process to daemon: the first message */
struct gf_hello {
	struct gf_header h;
	uint32_t pid;
	uint32_t device;
	uint64_t mem_used;
	char instance[64];
	char secret[64];
};
_Static_assert(sizeof(struct gf_hello) == 160, "size of gf_hello");
_Static_assert(offsetof(struct gf_hello, pid) == 16, "layout of gf_hello");
_Static_assert(offsetof(struct gf_hello, device) == 20, "layout of gf_hello");
_Static_assert(offsetof(struct gf_hello, mem_used) == 24, "layout of gf_hello");
_Static_assert(offsetof(struct gf_hello, instance) == 32, "layout of gf_hello");
_Static_assert(offsetof(struct gf_hello, secret) == 96, "layout of gf_hello");

/* daemon to process: accepted, with the page's descriptor in SCM_RIGHTS */
struct gf_welcome {
	struct gf_header h;
	uint32_t slot;
	uint32_t nslots;
	uint64_t mem_limit;
	uint64_t window_ns;
};
_Static_assert(sizeof(struct gf_welcome) == 40, "size of gf_welcome");
_Static_assert(offsetof(struct gf_welcome, slot) == 16, "layout of gf_welcome");
_Static_assert(offsetof(struct gf_welcome, nslots) == 20, "layout of gf_welcome");
_Static_assert(offsetof(struct gf_welcome, mem_limit) == 24, "layout of gf_welcome");
_Static_assert(offsetof(struct gf_welcome, window_ns) == 32, "layout of gf_welcome");

/* daemon to process: not accepted; the connection ends */
struct gf_refused {
	struct gf_header h;
	char reason[128];
};
_Static_assert(sizeof(struct gf_refused) == 144, "size of gf_refused");
_Static_assert(offsetof(struct gf_refused, reason) == 16, "layout of gf_refused");

/* process to daemon: a thread waits at the closed gate */
struct gf_request {
	struct gf_header h;
};
_Static_assert(sizeof(struct gf_request) == 16, "size of gf_request");

/* daemon to process: the gate is closed; drain and return the lease */
struct gf_lease_end {
	struct gf_header h;
	uint32_t lease;
	uint32_t reserved;
};
_Static_assert(sizeof(struct gf_lease_end) == 24, "size of gf_lease_end");
_Static_assert(offsetof(struct gf_lease_end, lease) == 16, "layout of gf_lease_end");
_Static_assert(offsetof(struct gf_lease_end, reserved) == 20, "layout of gf_lease_end");

/* process to daemon: the lease has no work in flight */
struct gf_return {
	struct gf_header h;
	uint32_t lease;
	uint32_t flags;
	uint64_t used_ns;
};
_Static_assert(sizeof(struct gf_return) == 32, "size of gf_return");
_Static_assert(offsetof(struct gf_return, lease) == 16, "layout of gf_return");
_Static_assert(offsetof(struct gf_return, flags) == 20, "layout of gf_return");
_Static_assert(offsetof(struct gf_return, used_ns) == 24, "layout of gf_return");

/* process to daemon, instead of a hello: it starts a program that leaves the slice, or would have */
struct gf_unmanaged {
	struct gf_header h;
	uint32_t kind;
	uint32_t reserved;
	char instance[64];
	char secret[64];
	char program[128];
};
_Static_assert(sizeof(struct gf_unmanaged) == 280, "size of gf_unmanaged");
_Static_assert(offsetof(struct gf_unmanaged, kind) == 16, "layout of gf_unmanaged");
_Static_assert(offsetof(struct gf_unmanaged, reserved) == 20, "layout of gf_unmanaged");
_Static_assert(offsetof(struct gf_unmanaged, instance) == 24, "layout of gf_unmanaged");
_Static_assert(offsetof(struct gf_unmanaged, secret) == 88, "layout of gf_unmanaged");
_Static_assert(offsetof(struct gf_unmanaged, program) == 152, "layout of gf_unmanaged");

/* daemon to process: answers unmanaged; the connection ends */
struct gf_noted {
	struct gf_header h;
	uint32_t first;
	uint32_t reserved;
};
_Static_assert(sizeof(struct gf_noted) == 24, "size of gf_noted");
_Static_assert(offsetof(struct gf_noted, first) == 16, "layout of gf_noted");
_Static_assert(offsetof(struct gf_noted, reserved) == 20, "layout of gf_noted");

/* process to daemon: when the lease's work in flight will finish */
struct gf_ending {
	struct gf_header h;
	uint32_t lease;
	uint32_t reserved;
	uint64_t left_ns;
};
_Static_assert(sizeof(struct gf_ending) == 32, "size of gf_ending");
_Static_assert(offsetof(struct gf_ending, lease) == 16, "layout of gf_ending");
_Static_assert(offsetof(struct gf_ending, reserved) == 20, "layout of gf_ending");
_Static_assert(offsetof(struct gf_ending, left_ns) == 24, "layout of gf_ending");

/* process to daemon: it can no longer use CUDA */
struct gf_fault {
	struct gf_header h;
	uint32_t code;
	uint32_t reserved;
	char call[64];
};
_Static_assert(sizeof(struct gf_fault) == 88, "size of gf_fault");
_Static_assert(offsetof(struct gf_fault, code) == 16, "layout of gf_fault");
_Static_assert(offsetof(struct gf_fault, reserved) == 20, "layout of gf_fault");
_Static_assert(offsetof(struct gf_fault, call) == 24, "layout of gf_fault");

/* daemon to process: move the managed memory */
struct gf_move {
	struct gf_header h;
	uint32_t number;
	uint32_t to_host;
};
_Static_assert(sizeof(struct gf_move) == 24, "size of gf_move");
_Static_assert(offsetof(struct gf_move, number) == 16, "layout of gf_move");
_Static_assert(offsetof(struct gf_move, to_host) == 20, "layout of gf_move");

/* process to daemon: the move has ended */
struct gf_moved {
	struct gf_header h;
	uint32_t number;
	uint32_t complete;
};
_Static_assert(sizeof(struct gf_moved) == 24, "size of gf_moved");
_Static_assert(offsetof(struct gf_moved, number) == 16, "layout of gf_moved");
_Static_assert(offsetof(struct gf_moved, complete) == 20, "layout of gf_moved");

/* one process's part of the instance page */
struct gf_slot {
	uint32_t gate;
	uint32_t refill;
	uint64_t budget;
	uint64_t turn_ns;
	uint64_t mem_foreign;
	uint64_t lead_ns;
	uint32_t pid;
	uint32_t reserved;
	uint64_t hold_ns;
	uint8_t pad[8];
	uint64_t mem_used;
	uint64_t launches;
	uint64_t blocked_ns;
	uint64_t blocks;
	uint64_t mem_parked;
	uint64_t mem_imported;
	uint64_t mem_refused;
	uint64_t unleased_ns;
};
_Static_assert(sizeof(struct gf_slot) == 128, "size of gf_slot");
_Static_assert(offsetof(struct gf_slot, gate) == 0, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, refill) == 4, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, budget) == 8, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, turn_ns) == 16, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, mem_foreign) == 24, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, lead_ns) == 32, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, pid) == 40, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, reserved) == 44, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, hold_ns) == 48, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, pad) == 56, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, mem_used) == 64, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, launches) == 72, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, blocked_ns) == 80, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, blocks) == 88, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, mem_parked) == 96, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, mem_imported) == 104, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, mem_refused) == 112, "layout of gf_slot");
_Static_assert(offsetof(struct gf_slot, unleased_ns) == 120, "layout of gf_slot");

/* the instance page */
struct gf_page {
	uint32_t magic;
	uint32_t nslots;
	uint64_t mem_limit;
	uint32_t flags;
	uint32_t renewals;
	uint64_t lease_ns;
	uint32_t used;
	uint32_t reserved;
	uint8_t pad[GF_PAGE_SLOTS_OFFSET - 40];
	struct gf_slot slots[]; /* GF_PAGE_SLOTS, or GF_PAGE_SLOTS_MOST */
};
_Static_assert(offsetof(struct gf_page, slots) == GF_PAGE_SLOTS_OFFSET, "layout of gf_page");
_Static_assert(sizeof(struct gf_page) == GF_PAGE_SLOTS_OFFSET, "size of gf_page");

#endif
