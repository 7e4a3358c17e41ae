"""torch_loop: multiplies matrices for SECONDS and prints how often, as PyTorch
programs do it: torch_loop.py SECONDS [SIZE]. Exit 77: there is no PyTorch."""
import sys
import time

try:
    import torch
except ImportError:
    sys.exit(77)

seconds, size = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4096
a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
for _ in range(10):
    c = a @ b
torch.cuda.synchronize()
began, done = time.monotonic(), 0
while time.monotonic() - began < seconds:
    for _ in range(20):
        c = a @ b
    torch.cuda.synchronize()
    done += 20
free, total = torch.cuda.mem_get_info()
print(f"{done / (time.monotonic() - began):.1f} products/s, {total >> 20} MiB in all")
