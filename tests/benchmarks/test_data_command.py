"""``codecl data check`` and ``codecl data get``, the table of sources, and unpacking."""

import gzip
import hashlib
import io
import os
import re
import tarfile

import pytest

from codecl.benchmarks.data import sources
from codecl.benchmarks.data.images import DamagedData
from codecl.benchmarks.data.sources import SOURCES, File, find_root
from codecl.benchmarks.data.unpack import unpack
from codecl.cli import data as data_command
from codecl.errors import UsageError
from tests.benchmarks import files
from tests.benchmarks.server import Behaviour, serving


def archive(path, members):
    """``members``: name to content, or to (type, target of a link)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                tar.addfile(member)
    return path


def test_an_archive_is_unpacked_over_what_is_there(tmp_path):
    root = tmp_path / "root"
    files.write(root / "a" / "x", b"damaged")
    unpack(archive(tmp_path / "a.tar.gz", {"a/x": b"1", "a/b/y": b"22", "./a/z": b""}), root)
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert found == {"a/x": b"1", "a/b/y": b"22", "a/z": b""}
    assert os.listdir(root) == ["a"]


def test_a_gz_is_unpacked_beside_itself(tmp_path):
    path = files.write(tmp_path / "x-ubyte.gz", gzip.compress(b"abc"))
    unpack(path, tmp_path)
    assert (tmp_path / "x-ubyte").read_bytes() == b"abc"
    path.write_bytes(gzip.compress(bytes(2_000_000)))
    with pytest.raises(DamagedData, match="more than 1,000,000 bytes"):
        unpack(path, tmp_path, max_bytes=1_000_000)
    assert (tmp_path / "x-ubyte").read_bytes() == b"abc"


@pytest.mark.parametrize("members", [
    {"../out": b"1"}, {"/tmp/out": b"1"}, {"a/../../out": b"1"}, {"a\\..\\out": b"1"},
    {"a": (tarfile.SYMTYPE, "/etc")}, {"a": (tarfile.LNKTYPE, "/etc/passwd")}, {"a": (tarfile.CHRTYPE, "")},
    {"a": (tarfile.SYMTYPE, ".."), "a/out": b"1"}, {"a": (tarfile.FIFOTYPE, "")},
])  # fmt: skip
def test_an_archive_reaches_nothing_else(tmp_path, members):
    root = tmp_path / "root"
    path = archive(tmp_path / "a.tar.gz", {"fine": b"1"} | members)
    with pytest.raises(DamagedData, match="expected files and folders below it, and no links"):
        unpack(path, root)
    assert sorted(os.listdir(tmp_path)) == ["a.tar.gz", "root"]
    assert os.listdir(root) == []


def test_an_archive_is_bounded_and_damage_is_named(tmp_path):
    path = archive(tmp_path / "a.tar.gz", {str(i): bytes(1000) for i in range(20)})
    for bounds in ({"max_bytes": 19_999}, {"max_files": 19}):
        with pytest.raises(DamagedData, match="holds more than"):
            unpack(path, tmp_path / "root", **bounds)
    whole = path.read_bytes()
    for end in (0, 5, 40, len(whole) // 2, len(whole) - 4):
        path.write_bytes(whole[:end])
        with pytest.raises(DamagedData, match=r"a\.tar\.gz"):
            unpack(path, tmp_path / "root")
    assert os.listdir(tmp_path / "root") == []


def test_where_the_data_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("CODECL_DATA", raising=False)
    assert str(find_root(None)) == "data"
    monkeypatch.setenv("CODECL_DATA", str(tmp_path))
    assert find_root(None) == tmp_path
    assert str(find_root("here")) == "here"
    monkeypatch.setenv("CODECL_DATA", "")
    assert str(find_root(None)) == "data"


def test_the_table_of_sources():
    assert list(SOURCES) == ["cifar100", "cifar10", "mnist", "fashion-mnist", "svhn", "notmnist", "miniimagenet"]
    for source in SOURCES.values():
        assert bool(source.files) != bool(source.how)
        for file in source.files:
            assert all(url.startswith(("https://", "http://")) for url in file.urls)
            assert file.checksum is None or re.fullmatch(r"md5:[0-9a-f]{32}", file.checksum)
            assert file.checksum or file.size
            assert not os.path.isabs(file.target)


def rows(text):
    return {line.split()[0]: line.split()[1] for line in text.splitlines()[2:9]}


def test_check_lists_all(tmp_path, monkeypatch):
    out = io.StringIO()
    assert data_command.check(tmp_path, out) == 0
    assert rows(out.getvalue()) == dict.fromkeys(SOURCES, "missing")

    files.cifar10(tmp_path)
    files.mnist(tmp_path / "MNIST" / "raw")
    files.svhn(tmp_path)
    (tmp_path / "SVHN" / "train_32x32.mat").write_bytes(b"")
    files.mnist(tmp_path / "FashionMNIST" / "raw")
    (tmp_path / "FashionMNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    monkeypatch.setattr("codecl.benchmarks.data.cifar.PUBLISHED", (20, 4))
    out = io.StringIO()
    assert data_command.check(tmp_path, out) == 0
    text = out.getvalue()
    assert rows(text) == dict.fromkeys(SOURCES, "missing") | {"cifar10": "whole", "mnist": "subset", "svhn": "damaged"}
    assert re.search(r"^cifar10 +whole +20 \+ 4 +50,000 \+ 10,000$", text, re.M)
    assert re.search(r"^svhn: .*train_32x32\.mat", text, re.M)
    assert re.search(r"^fashion-mnist: .*t10k-labels-idx1-ubyte\.gz is not there", text, re.M)


@pytest.fixture
def cifar_server(tmp_path, monkeypatch):
    """CIFAR-10 as an archive on this machine, of 24 images, which are all there is."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("codecl.benchmarks.data.cifar.PUBLISHED", (20, 4))
    files.cifar10(tmp_path / "made")
    folder = tmp_path / "made" / "cifar-10-batches-py"
    path = archive(tmp_path / "made.tar.gz", {f"{folder.name}/{p.name}": p.read_bytes() for p in folder.iterdir()})
    with serving(Behaviour(path.read_bytes())) as b:
        file = File((b.url,), "cifar-10.tar.gz", "md5:" + hashlib.md5(b.content).hexdigest(), unpack=True)
        source = sources.Source("cifar10", "CIFAR-10", SOURCES["cifar10"].read, "20 + 4", (file,))
        monkeypatch.setitem(SOURCES, "cifar10", source)
        yield b


def test_get_downloads_checks_and_unpacks(tmp_path, cifar_server):
    root, out, told = tmp_path / "root", io.StringIO(), []
    assert data_command.get(root, ["cifar10"], lambda *event: told.append(event), out) == 0
    assert out.getvalue().splitlines() == [
        f"{cifar_server.url} → {root / 'cifar-10.tar.gz'}",
        "cifar10: whole, 20 + 4.",
    ]
    assert os.listdir(root) == ["cifar-10-batches-py"]
    assert told
    out = io.StringIO()
    assert data_command.get(root, ["cifar10"], None, out) == 0
    assert out.getvalue() == "cifar10: whole, 20 + 4, is there already.\n"
    assert len(cifar_server.asked) == 1


def test_get_replaces_damage_and_leaves_a_subset(tmp_path, cifar_server, monkeypatch):
    root, out = tmp_path / "root", io.StringIO()
    files.write(root / "cifar-10-batches-py" / "data_batch_3", b"damaged")
    for name in ("data_batch_1", "data_batch_2", "data_batch_4", "data_batch_5", "test_batch"):
        files.write(root / "cifar-10-batches-py" / name, b"damaged")
    assert data_command.get(root, ["cifar10"], None, out) == 0
    assert out.getvalue().endswith("cifar10: whole, 20 + 4.\n")
    monkeypatch.setattr("codecl.benchmarks.data.cifar.PUBLISHED", (50, 10))
    out = io.StringIO()
    assert data_command.get(root, ["cifar10"], None, out) == 0
    assert (
        out.getvalue() == f"cifar10: subset, 20 + 4, is there already. Remove it from {root} to download the whole.\n"
    )


def test_get_says_what_failed_and_how_to_go_on(tmp_path, cifar_server):
    cifar_server.content = b"something else"
    root, out = tmp_path / "root", io.StringIO()
    assert data_command.get(root, ["cifar10"], None, out) == 1
    assert "does not hold what was published" in out.getvalue()
    assert f"by other means: {cifar_server.url} to {root / 'cifar-10.tar.gz'}, unpacked there" in out.getvalue()
    assert os.listdir(root) == []


def test_get_tries_the_next_address(tmp_path, cifar_server, monkeypatch):
    import dataclasses

    source = SOURCES["cifar10"]
    file = dataclasses.replace(source.files[0], urls=("ftp://127.0.0.1/none", cifar_server.url))
    monkeypatch.setitem(SOURCES, "cifar10", dataclasses.replace(source, files=(file,)))
    out = io.StringIO()
    assert data_command.get(tmp_path / "root", ["cifar10"], None, out) == 0
    assert "Trying the next address." in out.getvalue()


def test_what_may_not_be_downloaded_is_explained(tmp_path):
    out = io.StringIO()
    assert data_command.get(tmp_path, ["miniimagenet"], None, out) == 1
    assert "https://image-net.org/download.php" in out.getvalue()
    assert f"{tmp_path}/miniimagenet/<wnid>/*.jpg" in out.getvalue()
    with pytest.raises(UsageError, match=r"there is no data set 'cifar-10'\. Did you mean 'cifar10'"):
        data_command.get(tmp_path, ["cifar-10"], None, out)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_progress_bar():
    out = Terminal()
    bar = data_command.ProgressBar(out)
    bar("a.gz", 500_000, 1_000_000)
    bar("a.gz", 500_001, 1_000_000)  # too soon
    bar("a.gz", 1_000_000, 1_000_000)
    half, whole = out.getvalue().split("\r\x1b[K")[1:]
    assert half == f"a.gz [{'█' * 12}{'·' * 12}]  50 % of 1 MB"
    assert whole == f"a.gz [{'█' * 24}] 100 % of 1 MB\n"
    assert data_command.ProgressBar.line("a", 2000, None) == "a 2 kB"
    quiet = io.StringIO()
    data_command.ProgressBar(quiet)("a", 1, 1)
    assert quiet.getvalue() == ""
