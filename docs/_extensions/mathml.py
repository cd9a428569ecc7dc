"""Formulas as MathML, which every browser draws by itself: nothing is fetched, and the pages can be read offline."""

from docutils import nodes
from latex2mathml.converter import convert


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline(translator, node):
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(translator, node):
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode
