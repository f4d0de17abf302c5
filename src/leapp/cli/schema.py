"""``leapp schema``: the JSON Schema of a bundle's description."""

from __future__ import annotations

import json
from argparse import Namespace

from leapp.bundle.schema import schema
from leapp.cli.output import Answer, Text


def command(arguments: Namespace) -> Answer:
    """The JSON Schema. It is JSON with or without ``--json``."""
    document = schema()
    return Answer(document, [Text(json.dumps(document, indent=2))])
