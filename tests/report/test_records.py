"""Which runs are found below a directory, and what is said of those that cannot be believed."""

import json

import pytest

from codecl.errors import UsageError
from codecl.report.records import find_runs
from tests.report.cases import skipped, write_run


def test_links_are_followed_and_circles_end(tmp_path):
    write_run(tmp_path / "store/x", "gpm")
    write_run(tmp_path / "store/deep/y", "sgp")
    (tmp_path / "chosen").mkdir()
    (tmp_path / "chosen/a").symlink_to(tmp_path / "store/x")
    (tmp_path / "chosen/b").symlink_to(tmp_path / "store/deep")
    (tmp_path / "store/deep/up").symlink_to(tmp_path)
    (tmp_path / "chosen/self").symlink_to(tmp_path / "chosen")
    found = find_runs([tmp_path / "chosen"], tmp_path)
    assert [run.name for run in found.runs] == ["chosen/a", "chosen/b/y"]
    assert [run.given for run in found.runs] == [f"{tmp_path}/chosen/a", f"{tmp_path}/chosen/b/y"]
    for both in ([tmp_path / "chosen", tmp_path / "store"], [tmp_path / "store", tmp_path / "chosen"], [tmp_path]):
        assert [run.name for run in find_runs(both, tmp_path).runs] == [
            "store/deep/y",
            "store/x",
        ]  # once each, without links


def test_a_link_to_nothing_is_damage(tmp_path):
    write_run(tmp_path / "runs/a", "gpm")
    (tmp_path / "runs/b").mkdir()
    (tmp_path / "runs/b/recipe.toml").symlink_to("nowhere")
    found = find_runs([tmp_path / "runs"], tmp_path)
    assert skipped(found, "damaged") == {"runs/b": "runs/b/recipe.toml is a link to nothing."}
    with pytest.raises(UsageError, match=r"a/recipe\.toml is no directory\.$"):
        find_runs([tmp_path / "runs/a/recipe.toml"], tmp_path)


def test_an_unfinished_run_with_a_damaged_log_says_so(tmp_path):
    write_run(tmp_path / "a", "gpm", recipe_only=True, log=[3])
    assert skipped(find_runs([tmp_path], tmp_path), "unfinished") == {"a": "not finished; its log is damaged"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"acc": "x"}, "acc is 'x', but the accuracy matrix gives 80.0."),
        ({"accuracy": [5, 6]}, "accuracy[0] must be a list; got 5."),
    ],
)
def test_what_is_wrong_with_a_result_is_said_in_words(tmp_path, fields, words):
    write_run(tmp_path / "a", "gpm")
    record = json.loads((tmp_path / "a/result.json").read_text())
    (tmp_path / "a/result.json").write_text(json.dumps(record | fields))
    assert skipped(find_runs([tmp_path], tmp_path), "damaged") == {"a": f"a/result.json is damaged: {words}"}
