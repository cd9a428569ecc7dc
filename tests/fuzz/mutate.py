"""Mutations of bytes and of JSON and TOML, drawn from a ``random.Random``."""

import json
import re
import zlib

DEEP = "[" * 200 + "]" * 200
HOSTILE = (
    "null", "true", "-1", "0", "1", "0.5", "1e308", "-1e308", "NaN", "Infinity", str(2**62), str(2**63), "9" * 5000,
    '""', '"none"', '"nan"', '"\\ud800"', '"\\u0000\\u001b[31m"', '"=1+1|[a](//b)<script>"', '"../../x"',
    f'"{"a" * 5000}"', "[]", "{}", "[null]", "[1, [2]]", '{"a": {"b": []}}', DEEP, "[" * 5000,
)  # fmt: skip
"""Values of JSON that a record does not have; most of them are TOML, too."""
NUMBERS = (0, 1, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)


def mutate(draw, data, kind="binary"):
    """``data`` with a few changes; those of text also replace whole values and lines."""
    changes = {
        "binary": BYTES,
        "json": (*BYTES, change_json),
        "jsonl": (*BYTES, change_line),
        "toml": (*BYTES, change_toml),
    }
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        change = draw.choice(changes[kind]) if kind == "binary" or draw.random() < 0.3 else changes[kind][-1]
        data = bytearray(change(draw, data))
    return bytes(data)


def flip(draw, data):
    for _ in range(draw.choice((1, 1, 2, 8)) if data else 0):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return data


def cut(draw, data):
    return data[: draw.randint(0, len(data))]


def remove(draw, data):
    begin = draw.randint(0, len(data))
    del data[begin : begin + draw.choice((1, 4, 8, 64, 512))]
    return data


def repeat(draw, data):
    begin = draw.randint(0, len(data))
    piece = data[begin : begin + draw.choice((1, 4, 16, 256))]
    data[begin:begin] = piece * draw.choice((1, 2, 50))
    return data


def move(draw, data):
    begin, end = draw.randint(0, len(data)), draw.randint(0, len(data))
    piece = data[begin : begin + draw.choice((1, 4, 16, 256))]
    data[end : end + len(piece)] = piece
    return data


def number(draw, data):
    """A number of 1 to 8 bytes in either order, written over what is there: sizes, counts, offsets."""
    width, value = draw.choice((1, 2, 4, 8)), draw.choice(NUMBERS)
    begin = draw.randint(0, len(data)) if draw.random() < 0.5 else draw.randint(0, min(200, len(data)))
    piece = (value % 2 ** (8 * width)).to_bytes(width, draw.choice(("little", "big")))
    data[begin : begin + width] = piece
    return data


def noise(draw, data):
    begin = draw.randint(0, len(data))
    data[begin:begin] = draw.randbytes(draw.choice((1, 3, 16, 100)))
    return data


BYTES = (flip, cut, remove, repeat, move, number, noise)


def change_json(draw, data):
    """Another value, or none, somewhere in a JSON document; in what is none, other bytes."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return flip(draw, data)
    holder, key, node = None, None, tree
    while isinstance(node, dict | list) and node and (holder is None or draw.random() < 0.75):
        key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
        holder, node = node, node[key]
    if holder is None:
        return draw.choice(HOSTILE).encode()
    if draw.random() < 0.15:
        del holder[key]
    elif draw.random() < 0.15 and isinstance(holder, list):
        holder *= draw.choice((2, 20))
    else:
        mark = "3f9a1c5e-here"
        holder[key] = mark
        return json.dumps(tree).replace(f'"{mark}"', draw.choice(HOSTILE)).encode()
    return json.dumps(tree).encode()


def change_line(draw, data):
    """Another value in a line of a log, with the right checksum, a wrong one or none; or lines in another order."""
    lines = bytes(data).split(b"\n")
    i = draw.randrange(len(lines))
    if draw.random() < 0.2:
        lines.insert(draw.randrange(len(lines)), lines[i])
        return b"\n".join(lines)
    plain = re.sub(rb', "crc": "\w+"\}$', b"}", lines[i])
    changed = bytes(change_json(draw, bytearray(plain)))
    if draw.random() < 0.5 and changed.endswith(b"}"):
        changed = changed[:-1] + b', "crc": "%08x"}' % zlib.crc32(changed)
    lines[i] = changed
    return b"\n".join(lines)


def change_toml(draw, data):
    """Another value, name or table in a TOML document, or a line that comes twice or not at all."""
    lines = bytes(data).decode("utf-8", "replace").split("\n")
    i = draw.randrange(len(lines))
    name, equals, _ = lines[i].partition(" = ")
    action = draw.random()
    if equals and action < 0.7:
        lines[i] = f"{name} = {draw.choice(HOSTILE)}"
    elif action < 0.8:
        lines.insert(draw.randrange(len(lines)), lines[i])
    elif action < 0.9:
        del lines[i]
    else:
        lines[i] = draw.choice(
            ("[training]", "[a.b]", f"[a{'.a' * 500}]", "x = 1", f"x = {DEEP}", "[[settings]]", "data = 1")
        )
    return "\n".join(lines).encode()
