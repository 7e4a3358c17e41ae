"""pycuda_launch: kernels launched by PyCUDA, for so many seconds.

  pycuda_launch.py SECONDS

Prints how many it has launched. The PTX is given: PyCUDA makes its own with nvcc,
which is in CUDA's toolkit and not in Debian's main archive. What was copied to the
GPU must come back as it was.
"""
import sys
import time

import numpy as np
import pycuda.autoinit
import pycuda.driver as cuda

PTX = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry nothing(.param .u64 at) { ret; }
"""

function = cuda.module_from_buffer(PTX).get_function("nothing")
data = np.arange(1024, dtype=np.float32)
there = cuda.to_device(data)
stream = cuda.Stream()
launches, end = 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(8):
        function(there, block=(256, 1, 1), grid=(64, 1), stream=stream)
    stream.synchronize()
    launches += 8
assert (cuda.from_device_like(there, data) == data).all()
print(launches)
