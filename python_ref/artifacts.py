"""Files and folders that appear whole or not at all.

Some folders are expensive to make and are made once per user: converted models, text sources.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


def cache_dir() -> Path:
    """The cache folder: `$KVP_EXT_CACHE`, else `kvp-ext` in the user's cache folder."""
    if override := os.environ.get("KVP_EXT_CACHE"):
        return Path(override).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvp-ext"


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """Returns the cached folder `name`, filled by `build(folder)` if it does not exist yet.

    The folder appears in one rename after `build` returned, so a folder that exists is complete,
    whatever was interrupted. Of several processes one builds and the others wait for it.
    """
    target = cache_dir() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(target.name + ".lock")):
        if not target.is_dir():
            draft = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
            try:
                build(draft)
                draft.chmod(0o755)
                draft.rename(target)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
    return target


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft to write, which takes the place of `path` at once when the block ends.

    Folders are made as needed. After an error `path` is what it was before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".draft")
    try:
        yield draft
        with draft.open("rb") as file:  # all of it is on the disk before it counts
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
