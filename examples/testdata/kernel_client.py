"""Checks gfaas_kernel against a running daemon. Arguments: the daemon's TCP address, and the folder of examples/kernels."""

import array
import sys
import threading

import gfaas_kernel as gk

tcp, examples = sys.argv[1:]


def floats(data):
    return list(array.array("f", data))


def add(a, b, n, **output):
    """Returns a request for c = a + b with n floats."""
    r = gk.Request()
    m = r.module("blas", builtin="blas")
    r.launch(m, "vadd", r.input("a", key=a), r.input("b", key=b), r.output("c", 4 * n, **output), gk.i32(n))
    return r


def refused(code, call, *args, where=None):
    try:
        call(*args)
    except gk.Error as e:
        assert e.code == code and (where is None or e.where == where), "%r at %r, want %s at %s" % (e, e.where, code, where)
        return e
    raise AssertionError("no error, want " + code)


for client in gk.Client(), gk.Client(tcp, client="bob", timeout=60):
    client.put("vec/x", array.array("f", [1, 2, 3, 4]))
    assert client.size("vec/x") == 16 and floats(client.get("vec/x")) == [1, 2, 3, 4]
    assert [o["key"] for o in client.objects()] == ["vec/x"]
    answer = client.run(add("vec/x", "vec/x", 4, inline=True))
    assert floats(answer.output("c")) == [2, 4, 6, 8], answer
    assert answer["phases"]["run_ms"] >= 0 and answer["client"] == (client.client or "default")

    # Arguments of all kinds, and data in the request.
    r = gk.Request(iterations=2)
    r.module("m", ptx="// gfaas-sim: k op=saxpy_f32\n.version 7.0\n.target sm_50\n.visible .entry k(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n) { ret; }")
    r.input("x", data=array.array("f", [0, 1, 2]))
    r.inout("y", "vec/x", inline=True)
    r.launch("m", "k", gk.f32(10), ("x", 4), ("y", 8), b"\2\0\0\0", grid=(1, 1, 1), block=(32, 1, 1))
    assert floats(client.run(r).output("y")) == [1, 2, 23, 44]

    # The same code, stored.
    ptx = r.document["modules"].pop("m")["ptx"]
    client.put_module("lib/saxpy", ptx)
    assert client.modules() == [{"name": "lib/saxpy", "kind": "ptx", "size": len(ptx), "kernels": ["k"]}], client.modules()
    r.module("m", stored="lib/saxpy")
    assert floats(client.run(r).output("y")) == [1, 2, 43, 84]
    client.delete_module("lib/saxpy")
    refused("not-found", client.run, r, where="/modules/m/stored")
    refused("bad-request", client.put_module, "bad", b"\x7fELF")
    client.put("vec/x", array.array("f", [1, 2, 23, 44]))

    # Asynchronous runs that read results before they exist.
    runs = [client.submit(add("vec/x", "vec/x", 4, result=True))]
    for _ in range(5):
        runs.append(client.submit(add(runs[-1].result("c"), runs[-1].result("c"), 4, result=True)))
    assert runs[-1].wait()["outputs"]["c"]["key"] == runs[-1].result("c")
    assert floats(client.get(runs[-1].result("c"))) == [64 * v for v in (1, 2, 23, 44)]
    assert [r["id"] for r in client.runs()] == [r.id for r in runs] and runs[0].status()["state"] == "done"
    runs[0].delete()
    refused("not-found", client.run, add(runs[0].result("c"), "vec/x", 4, inline=True), where="/buffers/a/key")
    refused("not-found", runs[0].wait)

    # Errors.
    e = refused("not-found", client.run, add("vec/x", "vec/none", 4, inline=True), where="/buffers/b/key")
    assert e.status == 404
    refused("bad-request", client.run, "{}")
    refused("too-large", client.put, "big", bytes(65 << 20))
    bad = gk.Request()
    bad.module("m", ptx="// gfaas-sim: k op=fault\n.version 7.0\n.target sm_50\n.visible .entry k(.param .u32 code) { ret; }")
    bad.output("c", 16, result=True)
    bad.launch("m", "k", gk.u32(700), grid=(1, 1, 1), block=(1, 1, 1))
    failed = client.submit(bad)
    refused("failed-dependency", client.run, add(failed.result("c"), "vec/x", 4, inline=True))
    refused("fault", failed.wait, 60)

    # A file with modules in files.
    for key, n in ("dgemm/A", 48 * 32), ("dgemm/B", 32 * 40):
        client.put(key, array.array("d", [1] * n))
    client.run(gk.load(examples + "/dgemm.json"))
    assert set(array.array("d", client.get("dgemm/C"))) == {32.0}
    client.delete("dgemm/C")
    refused("not-found", client.get, "dgemm/C")
    clients = client.stats()["clients"]
    assert any(c["client"] == (client.client or "default") and c["done"] > 5 for c in clients), clients

# Threads share a client.
client, results = gk.Client(), []
threads = [threading.Thread(target=lambda: results.append(floats(client.run(add("vec/x", "vec/x", 4, inline=True)).output("c")))) for _ in range(8)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert results == [[2, 4, 46, 88]] * 8, results

refused("no-daemon", gk.Client("/nonexistent/kernel.sock").stats)
refused("no-daemon", gk.Client("127.0.0.1:1").stats)
