"""Downloads from a server that stalls, cuts off and lies: the file is right, or it is not there."""

import hashlib
import sys

import pytest

from codecl.benchmarks.data.download import DownloadFailed, fetch
from tests.benchmarks.files import pixels, write
from tests.benchmarks.server import Behaviour, serving

pytest.importorskip("pooch")
CONTENT = pixels(300_000).tobytes()
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def get(b, tmp_path, checksum=MD5, **options):
    target = tmp_path / "data" / "file.bin"
    return fetch(b.url, target, checksum, **({"timeout": 0.4, "pause": 0.0, "attempts": 3} | options))


def left(tmp_path):
    return sorted(path.name for path in (tmp_path / "data").iterdir())


def test_a_file_comes_and_its_progress_is_told(tmp_path):
    told = []
    with serving(Behaviour(CONTENT)) as b:
        path = get(b, tmp_path, progress=lambda *event: told.append(event))
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["file.bin"]
    assert told[-1] == ("file.bin", 300_000, 300_000)
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})


def test_what_is_there_and_right_is_not_fetched_again(tmp_path):
    with serving(Behaviour(CONTENT)) as b:
        get(b, tmp_path)
        get(b, tmp_path)
        assert len(b.asked) == 1
        write(tmp_path / "data" / "file.bin", b"damaged")
        assert get(b, tmp_path).read_bytes() == CONTENT


def test_without_a_checksum_a_file_is_always_fetched(tmp_path):
    write(tmp_path / "data" / "file.bin", bytes(300_000))
    with serving(Behaviour(CONTENT)) as b:
        assert get(b, tmp_path, None, size=300_000).read_bytes() == CONTENT


@pytest.mark.parametrize("how", ["cuts", "stalls"])
def test_what_was_cut_off_or_stalled_is_tried_again(tmp_path, how):
    with serving(Behaviour(CONTENT, **{how: [100_000, 50_000]})) as b:
        assert get(b, tmp_path).read_bytes() == CONTENT
    assert len(b.asked) == 3
    assert left(tmp_path) == ["file.bin"]


def test_a_download_that_is_always_cut_off_is_given_up(tmp_path):
    with (
        serving(Behaviour(CONTENT, cuts=[70_000, 0, 70_000])) as b,
        pytest.raises(DownloadFailed, match=r"in 3 attempts: .*70000 bytes read, 230000 more expected"),
    ):
        get(b, tmp_path)
    assert left(tmp_path) == []


def test_content_that_changed_meanwhile_is_fetched_anew(tmp_path):
    new = bytes(reversed(CONTENT))
    with serving(Behaviour(CONTENT, cuts=[100_000], later=new)) as b:
        assert get(b, tmp_path, "md5:" + hashlib.md5(new).hexdigest()).read_bytes() == new


@pytest.mark.parametrize("lie", [bytes(300_000), CONTENT[:-1], CONTENT + b"x", b"<html>not found</html>", b""])
def test_content_that_lies_never_gets_the_name(tmp_path, lie):
    old = write(tmp_path / "data" / "file.bin", b"what was there before")
    with (
        serving(Behaviour(lie)) as b,
        pytest.raises(DownloadFailed, match=rf"does not hold what was published: .*{MD5[4:]}.*Nothing of it was kept"),
    ):
        get(b, tmp_path)
    assert len(b.asked) == 1
    assert left(tmp_path) == ["file.bin"]
    assert old.read_bytes() == b"what was there before"


def test_a_size_stands_in_where_there_is_no_checksum(tmp_path):
    with serving(Behaviour(CONTENT)) as b:
        with pytest.raises(DownloadFailed, match="300,000 bytes or more; expected at most 299,999"):
            get(b, tmp_path, None, size=299_999)
        with pytest.raises(DownloadFailed, match="expected 300,001 bytes; got 300,000"):
            get(b, tmp_path, None, size=300_001)
        assert left(tmp_path) == []
        assert get(b, tmp_path, None, size=300_000).read_bytes() == CONTENT


@pytest.mark.parametrize("length", [400_000, 10**15])
def test_a_length_that_promises_too_much(tmp_path, length):
    with (
        serving(Behaviour(CONTENT, length=length)) as b,
        pytest.raises(DownloadFailed, match=r"100000 more expected|at most"),
    ):
        get(b, tmp_path)
    assert left(tmp_path) == []


def test_a_length_that_promises_too_little(tmp_path):
    with serving(Behaviour(CONTENT, length=100)) as b, pytest.raises(DownloadFailed, match="what was published"):
        get(b, tmp_path)
    assert left(tmp_path) == []


def test_no_length_and_too_much_content(tmp_path):
    with serving(Behaviour(CONTENT, length=None)) as b:
        assert get(b, tmp_path).read_bytes() == CONTENT
        (tmp_path / "data" / "file.bin").unlink()
        with pytest.raises(DownloadFailed, match="expected at most 200,000"):
            get(b, tmp_path, limit=200_000)
        assert left(tmp_path) == []


def test_errors_that_pass_are_waited_for_and_others_are_told(tmp_path):
    with serving(Behaviour(CONTENT, codes=[503, 500])) as b:
        assert get(b, tmp_path).read_bytes() == CONTENT
    (tmp_path / "data" / "file.bin").unlink()
    with (
        serving(Behaviour(CONTENT, codes=[404, 200])) as b,
        pytest.raises(DownloadFailed, match="the server answers 404"),
    ):
        get(b, tmp_path)
    assert len(b.asked) == 1
    with (
        serving(Behaviour(CONTENT, codes=[503] * 9)) as b,
        pytest.raises(DownloadFailed, match="3 attempts: the server answers 503"),
    ):
        get(b, tmp_path)
    assert len(b.asked) == 3


def test_a_server_that_always_stalls_is_given_up(tmp_path):
    with (
        serving(Behaviour(CONTENT, stalls=[0, 0, 0])) as b,
        pytest.raises(DownloadFailed, match="in 3 attempts: timed out"),
    ):
        get(b, tmp_path)
    assert left(tmp_path) == []


def test_nobody_listens(tmp_path):
    with serving(Behaviour(CONTENT)) as b:
        pass
    with pytest.raises(DownloadFailed, match=r"could not be downloaded in 3 attempts: .*refused"):
        get(b, tmp_path)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/a", "/etc/passwd"])
def test_only_the_web_is_downloaded_from(tmp_path, url):
    with pytest.raises(DownloadFailed, match="expected http or https"):
        fetch(url, tmp_path / "a", None)


def test_without_pooch_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs pooch.*pip install 'codecl\[data\]'"):
        fetch("http://127.0.0.1/a", tmp_path / "a", None)
