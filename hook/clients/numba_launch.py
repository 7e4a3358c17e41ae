"""numba_launch: kernels launched by numba's layer over the driver, for so many seconds.

  numba_launch.py SECONDS

Prints how many it has launched. The PTX is given: numba makes its own with NVVM,
which is in CUDA's toolkit and not in Debian. What was copied to the GPU must come
back as it was.
"""
import sys
import time

import numpy as np
from numba import cuda
from numba.cuda.cudadrv import driver

PTX = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry nothing(.param .u64 at) { ret; }
"""

# numba prefers any function whose name ends in _v2, and before CUDA 13 there was no
# such one of this, which has a parameter more.
assert driver.driver.is_available
driver.driver._ctypes_wrap_fn("cuCtxGetDevice", driver.driver.lib.cuCtxGetDevice)

function = cuda.current_context().create_module_ptx(PTX).get_function("nothing")
data = np.arange(1024, dtype=np.float32)
there = cuda.to_device(data)
stream = cuda.stream()
launches, end = 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(8):
        driver.launch_kernel(function.handle, 64, 1, 1, 256, 1, 1, 0, stream.handle, [there.device_ctypes_pointer])
    stream.synchronize()
    launches += 8
assert (there.copy_to_host() == data).all()
print(launches)
