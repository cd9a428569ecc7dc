"""No reader of picture files lets a damaged or hostile one do anything but be named."""

import contextlib
import struct
import tracemalloc
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codecl.benchmarks.data import miniimagenet as mini
from codecl.benchmarks.data import notmnist
from codecl.benchmarks.data.folder import ImageFolder
from codecl.benchmarks.data.images import DamagedData
from tests.benchmarks import files

pytest.importorskip("PIL")
drawn = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)


@drawn
@given(st.data())
def test_a_png_that_is_cut_off_is_named(tmp_path, data):
    if not (tmp_path / "notMNIST_small").exists():
        files.notmnist(tmp_path, ["a.png"])
    path = tmp_path / "notMNIST_small" / "F" / "cut.png"
    whole = files.picture(path, files.pixels(28, 28)).read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 20))])
    with pytest.raises(DamagedData, match=r"F/cut\.png"):
        notmnist.notmnist(tmp_path)


READERS = {
    "folder": (lambda root: ImageFolder(root / "folder", size=8)[0], "folder/cat/0.png"),
    "miniimagenet": (mini.miniimagenet, "miniimagenet/n00000001/0.png"),
    "notmnist": (notmnist.notmnist, "notMNIST_small/A/0.png"),
}
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture(params=READERS)
def read_picture_at(request, tmp_path):
    """Reads a data set of one kind whose only, or one, picture is put at the path."""
    read, name = READERS[request.param]
    if request.param == "notmnist":
        files.notmnist(tmp_path, ["1.png"])
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return lambda: read(tmp_path), path


def test_no_reader_lets_pillow_try_other_formats(read_picture_at, monkeypatch):
    from PIL import EpsImagePlugin, Image

    read, path = read_picture_at
    Image.init()  # all formats, or the EPS would not be known
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    path.write_bytes(EPS)
    with pytest.raises(DamagedData, match=r"0\.png"):
        read()


def png_header(width, height):
    """A PNG whose header promises more than follows."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize("side", [7_100, 13_300, 13_400, 60_000])
def test_a_picture_of_too_many_pixels_is_refused_from_its_header(read_picture_at, side):
    read, path = read_picture_at
    row = zlib.compress(bytes(200_000), 9)
    data = struct.pack(">I", len(row)) + b"IDAT" + row + struct.pack(">I", zlib.crc32(b"IDAT" + row))
    path.write_bytes(png_header(side, side) + data)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedData, match=r"0\.png") as refused:
            read()
        assert "pixels" in str(refused.value) or "grey PNGs of 28×28" in str(refused.value)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("error", [NotImplementedError("a mode"), MemoryError(), SyntaxError("broken"), KeyError("x")])
def test_no_error_of_pillow_escapes(read_picture_at, monkeypatch, error):
    from PIL import Image

    read, path = read_picture_at
    files.picture(path, files.pixels(28, 28))

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(DamagedData, match=r"cannot be read as an image|none can be read"):
        read()


@drawn
@given(st.data())
def test_a_picture_changed_anywhere_is_read_or_refused(tmp_path, data):
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "BMP", "GIF", "WEBP"]))
    path = tmp_path / "cat" / "0.png"
    whole = bytearray(files.picture(path, files.pixels(12, 12, 3), format=kind).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)
    with contextlib.suppress(DamagedData):
        image, _ = ImageFolder(tmp_path, size=8)[0]
        assert image.shape == (3, 8, 8)
