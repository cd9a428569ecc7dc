"""Marks for cases that are many."""

from collections.abc import Iterable

import pytest


def slow_but(cases: Iterable, *quick) -> list:
    """All ``cases`` of a test, of which ``make quick`` runs those named ``quick`` alone."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]
