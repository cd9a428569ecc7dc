"""What README and CONTRIBUTING tell a reader to type works as printed."""

import re
from pathlib import Path

import pytest

from codecl.layers import kinds

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{i}")
    for path in DOCUMENTS
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_code_block_runs_as_printed(block, capsys, monkeypatch):
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))  # what a block registers ends with it
    exec(compile(block, "document", "exec"), {"__name__": "document"})


def test_links_between_documents_lead_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
