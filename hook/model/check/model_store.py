"""model_store.py: stores models with gfaas_model, as the lines of its input say: see
model_store.c. It knows two further lines:

    sources                stores a model from data of all kinds
    interrupted NAME       raises an exception in the block of a store
"""

import array
import ctypes
import gc
import os
import socket
import sys
import threading

import gfaas_model

CODES = [
    "", "absent", "invalid-file", "checksum", "changed", "capacity", "busy", "gpu-memory", "denied", "usage",
    "internal", "no-daemon", "driver", "slice-memory",
]  # fmt: skip

current, weights, metadata, options, context = None, {}, {}, {}, None


class Lent:
    """Memory of the GPU that belongs to another library."""

    def __init__(self, content, **changes):
        self.driver = gfaas_model._driver()
        self.address, self.driver_alloc = ctypes.c_uint64(), ctypes.CDLL("libcuda.so.1")
        with self.driver.primary(0):
            assert self.driver_alloc.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(len(content))) == 0
            address = ctypes.c_uint64(self.address.value)
            assert self.driver_alloc.cuMemcpyHtoD_v2(address, content, ctypes.c_size_t(len(content))) == 0
        self.face = {"shape": (len(content),), "typestr": "|u1", "data": (self.address.value, False), "version": 3}
        self.face.update(changes)

    @property
    def __cuda_array_interface__(self):
        return self.face


def begin(name, *words):
    global current, metadata, options
    current = None
    layout = {}
    for tensor, dtype, shape in zip(words[::3], words[1::3], words[2::3]):
        layout[tensor] = dtype, [int(n) for n in shape.split(",")] if shape != "-" else ()
    try:
        current = gfaas_model.store(name, layout, metadata=metadata, **options)
    finally:
        metadata, options = {}, {}


def commit():
    global weights
    weights = {}
    weights = current.commit()


def close():
    global current, weights
    if current is not None:
        current.abort()
    current, weights = None, {}


def put(name, text=""):
    current[name] = bytes.fromhex(text)


def gpu(name, text=""):
    content = bytes.fromhex(text)
    with gfaas_model._driver().primary(0):
        current[name] = Lent(content)


def write(name, text):
    tensor, content, driver = current[name], bytes.fromhex(text), gfaas_model._driver()
    assert tensor.nbytes == len(content) and tensor.data_ptr() % 256 == 0
    host = ctypes.create_string_buffer(content)
    with driver.primary(0):
        driver.call("cuMemcpy", tensor.data_ptr(), ctypes.addressof(host), len(content))


def threads(byte, *names):
    some, failed = bytes([int(byte)]) * (1 << 20), []

    def put_one(name):
        try:
            current[name] = some
        except BaseException as e:
            failed.append(e)

    all_ = [threading.Thread(target=put_one, args=(name,)) for name in names]
    for t in all_:
        t.start()
    for t in all_:
        t.join()
    assert not failed, failed


def sealed():
    driver = gfaas_model._driver()
    with driver.primary(0):
        tensor = next(iter(weights.values()))
        cuda = ctypes.CDLL("libcuda.so.1")
        assert cuda.cuMemsetD8_v2(ctypes.c_uint64(tensor.data_ptr()), 1, ctypes.c_size_t(tensor.nbytes)) or cuda.cuCtxSynchronize()


def fork(name):
    child = os.fork()
    if not child:
        try:
            for use in (lambda: current.__setitem__(name, b"0"), lambda: current[name], current.touch, current.commit, current.keys):
                assert "parent" in refused("usage", use)
            current.abort()
        except BaseException as e:
            print(e, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def other():
    global context
    context = ctypes.c_void_p()
    gfaas_model._driver()
    assert ctypes.CDLL("libcuda.so.1").cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0


def replace():
    global other_end
    number = current._opened.sock.fileno()
    mine, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.dup2(mine.fileno(), number)
    mine.close()
    other_end.shutdown(socket.SHUT_WR)  # so that the module would get no answer


def untouched():
    try:
        raise AssertionError(other_end.recv(1, socket.MSG_DONTWAIT))
    except BlockingIOError:
        other_end.close()


def with_(key, value):
    metadata[key] = value


def everyone():
    options["public"] = True


def wait(ms):
    options["timeout"] = int(ms) / 1000


def interrupted(name):
    try:
        with gfaas_model.store(name, {"a": ("U8", (4,))}) as s:
            s["a"] = b"1234"
            kept = s["a"]
            raise ZeroDivisionError
    except ZeroDivisionError:
        assert refused("absent", lambda: gfaas_model.load(name))
        assert "dropped" in refused("usage", s.commit)
        assert kept.tobytes() == b"1234"  # it stays mapped
        return
    raise AssertionError("the exception did not arrive")


def refused(code, use, *args):
    try:
        use(*args)
    except gfaas_model.Error as e:
        assert e.code == code, (e.code, e)
        return str(e)
    raise AssertionError(f"expected {code}")


def sources(name):
    floats = array.array("f", [1.5, -2, 3, 4, 5, 6])
    shaped = memoryview(floats).cast("B").cast("f", (2, 3))
    layout = {
        "f": ("F32", (2, 3)), "raw": ("F32", [2, 3]), "same": ("F32", (2, 3)), "bf": ("BF16", (3,)), "i": ("I64", (2,)),
        "scalar": ("F64", ()), "empty": ("F16", (0, 5)), "dl": ("F32", (2, 3)), "host": ("F32", (2, 3)), "lent": ("U8", (6,)), "typed": ("F16", (2, 1, 3)),
    }  # fmt: skip
    with gfaas_model.store(name, layout, metadata={"format": "pt", "ä": '"'}) as s:
        assert s.keys() == list(layout) and "is open" in repr(s)
        s["f"] = shaped
        s["raw"] = bytearray(floats.tobytes())
        s["same"] = s["f"]
        s["bf"] = memoryview(b"abcdef")
        s["i"] = array.array("q", [-1, 7])
        s["scalar"] = memoryview(array.array("d", [0.5])).cast("B").cast("d", ())
        s["empty"] = b""
        s["dl"] = Dlpack(s["f"])
        s["host"] = HostDlpack(floats.tobytes(), (2, 3), (3, 1))
        s["lent"] = Lent(b"lentby")
        s["typed"] = Lent(b"0123456789ab", typestr="<f2", shape=(2, 1, 3), strides=(6, 99, 2), stream=1)
        for data in (
            floats, array.array("i", [1] * 6), floats.tobytes()[:-1], shaped[::-1], Lent(b"1" * 24, mask=1), s["bf"],
            Lent(b"1" * 24, typestr="<f4", shape=(3, 2)), Lent(b"1" * 24, typestr="<f4", shape=(2, 3), strides=(4, 8)),
            Dlpack(s["i"]), HostDlpack(floats.tobytes(), (2, 3), (1, 2)), memoryview(b"123456").cast("b"),
        ):  # fmt: skip
            refused("usage", s.__setitem__, "f", data)
        for data in (None, 1, "text", [1, 2]):
            try:
                s["f"] = data
                raise AssertionError(data)
            except TypeError:
                pass
        refused("absent", s.__setitem__, "g", b"")
        face = s["f"].__cuda_array_interface__
        assert face["data"] == (s["f"].data_ptr(), False)  # writable
        for bad in ("f",), ("F32",), ("F32", (-1,)), ("F33", (1,)), ("F32", (2**62, 2)), (None, ()), ("F32", ("1",)):
            refused("usage", gfaas_model.store, "bad", {"a": bad})
        refused("usage", gfaas_model.store, "bad", {"\ud800": ("U8", (1,))})  # the daemon refuses it
        loaded = s.commit()
    assert "was committed" in repr(s) and "committed" in refused("usage", s.commit)
    with gfaas_model.safe_open(name) as f:
        assert f.metadata() == {"format": "pt", "ä": '"'} and not f.sha256
        for get in f.get_tensor, loaded.__getitem__:
            for key in "f", "raw", "same", "dl", "host":
                assert get(key).tobytes() == floats.tobytes(), key
            assert get("bf").tobytes() == b"abcdef" and get("i").tobytes() == array.array("q", [-1, 7]).tobytes()
            assert get("scalar").tobytes() == array.array("d", [0.5]).tobytes() and get("empty").tobytes() == b""
            assert get("lent").tobytes() == b"lentby" and get("typed").tobytes() == b"0123456789ab"
            assert get("typed").shape == (2, 1, 3) and get("f").__cuda_array_interface__["data"][1]  # read-only
    del loaded, face
    gc.collect()
    assert not gfaas_model._lent


class HostDlpack:
    """An array of F32 on the host, with DLPack only."""

    def __init__(self, content, shape, strides):
        n = len(shape)
        self.content, self.sizes = ctypes.create_string_buffer(content), (ctypes.c_int64 * (2 * n))(*shape, *strides)
        at = ctypes.addressof(self.sizes)
        tensor = gfaas_model._DLTensor(ctypes.addressof(self.content), 1, 0, n, 2, 32, 1, at, at + 8 * n, 0)
        self.managed = gfaas_model._Managed(tensor=tensor)

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self):
        return gfaas_model._python.PyCapsule_New(ctypes.addressof(self.managed), b"dltensor", None)


class Dlpack:
    """An array of another library, with DLPack only."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None):
        assert stream == 1
        return self.tensor.__dlpack__(stream=stream)


for line in sys.stdin:
    verb, *words = line.split()
    if verb == "show":
        print("".join(f"{key} {t.tobytes()[:32].hex()}; " for key, t in weights.items()), flush=True)
        continue
    if verb == "descriptors":
        print(len(os.listdir("/proc/self/fd")), flush=True)
        continue
    uses = {
        "store": begin, "put": put, "gpu": gpu, "write": write, "threads": threads, "touch": lambda: current.touch(),
        "commit": commit, "close": close, "sealed": sealed, "fork": fork, "other": other, "replace": replace, "untouched": untouched, "with": with_,
        "everyone": everyone, "wait": wait, "sources": sources, "interrupted": interrupted, "abandon": lambda: current.commit() and None,
    }  # fmt: skip
    try:
        uses[verb](*words)
        print(0, flush=True)
    except gfaas_model.Error as e:
        print(CODES.index(e.code) if e.code in CODES else 10, e, flush=True)
    gc.collect()
