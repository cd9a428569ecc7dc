"""What was found in the past, small enough to be made anew: cases by target, each with a name."""

import json
import struct
import zlib


def findings(targets):
    """``{target: {name: bytes}}``; ``targets`` are those of ``make_targets``, whose whole files some are changes of."""
    result = json.loads(targets["result"].seeds[0])
    log = targets["log"].seeds[0]
    recipe = targets["recipe"].seeds[0]
    seconds = dict.fromkeys(result["seconds"], 1e308)
    records = {
        "deep": b"[" * 100_000,
        "deep table": b'{"a":' * 100_000,
        "seconds of 1e308": json.dumps(result | {"seconds": seconds}).encode(),
        "epochs of 10^400": json.dumps(result | {"epochs": [10**400, 1, 1]}).encode(),
        "5000 digits": b'{"seed": ' + b"9" * 5000 + b"}",
        "lone surrogate": json.dumps(result | {"data": "\ud800"}).encode(),
        "accuracy of text": json.dumps(result | {"accuracy": [["a"]]}).encode(),
        "another ACC": json.dumps(result | {"acc": 99.99}).encode(),
        "no seconds": json.dumps({key: value for key, value in result.items() if key != "seconds"}).encode(),
    }
    logs = {
        "not UTF-8": log + b'{"event": "notice", "text": "\xe9"}\n' + log,
        "torn": log[:-20] + log,
        "deep": log + b"[" * 100_000 + b"\n",
        "no name": log.replace(b'"name"', b'"nome"'),
    }
    recipes = {
        "deep": b"a = " + b"[" * 100_000,
        "deep key": b"[a" + b".a" * 100_000 + b"]",
        "5000 digits": b"seed = " + b"9" * 5000,
        "whole alpha": b'method = "dfgp"\n[settings]\nalpha = 20\n',
        "closed of numbers": b'method = "api"\n[settings]\nclosed = [1]\n',
        "lr of 1e308": b'method = "finetune"\n[training]\nlr = 1e308\n',
        "not UTF-8": recipe + b"# \xff",
    }
    return {
        "result": records,
        "report result.json": records,
        "inspect result.json": records,
        "log": logs,
        "report log.jsonl": logs,
        "inspect log.jsonl": logs,
        "recipe": recipes,
        "report recipe.toml": recipes,
        "cifar100": {"bytes again and again": pickle_bomb()},
        "folder": {"EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "many pixels": vast_png(13_300)},
    }


def pickle_bomb():
    """A text of 1.2 MB that is memoised once and encoded 20,000 times."""

    def text(value):
        return b"X" + struct.pack("<I", len(value)) + value

    once = b"c_codecs\nencode\nq\x00" + text(b"A" * 1_200_000) + b"q\x01" + text(b"latin1") + b"q\x02"
    return b"\x80\x02" + once + b"](" + b"h\x00h\x01h\x02\x86R" * 20_000 + b"e."


def vast_png(side):
    """A PNG of a few kilobytes that has ``side``² pixels."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((side // 8 + 1) * side))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
