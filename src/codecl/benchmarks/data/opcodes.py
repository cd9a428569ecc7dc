"""The instructions of pickle that only make data, for the machine in ``machine``. What is not here is refused.

Left out on purpose: INST, OBJ, NEWOBJ, NEWOBJ_EX (make objects), PERSID, BINPERSID, EXT1/2/4 (look things up
elsewhere), NEXT_BUFFER, READONLY_BUFFER (data outside of the file), and the sets, which no data set uses and which
hash their items.
"""

from __future__ import annotations

import codecs
import struct
import warnings
from collections.abc import Callable
from typing import Any

from codecl.benchmarks.data.machine import Machine, Refused

Instruction = Callable[[Machine], None]


def run(data: bytes) -> Any:
    """The one value that a pickle leaves behind."""
    machine = Machine(data)
    while (code := machine.data[machine.at]) != ord("."):
        machine.at += 1
        if code not in OPCODES:
            raise Refused(f"it asks for more than data (instruction 0x{code:02x})")
        OPCODES[code](machine)
    if machine.marks or len(machine.stack) != 1:
        raise Refused("it does not end with one value")
    return machine.stack[0]


def _value(make: Callable[[Machine], Any]) -> Instruction:
    return lambda machine: machine.push(make(machine))


def _bytes(form: str) -> Instruction:
    return _value(lambda m: m.take(m.number(form)))


def _unicode(form: str) -> Instruction:
    return _value(lambda m: m.take(m.number(form)).decode("utf-8", "surrogatepass"))


def _long(form: str) -> Instruction:
    return _value(lambda m: int.from_bytes(m.take(m.number(form)), "little", signed=True))


def _int(m: Machine) -> int | bool:
    text = m.line()
    return text == b"01" if text in (b"00", b"01") else int(text)


def _string(m: Machine) -> bytes:
    """A quoted literal of Python 2."""
    text = m.line()
    if len(text) < 2 or text[:1] not in (b"'", b'"') or text[-1:] != text[:1]:
        raise Refused("a text without its quotes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return codecs.escape_decode(text[1:-1])[0]


def _append(m: Machine) -> None:
    value = m.pop()
    m.top(list).append(value)


def _appends(m: Machine) -> None:
    items = m.pop_mark()
    m.top(list).extend(items)


def _set_item(m: Machine) -> None:
    value, key = m.pop(), m.pop()
    m.top(dict).update(m.pairs([key, value]))


def _set_items(m: Machine) -> None:
    items = m.pop_mark()
    m.top(dict).update(m.pairs(items))


def _tuple(n: int) -> Instruction:
    return _value(lambda m: tuple([m.pop() for _ in range(n)][::-1]))


def _put(index: Callable[[Machine], int]) -> Instruction:
    def put(m: Machine) -> None:
        m.memo[index(m)] = m.stack[-1]

    return put


def _get(index: Callable[[Machine], int]) -> Instruction:
    return _value(lambda m: m.memo[index(m)])


def _stack_global(m: Machine) -> None:
    name, module = m.pop(), m.pop()
    m.name(str(module) if isinstance(module, str) else "?", str(name) if isinstance(name, str) else "?")


OPCODES: dict[int, Instruction] = {
    0x80: lambda m: m.skip(1),  # PROTO
    0x95: lambda m: m.skip(8),  # FRAME
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("0"): lambda m: m.drop([m.pop()]),
    ord("1"): lambda m: m.drop(m.pop_mark()),
    ord("2"): _value(lambda m: m.stack[-1]),
    ord("N"): _value(lambda m: None),
    0x88: _value(lambda m: True),
    0x89: _value(lambda m: False),
    ord("I"): _value(_int),
    ord("J"): _value(lambda m: m.number("<i")),
    ord("K"): _value(lambda m: m.number("<B")),
    ord("M"): _value(lambda m: m.number("<H")),
    ord("L"): _value(lambda m: int(m.line().rstrip(b"L"))),
    0x8A: _long("<B"),
    0x8B: _long("<I"),
    ord("F"): _value(lambda m: float(m.line())),
    ord("G"): _value(lambda m: struct.unpack(">d", m.take(8))[0]),
    ord("S"): _value(_string),
    ord("T"): _bytes("<I"),
    ord("U"): _bytes("<B"),
    ord("V"): _value(lambda m: m.line().decode("raw-unicode-escape")),
    ord("X"): _unicode("<I"),
    0x8C: _unicode("<B"),
    0x8D: _unicode("<Q"),
    ord("B"): _bytes("<I"),
    ord("C"): _bytes("<B"),
    0x8E: _bytes("<Q"),
    0x96: _bytes("<Q"),  # BYTEARRAY8: bytes serve as well
    ord("]"): _value(lambda m: []),
    ord("a"): _append,
    ord("e"): _appends,
    ord("l"): _value(lambda m: m.pop_mark()),
    ord(")"): _value(lambda m: ()),
    ord("t"): _value(lambda m: tuple(m.pop_mark())),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("}"): _value(lambda m: {}),
    ord("d"): _value(lambda m: m.pairs(m.pop_mark())),
    ord("s"): _set_item,
    ord("u"): _set_items,
    ord("g"): _get(lambda m: int(m.line())),
    ord("h"): _get(lambda m: m.number("<B")),
    ord("j"): _get(lambda m: m.number("<I")),
    ord("p"): _put(lambda m: int(m.line())),
    ord("q"): _put(lambda m: m.number("<B")),
    ord("r"): _put(lambda m: m.number("<I")),
    0x94: _put(lambda m: len(m.memo)),  # MEMOIZE
    ord("c"): lambda m: m.name(m.line().decode("latin1"), m.line().decode("latin1")),
    0x93: _stack_global,
    ord("R"): lambda m: m.call(),
    ord("b"): lambda m: m.build(),
}
