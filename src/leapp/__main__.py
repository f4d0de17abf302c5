"""``python -m leapp``: the command line."""

from __future__ import annotations

from leapp.cli import main

raise SystemExit(main())
