"""model_client.py: uses gfaas_model.py as a program would, as model_client.c does
the library, and says the same.

    show NAME [FILE]   opens the model, a line for each tensor; waits for the end of the input
    serve              opens what each line of its input names, and says the code and why
    takers NAME        takes its tensors as other libraries do
    keep NAME          reads its tensors, waits for a line, and reads them again
    fork NAME          opens it and forks; the child and then the parent let go of it
    loading NAME       forks, at a line of the input, while another thread waits for it
    context NAME       leaves the thread's context as it was
    reused NAME        opens it, has a file in the place of the connection, and closes it,
                       here and in a child: not the file
    leaks NAME         leaves no descriptor open, whether or not it opens
"""

import ctypes
import gc
import os
import sys
import threading
import warnings

import gfaas_model

CODES = [
    "", "absent", "invalid-file", "checksum", "changed", "capacity", "busy", "gpu-memory", "denied", "usage",
    "internal", "no-daemon", "driver", "slice-memory",
]  # fmt: skip


def say(*words):
    print(*words, flush=True)


def show(name, file=None):
    try:
        model = gfaas_model.safe_open(name, file)
    except gfaas_model.Error as e:
        say(CODES.index(e.code) if e.code in CODES else 10, e)
        return
    with model as f:
        print(0, f.sha256, len(f.keys()))
        for key in f.keys():
            t = f.get_tensor(key)
            shape = ",".join(map(str, t.shape))
            print(key, t.dtype, f"[{shape}]", t.data_ptr() % 256, t.nbytes, t.tobytes()[:32].hex())
        try:
            f.get_tensor("no such tensor")
        except gfaas_model.Error as e:
            assert e.code == "absent"
        say("metadata", f.metadata())
        sys.stdin.read()
    for use in lambda: f.get_tensor("a"), f.keys, f.metadata, lambda: f.sha256:
        assert refuses(gfaas_model.Error, use)  # it is closed


def serve():
    for line in sys.stdin:
        try:
            gfaas_model.load(line.rstrip("\n"))
            say(0)
        except gfaas_model.Error as e:
            say(CODES.index(e.code) if e.code in CODES else 10, e)


# ---- those who take tensors ----


class Managed(ctypes.Structure):
    """The same as in gfaas_model, but written down once more."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]  # fmt: skip


class Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64), *Managed._fields_[:9],
    ]  # fmt: skip


api = ctypes.pythonapi
api.PyCapsule_GetPointer.argtypes, api.PyCapsule_GetPointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
USED = ctypes.c_char_p(b"used")


class Taken:
    """What a library makes of a capsule: it is its own from then on."""

    def __init__(self, capsule, kind, name):
        self.address = api.PyCapsule_GetPointer(capsule, name)
        self.managed = kind.from_address(self.address)
        assert api.PyCapsule_SetName(capsule, USED) == 0

    def __del__(self):
        if self.managed.deleter:
            self.managed.deleter(self.address)


def refuses(kind, function, *args, **named):
    try:
        function(*args, **named)
    except kind:
        return True
    return False


def check(t, taken, code, bits):
    m = taken.managed
    n = len(t.shape)
    assert (m.code, m.bits, m.lanes, m.offset) == (code, bits, 1, 0), (m.code, m.bits)
    assert m.data == (t.data_ptr() if t.nbytes else None) and tuple(m.device) == t.__dlpack_device__() == (2, 0)
    assert m.ndim == n and tuple(m.shape[:n]) == t.shape
    expected = [1]
    for size in reversed(t.shape):
        expected.insert(0, expected[0] * max(size, 1))
    assert m.strides[:n] == expected[1:], m.strides[:n]


def check_refusal(tensors):
    """Who refuses a tensor may drop its capsule while the exception is on its way, as
    libraries in C do; it arrives, and nothing else is said."""
    api.PyErr_SetNone.argtypes, api.PyErr_SetNone.restype = [ctypes.py_object] * 2, ctypes.py_object
    for t in tensors:
        if t.dtype != "F4":
            # It is NULL, so that what is set is raised; the second argument, which it
            # does not have, is dropped on the way out.
            assert refuses(ZeroDivisionError, lambda t=t: api.PyErr_SetNone(ZeroDivisionError, t.__dlpack__()))


def check_numpy(tensors):
    """NumPy's arrays are on the host: it refuses the tensors, and takes a copy."""
    try:
        import numpy
    except ImportError:
        return
    for t in tensors:
        assert refuses((RuntimeError, BufferError), numpy.from_dlpack, t)
        if hasattr(t, "__cuda_array_interface__"):
            a = numpy.frombuffer(t.tobytes(), t.__cuda_array_interface__["typestr"]).reshape(t.shape)
            assert a.tobytes() == t.tobytes() and a.shape == t.shape


def takers(name):
    weights = gfaas_model.load(name)
    kinds = {"F32": (2, 32, "<f4"), "BF16": (4, 16, None), "I64": (0, 64, "<i8"), "F16": (2, 16, "<f2"), "U8": (1, 8, "|u1")}
    for t in weights.values():
        if t.dtype not in kinds:
            assert refuses(BufferError, t.__dlpack__) and not hasattr(t, "__cuda_array_interface__")
            continue
        code, bits, typestr = kinds[t.dtype]
        check(t, Taken(t.__dlpack__(), Managed, b"dltensor"), code, bits)
        check(t, Taken(t.__dlpack__(stream=1, max_version=(0, 8), dl_device=(2, 0), copy=False), Managed, b"dltensor"), code, bits)
        for asked, got in [((1, 0), [1, 0]), ((1, 9), [1, 1]), ((2, 0), [1, 1])]:
            v = Taken(t.__dlpack__(max_version=asked), Versioned, b"dltensor_versioned")
            check(t, v, code, bits)
            assert list(v.managed.version) == got and v.managed.flags == 1  # read only
            del v
        assert refuses(BufferError, t.__dlpack__, copy=True) and refuses(BufferError, t.__dlpack__, dl_device=(1, 0))
        assert hasattr(t, "__cuda_array_interface__") == (typestr is not None)
        if typestr:
            face = t.__cuda_array_interface__
            assert face["version"] == 3 and face["typestr"] == typestr and face["shape"] == t.shape
            assert face["data"] == (t.data_ptr() if t.nbytes else 0, True) and face["strides"] is None
    check_refusal(weights.values())
    check_numpy(weights.values())
    gc.collect()
    assert not gfaas_model._lent
    # The mapping lives as long as somebody has a tensor, as whatever.
    first = next(iter(weights.values()))
    taken, unused, want = Taken(first.__dlpack__(), Managed, b"dltensor"), first.__dlpack__(), first.tobytes()
    del weights, t, first
    gc.collect()
    say("held")
    sys.stdin.readline()
    host = ctypes.create_string_buffer(len(want))
    with gfaas_model._driver().primary(0):
        gfaas_model._driver().call("cuMemcpyDtoH_v2", host, taken.managed.data, len(want))
    assert host.raw == want
    del unused
    thread = threading.Thread(target=taken.managed.deleter, args=(taken.address,))  # any thread may
    taken.managed = Managed()
    thread.start()
    thread.join()
    gc.collect()
    assert not gfaas_model._lent
    say("gone")
    sys.stdin.readline()
    # What is given back when Python has ended does no harm.
    global last
    last = Taken(next(iter(gfaas_model.load(name).values())).__dlpack__(), Managed, b"dltensor")


def keep(name):
    weights = gfaas_model.load(name)
    before = {key: t.tobytes() for key, t in weights.items()}
    say("held")
    sys.stdin.readline()
    assert {key: t.tobytes() for key, t in weights.items()} == before
    say("the same")


def fork(name):
    model = gfaas_model.load(name)
    child = os.fork()
    model = None
    gc.collect()
    if not child:
        assert refuses(gfaas_model.Error, gfaas_model.load, name)  # CUDA does not work in here
        say("child")
        sys.stdin.read()
        os._exit(0)
    say("parent")
    sys.stdin.read()
    assert os.waitpid(child, 0)[1] == 0


def loading(name):
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
    thread = threading.Thread(target=refuses, args=(gfaas_model.Error, gfaas_model.load, name))
    thread.start()
    say("waits")
    sys.stdin.readline()
    child = os.fork()
    if not child:
        say("child")
        sys.stdin.read()
        os._exit(0)
    thread.join()
    say("parent")
    sys.stdin.read()
    assert os.waitpid(child, 0)[1] == 0


def context(name):
    driver = gfaas_model._driver()
    weights = gfaas_model.load(name)
    assert driver.current() is None
    own, flags, active = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_int()
    cuda = ctypes.CDLL("libcuda.so.1")

    def primary():
        assert cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
        return bool(active)

    assert primary()
    del weights
    gc.collect()
    assert not primary()
    assert cuda.cuCtxCreate_v2(ctypes.byref(own), 0, 0) == 0
    weights = gfaas_model.load(name)
    assert driver.current() == 0 and not primary()  # it uses the program's
    assert next(iter(weights.values())).tobytes()


def reused(name):
    model, last = gfaas_model.load(name), -1
    with open(os.devnull, "r+b") as file:
        for number in os.listdir("/proc/self/fd"):
            try:
                link = os.readlink(f"/proc/self/fd/{number}")
            except OSError:
                continue
            if link.startswith("socket:"):
                last = int(number)
                assert last >= 256, last
                os.dup2(file.fileno(), last)
    was = os.fstat(last)
    child = os.fork()
    if not child:
        os._exit(0 if os.path.samestat(os.fstat(last), was) else 1)
    assert os.waitpid(child, 0)[1] == 0
    model = None
    gc.collect()
    assert os.path.samestat(os.fstat(last), was)


def leaks(name):
    def count():
        return len(os.listdir("/proc/self/fd"))

    for i in range(20):
        try:
            gfaas_model.load(name, "/dev/zero")
        except gfaas_model.Error:
            pass
        if i == 2:
            before = count()  # the driver has its own by now
    gc.collect()
    assert count() == before, (count(), before)


globals()[sys.argv[1]](*sys.argv[2:])
