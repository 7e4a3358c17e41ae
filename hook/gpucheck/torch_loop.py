"""torch_loop: works the GPU as PyTorch programs do.

torch_loop.py SECONDS MODE:SIZE...  for each, a line MODE:SIZE and how many
                                    matrix products a second; MODE is eager,
                                    graph or compile
torch_loop.py total                 MiB of GPU memory there seem to be
torch_loop.py fill                  MiB it could allocate
"""
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


def step_of(mode, a, b):
    if mode == "eager":
        return lambda: products(a, b)
    if mode == "compile":
        compiled = torch.compile(chain)
        return lambda: compiled(a, b)
    products(a, b)  # libraries initialise before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        products(a, b)
    return graph.replay


def fill():
    held, piece = [], 64 << 20
    try:
        while len(held) < 4096:
            held.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
    return len(held) * piece >> 20


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
    else:
        rates(float(args[0]), args[1:])


main(sys.argv[1:])
