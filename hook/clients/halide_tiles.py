"""halide_tiles: a Halide pipeline on a GPU, for so many seconds.

  halide_tiles.py SECONDS

Halide makes the kernel itself and launches it through a runtime of its own.
Prints how often the pipeline was run. What it computes is not looked at: the
simulated GPU takes the time of a kernel and does not run it.
"""
import sys
import time

import halide as hl

x, y, xi, yi = hl.Var(), hl.Var(), hl.Var(), hl.Var()
f = hl.Func()
f[x, y] = hl.f32(x) * 2 + y
f.gpu_tile(x, y, xi, yi, 16, 16)
target = hl.get_host_target().with_feature(hl.TargetFeature.CUDA)
image = hl.Buffer(hl.Float(32), [128, 128])
f.compile_jit(target)
runs, end = 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(8):
        f.realize(image, target)
    image.device_sync()
    runs += 8
print(runs)
