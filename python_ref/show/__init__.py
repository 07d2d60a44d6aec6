"""A page that shows which tokens each method keeps, and what evicting the others costs."""

from __future__ import annotations

from .page import ShowData, build_page

__all__ = ["ShowData", "build_page"]
