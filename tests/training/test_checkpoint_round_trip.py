"""Whatever a checkpoint may hold comes back bit by bit, and anything else is refused with its place."""

import math
import os
import re
import struct
import zipfile
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from codecl.training import checkpoint
from codecl.training.checkpoint import load, save
from tests.training.checkpoints import COMPLEX_HALF, SMALL, identical

pytestmark = COMPLEX_HALF

WHOLE_BYTES = re.compile(r"torch\.(bool|u?int(?:8|16|32|64)|b?float16|float(?:32|64|8_\w+)|complex(?:32|64|128))")
DTYPES = {m[1]: d for d in vars(torch).values() if isinstance(d, torch.dtype) and (m := WHOLE_BYTES.fullmatch(str(d)))}


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits of any dtype in any shape, plain, transposed, strided or expanded."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = math.prod(shape) * dtype.itemsize
    data = draw(st.binary(min_size=count, max_size=count))
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    tensor = flat.view(dtype).reshape(shape)
    match draw(st.sampled_from(["plain", "transposed", "strided", "expanded"])):
        case "transposed":
            return tensor.permute(tuple(reversed(range(tensor.dim()))))
        case "strided" if tensor.dim():
            return tensor[::2]
        case "expanded":
            return tensor.expand(2, *shape)
    return tensor


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=4)
keys = st.text(max_size=4) | st.integers(-9, 9)
trees = st.recursive(
    scalars | tensors(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(trees)
def test_trees_come_back_bit_by_bit(folder, tree):
    save(folder / "tree", tree)
    assert identical(tree, load(folder / "tree"))


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype(folder, name):
    everything = torch.arange(256, dtype=torch.uint8).repeat(16)
    tensor = (everything & 1 if name == "bool" else everything).view(DTYPES[name]).reshape(2, -1)
    tree = [
        tensor,
        tensor[0, 0],
        tensor.mT,
        tensor[:, ::3],
        tensor[0, ::3],
        tensor[:0],
        tensor[0, :2:2],
        tensor[0, :0:2],
    ]
    save(folder / "dtype", tree)
    assert identical(tree, load(folder / "dtype"))


def test_infinities_every_nan_and_long_integers(folder):
    bits = ["7ff0000000000000", "fff0000000000000", "7ff8000000000000", "fff8000000000000", "7ff8000000000abc"]
    floats = [struct.unpack(">d", bytes.fromhex(text))[0] for text in bits]
    tree = [*floats, 2**63, -(2**63), checkpoint.INTEGER - 1, 1 - checkpoint.INTEGER]
    save(folder / "numbers", tree)
    assert identical(tree, load(folder / "numbers"))


def test_the_dtypes_are_those_with_whole_bytes():
    assert {"bool", "bfloat16", "float64", "uint64", "complex32", "float8_e5m2"} <= DTYPES.keys()


@pytest.mark.parametrize("count", [2**20 - 1, 3 * 2**20 + 5])
def test_tensors_of_megabytes(folder, count):
    tensor = torch.randint(256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))
    save(folder / "large", [tensor, torch.ones(1)])
    assert identical([tensor, torch.ones(1)], load(folder / "large"))


@pytest.mark.parametrize("view", [lambda t: t[:2], lambda t: t[:, 0], lambda t: t[::1000], lambda t: t[:0]])
def test_a_view_is_stored_without_the_memory_around_it(folder, view):
    large = torch.arange(2e6).view(1000, 2000)
    save(folder / "view", view(large))
    assert os.path.getsize(folder / "view") < 20_000
    assert identical(view(large), load(folder / "view"))


def test_any_torch_reads_it(folder):
    save(folder / "file", SMALL)
    assert identical(SMALL, torch.load(folder / "file", weights_only=True))
    with zipfile.ZipFile(folder / "file") as archive:
        assert archive.testzip() is None


def test_loaded_tensors_are_ordinary(folder):
    """Writable, aligned as torch aligns, each with memory of its own, and not tied to the graph."""
    tied = nn.Parameter(torch.ones(3))
    save(folder / "tied", [tied, tied, tied.detach()[1:]])
    a, b, c = load(folder / "tied")
    a += 1
    assert (a.tolist(), b.tolist(), c.tolist()) == ([2.0] * 3, [1.0] * 3, [1.0] * 2)
    assert all(type(t) is Tensor and not t.requires_grad and t.data_ptr() % 64 == 0 for t in (a, b, c))


def test_views_that_are_only_a_flag_are_written_out(folder):
    z = torch.tensor([1 + 2j, 3 - 4j])
    save(folder / "conj", [z.conj(), z.conj().imag])
    conj, negative = load(folder / "conj")
    assert conj.tolist() == [1 - 2j, 3 + 4j]
    assert negative.tolist() == [-2.0, 4.0]


def test_state_dicts_of_modules_and_optimizers(folder):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "size": torch.Size([2, 3])}
    assert isinstance(tree["model"], OrderedDict)
    save(folder / "states", tree)
    state = load(folder / "states")
    assert (type(state["size"]), state["size"]) == (tuple, (2, 3))
    assert type(state["model"]) is dict
    assert list(state["optimizer"]["state"]) == [0, 1]
    optimizer.load_state_dict(state["optimizer"])
    model.load_state_dict(state["model"])


def test_the_default_device_does_not_matter(folder):
    save(folder / "device", torch.ones(2))
    with torch.device("meta"):
        save(folder / "device", load(folder / "device"))
        assert load(folder / "device").tolist() == [1.0, 1.0]


def test_paths_may_be_strings_and_must_exist(tmp_path):
    save(str(tmp_path / "file"), 1)
    assert load(str(tmp_path / "file")) == 1
    with pytest.raises(FileNotFoundError, match="missing"):
        load(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="missing"):
        save(tmp_path / "missing" / "file", 1)


@pytest.mark.parametrize(
    ("node", "place"),
    [
        ({1, 2}, r"tree\['a'\]\[1\]\[2\] is builtins.set"),
        (torch.float32, r"tree\['a'\]\[1\]\[2\] is torch.dtype"),
        (1j, "builtins.complex"),
        (b"x", "builtins.bytes"),
        (torch.device("cpu"), "torch.device"),
        ({(1, 2): 3}, r"tree\['a'\]\[1\]\[2\] has the key \(1, 2\), a tuple"),
        ({True: 1}, "has the key True, a bool"),
        (torch.eye(2).to_sparse(), r"tree\['a'\]\[1\]\[2\] is Tensor\(torch.float32, torch.sparse_coo"),
        (torch.empty(2, device="meta"), "meta"),
        (nn.UninitializedParameter(), "UninitializedParameter"),
        (10**1000, r"tree\['a'\]\[1\]\[2\] is an integer of 3322 bits"),
        ({10**1000: 1}, "has the key 1000"),
    ],
)
def test_anything_else_is_refused_with_its_place(tmp_path, node, place):
    with pytest.raises(TypeError, match=place):
        save(tmp_path / "bad", {"a": (0, {2: node})})
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_contains_itself_is_refused(tmp_path):
    tree: list[object] = []
    tree.append(tree)
    with pytest.raises(TypeError, match=r"tree\[0\].*contain itself"):
        save(tmp_path / "bad", tree)


def test_the_deepest_tree_is_loaded(folder):
    tree: object = 1
    for _ in range(checkpoint.DEPTH):
        tree = {"a": tree}
    save(folder / "deep", tree)
    assert load(folder / "deep") == tree
    with pytest.raises(TypeError, match="nested more than"):
        save(folder / "deep", [tree])
