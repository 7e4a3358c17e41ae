"""torch_loop: works the GPU as PyTorch programs do.

torch_loop.py SECONDS MODE:SIZE...  for each, a line MODE:SIZE and how many
                                    matrix products a second; MODE is eager,
                                    graph or compile
torch_loop.py total                 MiB of GPU memory there seem to be
torch_loop.py fill                  MiB it could allocate before it ran out of
                                    memory, after which it has to go on
torch_loop.py right                 checks the results of streams and graphs
"""
import gc
import sys
import time
import traceback

import torch

BATCH = 20  # products between two synchronisations


def products(a, b):
    for _ in range(BATCH):
        c = a @ b
    return c


def chain(a, b):
    """Something that a compiler can fuse."""
    for _ in range(BATCH):
        c = torch.relu(a @ b + 1)
    return c


def captured(work, pool=None):
    """A graph of the work and what it leaves, warmed up on a stream beside."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):  # libraries initialise before the capture
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = work()
    return graph, result


def step_of(mode, a, b):
    if mode == "eager":
        return lambda: products(a, b)
    if mode == "compile":
        compiled = torch.compile(chain)
        return lambda: compiled(a, b)
    graph, _ = captured(lambda: products(a, b))
    return graph.replay


def fill():
    held, piece = [], 64 << 20
    try:
        while len(held) < 4096:
            held.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))
        raise AssertionError("there is no limit")
    except torch.cuda.OutOfMemoryError:
        pass
    most = len(held) * piece >> 20
    del held[len(held) // 2:]
    gc.collect()
    torch.cuda.empty_cache()
    sums(256)
    held.append(torch.ones(piece, dtype=torch.uint8, device="cuda"))
    assert held[-1].sum(dtype=torch.int64).item() == piece
    return most


def sums(size):
    """A product whose result is known."""
    a = torch.ones(size, size, device="cuda")
    assert bool(((a @ a) == size).all())


def streams():
    """Copies from pinned memory beside products, handed on by events."""
    host = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
    back = torch.empty_like(host).pin_memory()
    one, two, done = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    for _ in range(20):
        with torch.cuda.stream(one):
            x = host.to("cuda", non_blocking=True) * 2
            x.record_stream(two)
            done.record()
        two.wait_event(done)
        with torch.cuda.stream(two):
            back.copy_(x, non_blocking=True)
        two.synchronize()
        assert torch.equal(back, host * 2)


def graphs():
    """Two graphs with one pool, replayed with other inputs than captured."""
    x = torch.zeros(512, 512, device="cuda")
    first, y = captured(lambda: x @ x + 1)
    second, z = captured(lambda: torch.relu(y) * 2, pool=first.pool())
    for i in range(1, 30):
        x.fill_(i)
        first.replay()
        second.replay()
        assert bool((z == (512.0 * i * i + 1) * 2).all()), i
        sums(64)


def right():
    sums(1024)
    streams()
    graphs()
    torch.cuda.empty_cache()
    streams()
    return "right"


def rate(seconds, size, mode):
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    step = step_of(mode, a, b)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    began, done = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        step()
        torch.cuda.synchronize()
        done += BATCH
    return done / (time.monotonic() - began)


def rates(seconds, wanted):
    for what in wanted:
        mode, size = what.split(":")
        try:
            print(f"{what} {rate(seconds, int(size), mode):.1f}", flush=True)
        except Exception:  # one that does not work here must not take the others with it
            traceback.print_exc()
            print(f"{what} none", flush=True)


def main(args):
    if args == ["total"]:
        torch.zeros(1, device="cuda")
        print(torch.cuda.mem_get_info()[1] >> 20)
    elif args == ["fill"]:
        print(fill())
    elif args == ["right"]:
        print(right())
    else:
        rates(float(args[0]), args[1:])


main(sys.argv[1:])
