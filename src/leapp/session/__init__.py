"""The session: drives the stations from annotated code to a bundle on disk.

The package can be called: ``with leapp.session("my_policy"): ...`` is :func:`leapp.session.lifecycle.session`.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any


class _Session(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        from leapp.session.lifecycle import session

        return session(*args, **kwargs)


sys.modules[__name__].__class__ = _Session
