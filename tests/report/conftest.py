"""What the tests of figures share."""

import pytest

from codecl.report import drawing
from codecl.report.drawing import Drawing, styled


@pytest.fixture
def draw(monkeypatch):
    """Draw one figure and look at it, laid out but not written."""
    kept = []

    def keep(figure, name, caption):
        figure.draw_without_rendering()
        kept.append(figure)
        look.caption = caption
        return Drawing(name, caption, "", b"")

    monkeypatch.setattr(drawing, "render", keep)

    def look(make, *of, **more):
        with styled():
            assert make(*of, "name", **more) is not None
        return kept[-1]

    return look
