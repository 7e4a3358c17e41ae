#!/usr/bin/env python3
"""Runs the kernel graphs of this folder and compares the results with those of plain Python.

The daemon must be running (gfaas-kerneld --gpu sim), and gfaas_kernel must be in PYTHONPATH."""

import array
import os
import random

import gfaas_kernel as gk

HERE = os.path.dirname(os.path.abspath(__file__))


def numbers(n):
    return [random.uniform(-1, 1) for _ in range(n)]


def product(a, b, m, n, k):
    """Returns the product of two matrices, m x k by k x n."""
    return [sum(a[i * k + l] * b[l * n + j] for l in range(k)) for i in range(m) for j in range(n)]


def run(client, name, output, kind, **inputs):
    """Runs a graph, and returns an output as a list of numbers. An input is a type of array and a list."""
    for key, (typecode, values) in inputs.items():
        client.put(name + "/" + key, array.array(typecode, values))
    answer = client.run(gk.load(os.path.join(HERE, name + ".json")))
    result = list(array.array(kind, client.get(name + "/" + output)))
    print("%-8s run %.3f ms, total %.3f ms" % (name, answer["phases"]["run_ms"], answer["total_ms"]), end="")
    return result


def compare(got, want):
    print(", largest difference %.1e" % max(abs(a - b) for a, b in zip(got, want)))


def main():
    random.seed(1)
    client = gk.Client()
    m, n, k = 48, 40, 32
    a, b = numbers(m * k), numbers(k * n)
    compare(run(client, "sgemm", "C", "f", A=("f", a), B=("f", b)), product(a, b, m, n, k))
    compare(run(client, "dgemm", "C", "d", A=("d", a), B=("d", b)), product(a, b, m, n, k))
    ca = [complex(*numbers(2)) for _ in range(m * k)]
    cb = [complex(*numbers(2)) for _ in range(k * n)]
    parts = lambda values: [part for v in values for part in (v.real, v.imag)]
    compare(run(client, "cgemm", "C", "f", A=("f", parts(ca)), B=("f", parts(cb))), parts(product(ca, cb, m, n, k)))

    n = 100
    matrix = [100.0 if i == j else random.uniform(-1, 1) for i in range(n) for j in range(n)]
    solution = numbers(n)
    compare(run(client, "jacobi", "x", "f", A=("f", matrix), b=("f", product(matrix, solution, n, 1, n))), solution)

    queries, points = [numbers(3) for _ in range(20)], [numbers(3) for _ in range(300)]
    flat = lambda vectors: [v for vector in vectors for v in vector]
    distance = lambda p, q: sum((x - y) ** 2 for x, y in zip(p, q))
    want = [min(range(300), key=lambda j: distance(points[j], q)) for q in queries]
    compare(run(client, "nearest", "index", "I", queries=("f", flat(queries)), points=("f", flat(points))), want)


if __name__ == "__main__":
    main()
