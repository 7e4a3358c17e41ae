"""make_weights.py FILE [ROWS COLUMNS]: weights for the example, as safetensors:
weight[i][j] = (i + j) mod 7, bias[i] = i. 1000 x 2048 unless told otherwise."""

import array
import json
import os
import sys


def save(path, tensors):
    """tensors: (name, shape, values) of type F32."""
    header, at = {}, 0
    for name, shape, values in tensors:
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(values)]}
        at += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{path}.new", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, _, values in tensors:
            if sys.byteorder == "big":
                values.byteswap()
            f.write(values.tobytes())
    os.replace(f"{path}.new", path)


def main(path, rows=1000, columns=2048):
    rows, columns = int(rows), int(columns)
    weight = array.array("f", ((i + j) % 7 for i in range(rows) for j in range(columns)))
    save(path, [("weight", [rows, columns], weight), ("bias", [rows], array.array("f", range(rows)))])


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4):
        sys.exit(f"usage: {__doc__}")
    main(*sys.argv[1:])
