/* terminate.c: ends waits for the GPU when the program has been asked to end (SIGTERM, SIGINT).
 *
 * A program that handles SIGTERM or SIGINT usually sets a flag in the handler, and ends when
 * its current call into the driver returns. If that call waits for a gate which stays closed,
 * because the daemon is gone or refuses the process, it would never return. So once a handler
 * of these signals has run, or runs, in a thread that waits, no call of the process waits for
 * more than a second: then it fails, and sends no work to the GPU. This ends when a gate opens.
 *
 * The program's handlers stay installed. To notice that one has run:
 *
 *   - While a thread waits, it blocks both signals, except in gf_sleep, which unblocks them,
 *     sleeps and blocks them again. All other signals that the program handles, except faults,
 *     are blocked in gf_sleep and handled after each sleep.
 *   - gf_sleep fills the stack below its own frame with a pattern. If a handler runs between
 *     the two changes of the mask, the kernel writes the handler's frame over the pattern. For
 *     handlers that have their own stack (SA_ONSTACK), the top of that is filled as well.
 *
 * So every run of a handler in the waiting thread is noticed, whenever the signal arrives.
 * The result of the system call is not enough: a futex that times out while a signal is
 * pending does not return EINTR, and on a busy host this happens often. A signal that was
 * handled before the wait is not noticed. */
#include "terminate.h"

#include "clock.h"
#include "device.h"
#include "say.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SLEEP_MS /* check/noticed.c includes this file and sets shorter times */
#define SLEEP_MS 100  /* longest sleep before the gate is checked again */
#define DELAY_MS 20   /* longest sleep if the program handles other signals, which gf_sleep delays */
#endif
#define YIELD_NS 1000000000u /* how long a wait lasts after the program was asked to end */
#define FULL_NS 10000000000u /* how long a process waits for a free slot before its work fails */
#define SIGNALS 64    /* signals of the kernel, including the C library's own */

static uint64_t signal_at;            /* when a handler was first noticed (gf_now_ns); 0: none since a gate last opened */
static uint64_t full_since[GF_DEVICES + 1]; /* by device: when the daemon first had no slot for the process; 0: it has one */
static __thread bool asleep GF_TLS;  /* the thread is in gf_sleep: code that runs in it is a handler of SIGTERM or SIGINT */
static __thread uint64_t blocked GF_TLS; /* signals that are blocked only because the thread waits */

static const uint64_t end_signals = 1u << (SIGTERM - 1) | 1u << (SIGINT - 1);

static uint64_t bit(int signal) { return (uint64_t)1 << (signal - 1); }

static void set_mask(int how, uint64_t mask, uint64_t *before) { syscall(SYS_rt_sigprocmask, how, &mask, before, sizeof mask); }

/* Returns those of the signals that have handlers, and sets *on_stack if one of the handlers
 * runs on its own stack. It asks the kernel, since the C library hides its own signals. */
static uint64_t handled(uint64_t signals, bool *on_stack)
{
    uint64_t set = 0;
    for (int s = 1; s <= SIGNALS; s++) {
        struct { uintptr_t handler; unsigned long flags, rest[15]; } action;
        if (signals & bit(s) && syscall(SYS_rt_sigaction, s, NULL, &action, sizeof set) == 0 &&
            action.handler > 1) { /* neither SIG_DFL (0) nor SIG_IGN (1) */
            set |= bit(s);
            *on_stack |= action.flags & SA_ONSTACK;
        }
    }
    return set;
}

/* long gf_sleep(uint32_t *word, uint32_t expected, const struct timespec *most,
 *               const uint64_t *asleep, const uint64_t *awake)
 *
 * Sleeps until the word differs from expected, for at most the time most, with the signal mask
 * asleep, and returns with the mask awake. Returns 1 if a handler has run meanwhile, else
 * 0. The handler's frame is below the red zone, and the kernel always writes its highest bytes:
 * the end of the saved registers on x86-64, a frame record on arm64. */
#define PATTERN 0x5ac3a53c
#define NUMBER_(n) #n
#define NUMBER(n) NUMBER_(n)
#if defined(__x86_64__)
__asm__(".text\n"
        ".p2align 6\n"
        ".type gf_sleep, @function\n"
        "gf_sleep:\n"
        "  .cfi_startproc\n"
        "  endbr64\n"
        "  pushq %rbx\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  .cfi_rel_offset rbx, 0\n"
        "  pushq %rbp\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  .cfi_rel_offset rbp, 0\n"
        "  pushq %r12\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  .cfi_rel_offset r12, 0\n"
        "  pushq %r13\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  .cfi_rel_offset r13, 0\n"
        "  movq %rdi, %rbx\n"
        "  movl %esi, %ebp\n"
        "  movq %rdx, %r12\n"
        "  movq %r8, %r13\n"
        "  movq %rcx, %rsi\n"
        "  leaq -640(%rsp), %rdi\n"
        "  movl $" NUMBER(PATTERN) ", %eax\n"
        "  movl $128, %ecx\n"
        "  rep stosl\n"
        "  movl $" NUMBER(__NR_rt_sigprocmask) ", %eax\n"
        "  movl $" NUMBER(SIG_SETMASK) ", %edi\n"
        "  xorl %edx, %edx\n"
        "  movl $8, %r10d\n"
        "  syscall\n"
        "  movl $" NUMBER(__NR_futex) ", %eax\n"
        "  movq %rbx, %rdi\n"
        "  xorl %esi, %esi\n" /* FUTEX_WAIT */
        "  movl %ebp, %edx\n"
        "  movq %r12, %r10\n"
        "  syscall\n"
        "  movl $" NUMBER(__NR_rt_sigprocmask) ", %eax\n"
        "  movl $" NUMBER(SIG_SETMASK) ", %edi\n"
        "  movq %r13, %rsi\n"
        "  xorl %edx, %edx\n"
        "  movl $8, %r10d\n"
        "  syscall\n"
        "  leaq -640(%rsp), %rdi\n"
        "  movl $" NUMBER(PATTERN) ", %eax\n"
        "  movl $128, %ecx\n"
        "  repe scasl\n"
        "  setne %al\n"
        "  movzbl %al, %eax\n"
        "  popq %r13\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  .cfi_restore r13\n"
        "  popq %r12\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  .cfi_restore r12\n"
        "  popq %rbp\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  .cfi_restore rbp\n"
        "  popq %rbx\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  .cfi_restore rbx\n"
        "  ret\n"
        "  .cfi_endproc\n"
        ".size gf_sleep, .-gf_sleep\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".p2align 6\n"
        ".type gf_sleep, %function\n"
        "gf_sleep:\n"
        "  .cfi_startproc\n"
        "  mov x9, x0\n"
        "  mov w10, w1\n"
        "  mov x11, x2\n"
        "  mov x12, x4\n"
        "  mov x1, x3\n"
        "  movz w13, #" NUMBER(PATTERN) " & 0xffff\n"
        "  movk w13, #" NUMBER(PATTERN) " >> 16, lsl #16\n"
        "  mov x14, sp\n"
        "  sub x15, x14, #512\n"
        "1: str w13, [x14, #-4]!\n"
        "  cmp x14, x15\n"
        "  b.ne 1b\n"
        "  mov x8, #" NUMBER(__NR_rt_sigprocmask) "\n"
        "  mov x0, #" NUMBER(SIG_SETMASK) "\n"
        "  mov x2, #0\n"
        "  mov x3, #8\n"
        "  svc #0\n"
        "  mov x8, #" NUMBER(__NR_futex) "\n"
        "  mov x0, x9\n"
        "  mov x1, #0\n" /* FUTEX_WAIT */
        "  mov w2, w10\n"
        "  mov x3, x11\n"
        "  svc #0\n"
        "  mov x8, #" NUMBER(__NR_rt_sigprocmask) "\n"
        "  mov x0, #" NUMBER(SIG_SETMASK) "\n"
        "  mov x1, x12\n"
        "  mov x2, #0\n"
        "  mov x3, #8\n"
        "  svc #0\n"
        "  mov x0, #0\n"
        "  mov x14, sp\n"
        "2: ldr w1, [x14, #-4]!\n"
        "  cmp w1, w13\n"
        "  csinc x0, x0, xzr, eq\n"
        "  cmp x14, x15\n"
        "  b.ne 2b\n"
        "  ret\n"
        "  .cfi_endproc\n"
        ".size gf_sleep, .-gf_sleep\n");
#endif
long gf_sleep(uint32_t *word, uint32_t expected, const struct timespec *most, const uint64_t *asleep, const uint64_t *awake);

/* With `fill`, fills the top of the handlers' own stack with the pattern, unless the thread runs on
 * it. Otherwise reports whether a handler has overwritten the pattern. */
static bool own_stack(bool fill)
{
    stack_t stack;
    uint32_t pattern = PATTERN, *top;
    bool changed = false;
    if (syscall(SYS_sigaltstack, NULL, &stack) != 0 || stack.ss_flags & (SS_ONSTACK | SS_DISABLE))
        return false;
    top = (uint32_t *)(((uintptr_t)stack.ss_sp + stack.ss_size) & -sizeof *top);
    for (unsigned i = 1; i <= 128; i++)
        if (fill)
            top[-(int)i] = pattern;
        else
            changed |= top[-(int)i] != pattern;
    return changed;
}

/* Blocks SIGTERM and SIGINT until the wait ends. */
static void block_end_signals(struct gf_patience *p)
{
    if (p->blocks)
        return;
    set_mask(SIG_BLOCK, end_signals, &p->mask);
    p->blocks = true;
    p->outer = gf_load(&blocked);
    gf_store(&blocked, p->outer | (end_signals & ~p->mask));
}

/* Sleeps until the word differs from expected, for SLEEP_MS or DELAY_MS at most. Reports
 * whether a handler of SIGTERM or SIGINT has run, or will run when the wait is over. */
static bool sleep_on(struct gf_patience *p, uint32_t *word, uint32_t expected)
{
    const uint64_t faults = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGSYS) | bit(SIGABRT);
    bool on_stack = false, unused = false;
    uint64_t set = handled(end_signals, &on_stack), pending = 0;
    if (!p->blocks && !set) {
        gf_futex_wait(word, expected, SLEEP_MS);
        return false;
    }
    block_end_signals(p);
    uint64_t others = handled(~(end_signals | faults), &unused), while_asleep = p->mask | others, awake = while_asleep | end_signals;
    const struct timespec most = {0, (others ? DELAY_MS : SLEEP_MS) * 1000000};
    if (others)
        set_mask(SIG_SETMASK, awake, NULL);
    if (on_stack)
        own_stack(true);
    gf_store(&asleep, true);
    gf_store(&blocked, 0);
    bool signalled = gf_sleep(word, expected, &most, &while_asleep, &awake);
    gf_store(&asleep, false);
    if (on_stack)
        signalled |= own_stack(false);
    gf_store(&blocked, p->outer | (end_signals & ~p->mask));
    if (others)
        set_mask(SIG_SETMASK, p->mask | end_signals, NULL);
    syscall(SYS_rt_sigpending, &pending, sizeof pending);
    return signalled || (pending & set);
}

/* Notes that the program was asked to end now, unless it was asked before. */
static void note_signal(void)
{
    uint64_t never = 0;
    __atomic_compare_exchange_n(&signal_at, &never, gf_now_ns(), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void gf_terminate_set_full(struct gf_device *device, bool full)
{
    uint64_t *since = &full_since[gf_ordinal(device)];
    if (!full || !gf_load(since))
        gf_store(since, full ? gf_now_ns() : 0);
}

bool gf_wait(struct gf_device *device, struct gf_patience *p, uint32_t *word, uint32_t expected)
{
    gf_patience_begin(p);
    uint64_t full = gf_load(&full_since[gf_ordinal(device)]);
    if (full && gf_now_ns() - full >= FULL_NS)
        return false; /* the refusal was printed before */
    if (gf_load(&asleep)) { /* this call is in a handler that interrupted a wait */
        gf_store(&asleep, false);
        note_signal();
    }
    uint64_t at = gf_load(&signal_at);
    if (at && gf_now_ns() - (at > p->began ? at : p->began) >= YIELD_NS) {
        gf_say(GF_SAY_TERMINATE, "this program was asked to end while its GPU work waits: the waiting calls fail (error %d)", GF_NOT_SENT);
        return false;
    }
    if (sleep_on(p, word, expected))
        note_signal();
    return true;
}

void gf_patience_begin(struct gf_patience *p)
{
    bool on_stack = false;
    if (p->began)
        return;
    p->began = gf_now_ns();
    if (handled(end_signals, &on_stack))
        block_end_signals(p);
}

void gf_patience_end(struct gf_patience *p)
{
    if (!p->blocks)
        return;
    p->blocks = false;
    set_mask(SIG_SETMASK, p->mask, NULL);
    gf_store(&blocked, p->outer);
}

void gf_terminate_clear(void)
{
    if (gf_load(&signal_at))
        gf_store(&signal_at, 0);
}

void gf_terminate_fork_child(void)
{
    gf_terminate_clear();
    for (gf_each_device(d))
        gf_terminate_set_full(d, false);
    gf_store(&asleep, false); /* a handler of SIGTERM or SIGINT may have forked */
    set_mask(SIG_UNBLOCK, gf_load(&blocked), NULL); /* a handler of another signal may have forked, between two sleeps */
    gf_store(&blocked, 0);
}
