"""What is said where a package is missing."""

import importlib
import sys

import pytest

MODULES = {
    "huggingface": "transformers",
    "lightning": "lightning",
    "accelerate": "accelerate",
    "avalanche": "avalanche",
}


@pytest.mark.parametrize("name", MODULES)
def test_a_missing_package_is_named_with_what_to_install(name, monkeypatch):
    module = f"codecl.integrations.{name}"
    for loaded in [m for m in sys.modules if m == MODULES[name] or m.startswith(f"{MODULES[name]}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    extra = "avalanche" if name == "avalanche" else "integrations"
    with pytest.raises(ModuleNotFoundError, match=rf"needs .*{MODULES[name]}.*pip install 'codecl\[{extra}\]'"):
        importlib.import_module(module)


def test_an_error_inside_a_package_is_not_hidden(monkeypatch, tmp_path):
    (tmp_path / "avalanche").mkdir()
    (tmp_path / "avalanche/__init__.py").write_text("import something_else_that_is_missing")
    for loaded in [m for m in sys.modules if m.partition(".")[0] == "avalanche"]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "codecl.integrations.avalanche", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'something_else_that_is_missing'$"):
        importlib.import_module("codecl.integrations.avalanche")
