"""Weights that all processes of a GPU share.

gfaas-modeld keeps one copy of a model's weights on the GPU; a process that loads
the model maps that copy for reading:

    import gfaas_model
    weights = gfaas_model.load("resnet50", "resnet50.safetensors")
    weights["fc.weight"].shape

and with PyTorch, without a copy:

    model.load_state_dict(gfaas_model.load("resnet50", framework="torch"), assign=True)

A process that has the weights of a model can store it for all others: see store.

Libraries that read DLPack or __cuda_array_interface__ use a tensor without a copy.
Tensors are read-only: a write faults and ends the process's use of CUDA. The memory
stays mapped while a reference to it exists, and the daemon keeps the model for that time.

The daemon's socket is $GFAAS_MODEL_SOCKET. If that is not set, it is model.sock in the
run directory ($GFAAS_RUN_DIR, $XDG_RUNTIME_DIR/gfaas or the user's default). The module
needs only the standard library and the CUDA driver.
"""

import array
import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import json
import os
import re
import resource
import socket
import stat
import sys
import threading
import weakref

__all__ = ["Error", "Tensor", "load", "safe_open", "store"]


class Error(RuntimeError):
    """An error of the daemon, the driver or this module. code is one of absent,
    invalid-file, checksum, changed, capacity, busy, gpu-memory, slice-memory, denied, usage,
    internal, no-daemon and driver."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


# ---- the driver ----

_u64, _size = ctypes.c_uint64, ctypes.c_size_t
_POSIX_FD, _DEVICE = 1, 1  # of handles, of locations
_READ, _READ_WRITE = 1, 3  # of access


class _Access(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]


_CALLS = {
    "cuInit": [ctypes.c_uint],
    "cuGetErrorName": [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)],
    "cuCtxGetCurrent": [ctypes.POINTER(ctypes.c_void_p)],
    "cuCtxGetDevice": [ctypes.POINTER(ctypes.c_int)],
    "cuCtxPushCurrent_v2": [ctypes.c_void_p],
    "cuCtxPopCurrent_v2": [ctypes.POINTER(ctypes.c_void_p)],
    "cuCtxSynchronize": [],
    "cuDeviceGet": [ctypes.POINTER(ctypes.c_int), ctypes.c_int],
    "cuDeviceGetUuid": [ctypes.c_char * 16, ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int],
    "cuDevicePrimaryCtxRelease_v2": [ctypes.c_int],
    "cuMemImportFromShareableHandle": [ctypes.POINTER(_u64), ctypes.c_void_p, ctypes.c_int],
    "cuMemAddressReserve": [ctypes.POINTER(_u64), _size, _size, _u64, _u64],
    "cuMemAddressFree": [_u64, _size],
    "cuMemMap": [_u64, _size, _size, _u64, _u64],
    "cuMemUnmap": [_u64, _size],
    "cuMemSetAccess": [_u64, _size, ctypes.POINTER(_Access), _size],
    "cuMemRelease": [_u64],
    "cuMemcpy": [_u64, _u64, _size],
    "cuMemcpyDtoH_v2": [ctypes.c_void_p, _u64, _size],
    "cuStreamSynchronize": [ctypes.c_void_p],
}


class _Driver:
    """The functions of the CUDA driver. A function that fails raises an Error."""

    def __init__(self):
        try:
            library = ctypes.CDLL("libcuda.so.1")
            for name, types in _CALLS.items():
                function = getattr(library, name)
                function.argtypes, function.restype = types, ctypes.c_int
                setattr(self, "_" + name, function)
        except (OSError, AttributeError) as e:
            raise Error("driver", f"cannot load the CUDA driver, or it is too old: {e}") from None
        self.call("cuInit", 0)

    def try_call(self, name, *args):
        return getattr(self, "_" + name)(*args)

    def call(self, name, *args):
        result = self.try_call(name, *args)
        if result:
            text = ctypes.c_char_p()
            self._cuGetErrorName(result, ctypes.byref(text))
            raise Error("driver", f"{name}: error {result} ({(text.value or b'unknown').decode()})")

    def current(self):
        """Returns the device of the current context, or None if there is no context."""
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        if not context:
            return None
        self.call("cuCtxGetDevice", ctypes.byref(device))
        return device.value

    @contextlib.contextmanager
    def primary(self, device):
        """Makes a context of a device current: the current one or, if that is of another
        device, the device's primary context."""
        if self.current() == device:
            yield
            return
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self.call("cuCtxPushCurrent_v2", context)
            try:
                yield
            finally:
                self.call("cuCtxPopCurrent_v2", ctypes.byref(context))
        finally:
            self.call("cuDevicePrimaryCtxRelease_v2", device)


_driver_lock = threading.Lock()
_driver_here = None


def _driver():
    global _driver_here
    if _driver_here is None:  # without a lock otherwise: this may run in a finalizer, at any point
        with _driver_lock:
            _driver_here = _driver_here or _Driver()
    return _driver_here


# ---- the daemon ----

_MOST_ANSWER = 65536


def _own_folder(path):
    """Reports whether a folder belongs to this user and only this user can write to it."""
    try:
        s = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(s.st_mode) and s.st_uid == os.geteuid() and not s.st_mode & 0o022


def _socket_paths():
    """Returns the paths where the socket may be, the preferred one first. Without variables,
    these are the daemon's defaults."""
    given, run, user = (os.environ.get(n) for n in ("GFAAS_MODEL_SOCKET", "GFAAS_RUN_DIR", "XDG_RUNTIME_DIR"))
    if given:
        return [given]
    if run or user and not user.startswith("/run/user/"):
        return [os.path.join(run or os.path.join(user, "gfaas"), "model.sock")]
    uid = os.geteuid()
    others = [d for d in ("/run/gfaas", f"/tmp/gfaas-{uid}") if _own_folder(d)]
    return [os.path.join(d, "model.sock") for d in [f"/run/user/{uid}/gfaas"] + others]


class _Connection(socket.socket):
    """A connection whose descriptor number the program may close and reuse: the number is
    high, and it is closed only if it is still this connection."""

    def __init__(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as low:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            most = 1024 if most == resource.RLIM_INFINITY else min(most, 1024)
            try:
                fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, max(most - 64 if most >= 128 else most // 2, 3))
            except OSError:  # no high number is free
                fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
            super().__init__(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd)
        self.inode = self._inode()

    def _inode(self):
        try:
            now = os.fstat(self.fileno())
        except OSError:
            return None
        return now.st_dev, now.st_ino

    def close(self):
        if self.fileno() < 0:
            return
        if self._inode() == self.inode:
            super().close()
        else:
            self.detach()

    __del__ = close  # the base class's would close the number in any case


def _connect():
    paths = _socket_paths()
    for path in paths:
        try:
            return _connect_to(path)
        except Error as e:
            if path is paths[0]:  # the message is about the preferred place
                first = e
    raise first


def _connect_to(path):
    sock = _Connection()
    try:
        if len(os.fsencode(path)) > 107:
            raise Error("usage", "the path of gfaas-modeld's socket is longer than 107 bytes")
        sock.connect(path)
    except OSError as e:
        sock.close()
        raise Error("no-daemon", f"no gfaas-modeld at {path}: {e.strerror}") from None
    except BaseException:
        sock.close()
        raise
    return sock


def _exchange(sock, request, file):
    """Sends a request, with a descriptor unless that is None. Returns the answer and its
    descriptors, which the caller must close."""
    ancillary = [] if file is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
    fds = []
    try:
        sock.sendmsg([json.dumps(request).encode()], ancillary, socket.MSG_NOSIGNAL)
        text, control, flags, _ = sock.recvmsg(_MOST_ANSWER, socket.CMSG_SPACE(8 * 4), socket.MSG_CMSG_CLOEXEC)
    except OSError as e:
        raise Error("no-daemon", f"gfaas-modeld: {e.strerror}") from None
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            got = array.array("i")
            got.frombytes(data[: len(data) - len(data) % got.itemsize])
            fds.extend(got)
    try:
        if not text:
            raise Error("no-daemon", "gfaas-modeld closed the connection before it answered")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise Error("internal", "gfaas-modeld's answer is too long")
        answer = json.loads(text)
        if not isinstance(answer, dict):
            raise ValueError("expected an object")
        return answer, fds
    except BaseException as e:
        _close(fds)
        if isinstance(e, (ValueError, RecursionError)):
            raise Error("internal", f"cannot read gfaas-modeld's answer: {e}") from None
        raise


def _close(fds):
    for fd in fds:
        os.close(fd)


def _request(sock, request, file=None):
    """Sends a request, as _exchange does. Raises Error if the daemon refuses it."""
    answer, fds = _exchange(sock, request, file)
    if answer.get("ok") is True:
        return answer, fds
    _close(fds)
    error = answer.get("error")
    error = error if isinstance(error, dict) else {}
    message = str(error.get("message") or "gfaas-modeld refused the request and gave no reason")
    raise Error(str(error.get("code", "internal")), message)


def _get(name, file, timeout, sock):
    """Requests a model. Returns the answer and its descriptors."""
    request = {"op": "get", "name": name, "timeout_ms": int(timeout * 1000)}
    fd, why = None, None
    if file is not None:
        try:  # a pipe would wait for a writer; the daemon checks that it is a regular file
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as e:
            why = e.strerror
    try:
        return _request(sock, request, fd)
    except Error as e:
        if e.code == "absent" and why:
            raise Error(
                e.code, f"model {name} is not loaded, and cannot be loaded from {os.fspath(file)}: {why}"
            ) from None
        raise
    finally:
        if fd is not None:
            os.close(fd)


# ---- what a model has ----

_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2,
    "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


def _is_count(n):
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63


def _read(fd):
    """Returns the content of a file, even if the file changes meanwhile."""
    parts, at = [], 0
    while part := os.pread(fd, 1 << 24, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _manifest(fd, size):
    """Returns the tensors of a manifest as (dtype, shape, offset, bytes) by name, and its
    metadata."""
    try:
        manifest = json.loads(_read(fd))
        tensors, metadata = manifest.get("tensors", {}), manifest.get("metadata") or {}
        return {name: _entry(name, t, size) for name, t in tensors.items()}, dict(metadata)
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as e:
        raise Error("internal", f"cannot read the daemon's list of tensors: {e!r}") from None


def _entry(name, t, size):
    dtype, shape, offset, count = t["dtype"], t["shape"], t["offset"], t["bytes"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not all(map(_is_count, [offset, count, *shape])):
        raise ValueError(f"invalid tensor {name}: {t}")
    if offset + count > size:
        raise ValueError(f"tensor {name} ends beyond the allocation")
    want = _BYTES.get(dtype, 0)
    for n in shape:
        want *= n
    if dtype in _BYTES and want != count:
        raise ValueError(f"the length of tensor {name} does not match its shape")
    return dtype, tuple(shape), offset, count


# ---- the mapping ----

_open = weakref.WeakSet()  # models, including those being opened, whose connections a child must not keep


def _check_name(name):
    if not isinstance(name, str):
        raise TypeError(f"the name of a model must be a string, not {name!r}")
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._/-]{0,254}", name):
        raise Error(
            "usage",
            f"invalid model name {name:.300}: expected at most 255 letters, digits, '.', '_', '/' or '-', "
            "starting with a letter or digit",
        )


class _Model:
    """A mapped model. Its tensors refer to it; it is unmapped when the last one is gone.

    ask sends the request for its memory on a connection, and returns the answer and its
    descriptors."""

    def __init__(self, name, ask, access=_READ):
        driver = _driver()
        self.sock = _connect()
        _open.add(self)  # before the request, because loading can take long
        try:
            answer, fds = ask(self.sock)
            try:
                self.size = answer.get("size")
                if not _is_count(self.size) or not self.size or len(fds) < 2:
                    raise Error("internal", f"gfaas-modeld's answer about {name} lacks size, memory or the list of tensors")
                self.sha256 = answer.get("sha256")
                self.entries, self.metadata = _manifest(fds[1], self.size)
                self.device, primary = self._device(driver, str(answer.get("gpu")))
                self.base = self._map(driver, fds[0], primary, access)
            finally:
                _close(fds)
        except BaseException:
            self.sock.close()
            raise
        # Not at exit: threads that still run then may read it.
        of = os.getpid(), self.sock, self.device, primary, self.base, self.size
        weakref.finalize(self, _unmap, *of).atexit = False

    @staticmethod
    def _device(driver, gpu):
        """Returns the device to map on, and whether it was chosen because no context is
        current."""
        device = driver.current()
        primary = device is None
        if primary:
            ordinal = ctypes.c_int()
            driver.call("cuDeviceGet", ctypes.byref(ordinal), 0)
            device = ordinal.value
        uuid = (ctypes.c_char * 16)()
        driver.call("cuDeviceGetUuid", uuid, device)
        h = uuid.raw.hex()
        here = f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
        if gpu != here:
            raise Error(
                "driver",
                f"the model is on {gpu}, but this thread uses {here}: "
                "make a context of the model's GPU current, or set CUDA_VISIBLE_DEVICES",
            )
        return device, primary

    def _map(self, driver, fd, primary, access):
        handle, base = _u64(), _u64()
        context = ctypes.c_void_p()
        with contextlib.ExitStack() as undo:
            if primary:  # retained until the model is unmapped
                driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
                undo.callback(driver.try_call, "cuDevicePrimaryCtxRelease_v2", self.device)
            with driver.primary(self.device):
                driver.call("cuMemImportFromShareableHandle", ctypes.byref(handle), fd, _POSIX_FD)
                try:
                    driver.call("cuMemAddressReserve", ctypes.byref(base), self.size, 0, 0, 0)
                    undo.callback(driver.try_call, "cuMemAddressFree", base, self.size)
                    driver.call("cuMemMap", base, self.size, 0, handle, 0)
                    undo.callback(driver.try_call, "cuMemUnmap", base, self.size)
                finally:
                    driver.try_call("cuMemRelease", handle)  # the mapping keeps the memory
                self._set_access(driver, base, access)
            undo.pop_all()
        return base.value

    def _set_access(self, driver, base, access):
        access = _Access(_DEVICE, self.device, access)
        driver.call("cuMemSetAccess", base, self.size, ctypes.byref(access), 1)

    def seal(self):
        """Waits for the work in the context, and makes the mapping read-only."""
        driver = _driver()
        with driver.primary(self.device):
            driver.call("cuCtxSynchronize")
            self._set_access(driver, self.base, _READ)


def _unmap(pid, sock, device, primary, base, size):
    """When nothing refers to a model any more. Work that reads it may still be
    under way; where that cannot be waited for it stays mapped."""
    if os.getpid() != pid:
        return
    with contextlib.suppress(Error):
        driver = _driver()
        if primary or driver.current() == device:
            with driver.primary(device):
                driver.call("cuCtxSynchronize")
        driver.try_call("cuMemUnmap", base, size)
        driver.try_call("cuMemAddressFree", base, size)
        if primary:
            driver.try_call("cuDevicePrimaryCtxRelease_v2", device)
    sock.close()


def _in_child():
    for model in list(_open):
        model.sock.close()
    _open.clear()


os.register_at_fork(after_in_child=_in_child)


# ---- DLPack ----

_CUDA = 2  # a kind of device


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", _u64),
    ]


class _Managed(ctypes.Structure):  # DLManagedTensor, before version 1.0
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):  # DLManagedTensorVersioned
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", _u64),
        ("tensor", _DLTensor),
    ]


_READ_ONLY = 1
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL, _E4M3FN, _E5M2 = 0, 1, 2, 4, 6, 10, 12
_DL_CODES = {
    "BOOL": _BOOL, "U8": _UINT, "I8": _INT, "F8_E4M3": _E4M3FN, "F8_E5M2": _E5M2, "U16": _UINT, "I16": _INT,
    "F16": _FLOAT, "BF16": _BFLOAT, "U32": _UINT, "I32": _INT, "F32": _FLOAT, "U64": _UINT, "I64": _INT,
    "F64": _FLOAT,
}  # fmt: skip
_NAMES = {_Managed: ctypes.c_char_p(b"dltensor"), _Versioned: ctypes.c_char_p(b"dltensor_versioned")}

_libc = ctypes.CDLL(None)
_libc.malloc.argtypes, _libc.malloc.restype = [_size], ctypes.c_void_p
_libc.free.argtypes, _libc.free.restype = [ctypes.c_void_p], None
_python = ctypes.pythonapi
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]

_lent = {}  # by address: structures handed out with DLPack, and the objects that they refer to
_offered = {}  # by address: capsules that no consumer may have taken yet


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address):
    """Called by a consumer, in any thread, when it no longer uses a tensor."""
    if _lent.pop(address, None):
        _libc.free(address)


def _sweep(phase="stop", _=None):
    """Frees capsules that have no references and that no consumer has taken (these still
    have their original names). A destructor of the capsule could not do this: a consumer that
    refuses a tensor drops the capsule while its exception propagates, and Python code
    cannot run then. So capsules are checked at each garbage collection and whenever a
    tensor is lent."""
    if phase != "stop":
        return
    for address in list(_offered):
        lent = _lent.get(address)
        if not lent or not _python.PyCapsule_IsValid(_offered[address], _NAMES[lent[0]]):
            _offered.pop(address, None)
        elif sys.getrefcount(_offered[address]) <= 2:  # the references of _offered and of this call
            _offered.pop(address, None)
            _delete(address)


gc.callbacks.append(_sweep)


@atexit.register
def _no_callbacks():
    """Consumers may release tensors after Python has ended. These tensors are then not
    freed."""
    gc.callbacks.remove(_sweep)
    for address, (kind, _) in list(_lent.items()):
        kind.from_address(address).deleter = None


# ---- tensors ----

_TYPESTR = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4",
    "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip


class Tensor:
    """A tensor on the GPU, packed, in row-major order; read-only, except in a store that is
    not committed.

    shape is a tuple, dtype is a name of safetensors ("F32", "BF16", ...), and nbytes is the
    length in bytes.
    """

    __slots__ = ("_model", "_offset", "dtype", "shape", "nbytes")
    _writable = False

    def __init__(self, model, entry):
        self._model = model
        self.dtype, self.shape, self._offset, self.nbytes = entry

    def __repr__(self):
        return f"gfaas_model.Tensor({self.dtype}, {list(self.shape)})"

    def data_ptr(self):
        """Returns the address on the GPU, a multiple of 256."""
        return self._model.base + self._offset

    def tobytes(self):
        """Returns a copy of the bytes in host memory."""
        copy = ctypes.create_string_buffer(self.nbytes or 1)
        if self.nbytes:
            driver = _driver()
            with driver.primary(self._model.device):
                driver.call("cuMemcpyDtoH_v2", copy, self.data_ptr(), self.nbytes)
        return copy.raw[: self.nbytes]

    @property
    def __cuda_array_interface__(self):
        """The interface, version 3. Types that it has no name for raise AttributeError."""
        if self.dtype not in _TYPESTR:
            raise AttributeError(f"__cuda_array_interface__ has no name for {self.dtype}; use DLPack")
        return {
            "shape": self.shape,
            "typestr": _TYPESTR[self.dtype],
            "data": (self.data_ptr() if self.nbytes else 0, not self._writable),
            "strides": None,
            "stream": None,  # no work of this module is in progress
            "version": 3,
        }

    def __dlpack_device__(self):
        return _CUDA, self._model.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Returns a capsule for a DLPack consumer. From version 1.0 on, it marks a read-only
        tensor as such; earlier versions have no such mark."""
        if copy:
            raise BufferError("gfaas_model: a model's weights are not copied")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"gfaas_model: the tensor is on {self.__dlpack_device__()}, not {tuple(dl_device)}")
        version = tuple(max_version or (0, 0))
        code = _DL_CODES.get(self.dtype)
        if code is None or (code in (_E4M3FN, _E5M2) and version < (1, 1)):
            raise BufferError(f"gfaas_model: DLPack {version[0]}.{version[1]} has no type for {self.dtype}")
        return self._lend(_Versioned if version >= (1, 0) else _Managed, code, min(version, (1, 1)))

    def _lend(self, kind, code, version=(0, 0)):
        """Returns the capsule. It points to memory outside Python, because a consumer may read
        it after Python has ended."""
        n = len(self.shape)
        address = _libc.malloc(ctypes.sizeof(kind) + 16 * max(n, 1))
        if not address:
            raise MemoryError
        sizes = (ctypes.c_int64 * (2 * n)).from_address(address + ctypes.sizeof(kind))
        stride = 1
        for i in reversed(range(n)):
            sizes[i], sizes[n + i] = self.shape[i], stride
            stride *= max(self.shape[i], 1)
        managed = kind.from_address(address)
        ctypes.memset(address, 0, ctypes.sizeof(kind))
        managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
        if kind is _Versioned:
            managed.major, managed.minor = version
            managed.flags = 0 if self._writable else _READ_ONLY
        managed.tensor = _DLTensor(
            self.data_ptr() if self.nbytes else None,
            *self.__dlpack_device__(),
            n,
            code,
            8 * _BYTES[self.dtype],
            1,
            ctypes.addressof(sizes),
            ctypes.addressof(sizes) + 8 * n,
            0,
        )
        _sweep()
        _lent[address] = kind, self
        capsule = _offered[address] = _python.PyCapsule_New(address, _NAMES[kind], None)
        return capsule


class _Bytes(Tensor):
    """A tensor as bytes, for a consumer that learns its type in another way."""

    __slots__ = ()

    def __init__(self, tensor):
        super().__init__(tensor._model, ("U8", tensor.shape, tensor._offset, tensor.nbytes))


def _torch(tensor):
    import torch

    views = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
    if tensor.dtype in views:
        return torch.from_dlpack(_Bytes(tensor)).view(getattr(torch, views[tensor.dtype]))
    return torch.from_dlpack(tensor)


def _cupy(tensor):
    import cupy

    return cupy.from_dlpack(tensor)


_FRAMEWORKS = {None: lambda tensor: tensor, "torch": _torch, "pt": _torch, "cupy": _cupy}


class safe_open:
    """Provides the tensors of a model one by one, as safetensors.safe_open does for a file.

    with safe_open("resnet50") as f:
        for name in f.keys():
            f.get_tensor(name)
    """

    def __init__(self, name, file=None, *, framework=None, timeout=0):
        if framework not in _FRAMEWORKS:
            raise ValueError(f"framework={framework!r}: expected None, 'torch' or 'cupy'")
        _check_name(name)
        self._as = _FRAMEWORKS[framework]
        self._opened = _Model(name, functools.partial(_get, name, file, timeout))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._opened = None

    @property
    def _model(self):
        if self._opened is None:
            raise Error("usage", "the model is closed")
        return self._opened

    def keys(self):
        """Returns the names of the tensors, in the order of the file."""
        return list(self._model.entries)

    def get_tensor(self, name):
        if name not in self._model.entries:
            raise Error("absent", f"the model has no tensor {name}")
        return self._as(Tensor(self._model, self._model.entries[name]))

    def metadata(self):
        """Returns the metadata of the file: a dict of strings."""
        return dict(self._model.metadata)

    @property
    def sha256(self):
        """The SHA-256 of the file, in hexadecimal digits; None for a model that was stored."""
        return self._model.sha256


def load(name, file=None, *, framework=None, timeout=0):
    """Returns all tensors of a model by name, as a state_dict.

    If the daemon does not have the model, the daemon loads it, from file if that is given,
    and load waits until that is done. timeout is the time in seconds to wait for room that
    models in use occupy. framework chooses the type of the tensors: None (Tensor), "torch"
    or "cupy". Raises Error.
    """
    with safe_open(name, file, framework=framework, timeout=timeout) as f:
        return {key: f.get_tensor(key) for key in f.keys()}


def store(name, tensors, *, metadata=None, public=False, timeout=0):
    """Allocates memory for a model that this process then writes, one tensor after the
    other. At the end of the block, the model becomes visible to all processes:

        with gfaas_model.store("resnet50", {"fc.weight": ("F32", (10, 4))}) as s:
            s["fc.weight"] = weights

    tensors has the dtype and the shape of each tensor by name; the tensors lie in the memory
    in this order. metadata is a dict of strings, as in a safetensors file. public lets other
    tenants use the model. timeout is the time in seconds to wait for room that models in use
    occupy. The memory counts against the memory limit of the process's slice until the
    commit. An exception in the block drops the model. Raises Error.

    s[NAME] = DATA copies a whole tensor from the host or the GPU, and returns when that is
    done. DATA can be a Tensor, or an object with the buffer protocol, DLPack or
    __cuda_array_interface__; it must be contiguous and have the dtype and the shape of the
    tensor. Bytes and arrays of uint8 are used as they are, and need only the right length.
    Threads may write different tensors at the same time.

    s[NAME] returns a Tensor that other libraries can write to until the commit. Their work
    must be in the current context, or must have finished before the commit.

    s.commit(framework=None) commits before the end of the block, and returns the tensors as
    load does. While a reference to them exists, the process holds the model. It fails with
    the code usage if a tensor was neither written nor requested by s[NAME]; you can then
    write it and commit again.

    s.touch() tells gfaas-modeld that the store continues; s[NAME] = DATA includes that. If
    gfaas-modeld receives nothing for 60 s, the store ends: all calls then fail with absent.
    """
    _check_name(name)
    import _gfaas_store

    return _gfaas_store.Store(name, tensors, metadata, public, timeout)
