"""``codecl data check`` and ``codecl data get``, the table of sources, and unpacking."""

import dataclasses
import hashlib
import io
import os
import re
import sys
import tarfile

import pytest

from codecl.benchmarks.data import sources
from codecl.benchmarks.data.download import unpack
from codecl.benchmarks.data.images import DamagedData
from codecl.benchmarks.data.sources import SOURCES, File, find_root
from codecl.cli import data as data_command
from codecl.cli.main import main
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


@pytest.mark.parametrize(("members", "words"), [
    ({"../out": b"1"}, "outside"), ({"a/../../out": b"1"}, "outside"),
    ({"a": (tarfile.SYMTYPE, "/etc")}, "no links"), ({"a": (tarfile.LNKTYPE, "/etc/passwd")}, "no links"),
    ({"a": (tarfile.CHRTYPE, "")}, "no links"), ({"a": (tarfile.FIFOTYPE, "")}, "no links"),
    ({"a": (tarfile.SYMTYPE, ".."), "a/out": b"1"}, "no links"),
])  # fmt: skip
def test_an_archive_reaches_nothing_else(tmp_path, members, words):
    root = tmp_path / "root"
    path = archive(tmp_path / "a.tar.gz", {"fine": b"1"} | members)
    with pytest.raises(DamagedData, match=rf"a\.tar\.gz .*{words}"):
        unpack(path, root)
    assert sorted(os.listdir(tmp_path)) == ["a.tar.gz", "root"]
    assert os.listdir(root) == []


def test_an_absolute_path_in_an_archive_is_below_the_target(tmp_path):
    out = tmp_path / "out"
    unpack(archive(tmp_path / "a.tar.gz", {str(out): b"1"}), tmp_path / "root")
    assert not out.exists()
    assert [path.read_bytes() for path in (tmp_path / "root").rglob("out")] == [b"1"]


def test_a_tar_that_inflates_to_gigabytes_is_not_inflated(tmp_path):
    path = archive(tmp_path / "a.tar.gz", {"a": bytes(50_000_000)})
    assert path.stat().st_size < 100_000
    with pytest.raises(DamagedData, match="holds more than 1,000,000 bytes"):
        unpack(path, tmp_path / "root", max_bytes=1_000_000)
    assert os.listdir(tmp_path / "root") == []


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


def test_check_lists_all(tmp_path, monkeypatch, capsys):
    assert main(["data", "check", "--data-dir", str(tmp_path)]) == 0
    assert rows(capsys.readouterr().out) == dict.fromkeys(SOURCES, "missing")

    files.cifar10(tmp_path)
    files.mnist(tmp_path / "MNIST" / "raw")
    files.svhn(tmp_path)
    (tmp_path / "SVHN" / "train_32x32.mat").write_bytes(b"")
    files.mnist(tmp_path / "FashionMNIST" / "raw")
    (tmp_path / "FashionMNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    monkeypatch.setattr("codecl.benchmarks.data.cifar.PUBLISHED", (20, 4))
    assert main(["data", "check", "--data-dir", str(tmp_path)]) == 2
    text = capsys.readouterr().out
    assert rows(text) == dict.fromkeys(SOURCES, "missing") | {"cifar10": "whole", "mnist": "subset", "svhn": "damaged"}
    assert re.search(r"^cifar10 +whole +20 \+ 4 +50,000 \+ 10,000$", text, re.M)
    assert re.search(r"^svhn: .*train_32x32\.mat", text, re.M)
    assert re.search(r"^fashion-mnist: .*t10k-labels-idx1-ubyte\.gz is not there", text, re.M)


@pytest.mark.parametrize(("names", "code"), [
    (["mnist"], 0), (["mnist", "cifar10"], 2), (["svhn"], 2), (["mnist", "svhn"], 2),
])  # fmt: skip
def test_the_exit_code_is_that_of_the_data_sets_named(tmp_path, capsys, names, code):
    files.mnist(tmp_path / "MNIST" / "raw")
    files.svhn(tmp_path)
    (tmp_path / "SVHN" / "train_32x32.mat").write_bytes(b"")
    assert main(["data", "check", "--data-dir", str(tmp_path), *names]) == code
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2 : 2 + len(names)]] == names


@pytest.mark.parametrize(("arguments", "words"), [
    (["check", "cifar-10"], "there is no data set 'cifar-10'. Did you mean 'cifar10'?"),
    (["get", "cifar-10"], "there is no data set 'cifar-10'. Did you mean 'cifar10'?"),
    (["check", "--data-dir", "nowhere"], "there is no folder nowhere. Say where the data sets are with --data-dir"),
    (["--data-dir", "nowhere", "check"], "there is no folder nowhere."),
])  # fmt: skip
def test_what_cannot_be_is_one_line_and_exit_code_2(capsys, arguments, words):
    assert main(["data", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"codecl: {words}")
    assert captured.err.count("\n") == 1


def test_a_data_set_that_a_library_is_missing_for_is_not_fetched_again(tmp_path, monkeypatch, capsys):
    files.notmnist(tmp_path, ["a.png"])
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert main(["data", "check", "notmnist", "--data-dir", str(tmp_path)]) == 2
    assert "unread" in capsys.readouterr().out
    assert main(["data", "get", "notmnist", "--data-dir", str(tmp_path)]) == 2
    assert "needs Pillow, which is not installed: pip install 'codecl[data]'" in capsys.readouterr().err


@pytest.fixture
def cifar_server(tmp_path, monkeypatch):
    """CIFAR-10 as an archive on this machine, of 24 images, which are all there is."""
    pytest.importorskip("pooch")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("codecl.benchmarks.data.cifar.PUBLISHED", (20, 4))
    files.cifar10(tmp_path / "made")
    folder = tmp_path / "made" / "cifar-10-batches-py"
    path = archive(tmp_path / "made.tar.gz", {f"{folder.name}/{p.name}": p.read_bytes() for p in folder.iterdir()})
    with serving(Behaviour(path.read_bytes())) as b:
        file = File((b.url,), "cifar-10.tar.gz", "md5:" + hashlib.md5(b.content).hexdigest(), unpack=True)
        source = sources.Source("cifar10", SOURCES["cifar10"].read, "20 + 4", (file,))
        monkeypatch.setitem(SOURCES, "cifar10", source)
        yield b


def get(root, *names):
    return main(["data", "get", "--data-dir", str(root), *names])


def test_get_downloads_checks_and_unpacks(tmp_path, cifar_server, capsys):
    root = tmp_path / "root"
    assert get(root, "cifar10") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{cifar_server.url} → {root / 'cifar-10.tar.gz'}",
        "cifar10: whole, 20 + 4.",
    ]
    assert os.listdir(root) == ["cifar-10-batches-py"]
    assert get(root, "cifar10") == 0
    assert capsys.readouterr().out == "cifar10: whole, 20 + 4, is there already.\n"
    assert len(cifar_server.asked) == 1


def test_get_replaces_damage_and_leaves_a_subset(tmp_path, cifar_server, monkeypatch, capsys):
    root = tmp_path / "root"
    for path in (tmp_path / "made" / "cifar-10-batches-py").iterdir():
        files.write(root / "cifar-10-batches-py" / path.name, b"damaged")
    assert get(root, "cifar10") == 0
    assert capsys.readouterr().out.endswith("cifar10: whole, 20 + 4.\n")
    monkeypatch.setattr("codecl.benchmarks.data.cifar.PUBLISHED", (50, 10))
    assert get(root, "cifar10") == 0
    expected = f"cifar10: subset, 20 + 4, is there already. Remove it from {root} to download the whole.\n"
    assert capsys.readouterr().out == expected


def test_get_says_what_failed_and_how_to_go_on(tmp_path, cifar_server, capsys):
    cifar_server.content = b"something else"
    root = tmp_path / "root"
    assert get(root, "cifar10") == 1
    out = capsys.readouterr().out
    assert "does not hold what was published" in out
    assert f"by other means: {cifar_server.url} to {root / 'cifar-10.tar.gz'}, unpacked there" in out
    assert os.listdir(root) == []


def test_get_tries_the_next_address(tmp_path, cifar_server, monkeypatch, capsys):
    source = SOURCES["cifar10"]
    file = dataclasses.replace(source.files[0], urls=("ftp://127.0.0.1/none", cifar_server.url))
    monkeypatch.setitem(SOURCES, "cifar10", dataclasses.replace(source, files=(file,)))
    assert get(tmp_path / "root", "cifar10") == 0
    assert "Trying the next address." in capsys.readouterr().out


def test_what_may_not_be_downloaded_is_explained(tmp_path, capsys):
    assert get(tmp_path, "miniimagenet") == 1
    out = capsys.readouterr().out
    assert "https://image-net.org/download.php" in out
    assert f"{tmp_path}/miniimagenet/<wnid>/*.jpg" in out


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
