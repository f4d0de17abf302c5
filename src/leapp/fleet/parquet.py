"""Writes the rows of all recordings as a Parquet file. Imports pyarrow when it is needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from leapp.errors import InputError, MissingDependencyError

_GROUP = 10_000
_TYPES = {
    "recording": "string", "error": "string", "steps": "int64", "port": "string", "role": "string", "count": "int64",
    "equal": "int64", "unlike": "int64", "beyond": "int64", "mean": "float64", "p50": "float64", "p90": "float64",
    "p99": "float64", "p999": "float64", "largest": "float64", "worst_step": "int64", "worst_element": "string",
    "first_step": "int64", "first_element": "string",
}  # fmt: skip


def check_output(path: str | os.PathLike[str]) -> None:
    """Refuse, before the run, an output file that could not be written after it.

    Raises:
        InputError: The name is not that of a Parquet file, or its directory does not exist.
        MissingDependencyError: pyarrow is not installed.
    """
    if Path(path).suffix != ".parquet":
        raise InputError(f"Results are written as .parquet files, got {os.fspath(path)!r}.")
    if not Path(path).absolute().parent.is_dir():
        raise InputError(f"{os.fspath(path)}: there is no directory {Path(path).parent}.")
    _pyarrow()


def write_table(path: str | os.PathLike[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write rows in parts. The file appears under its name when it is complete."""
    pyarrow, parquet = _pyarrow()
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in _TYPES.items()])
    unfinished = Path(f"{os.fspath(path)}.unfinished")
    try:
        with parquet.ParquetWriter(unfinished, schema) as writer:
            for part in _parts(rows):
                writer.write_table(pyarrow.Table.from_pylist(part, schema))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _parts(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    left = iter(rows)
    while part := list(islice(left, _GROUP)):
        yield part


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError("Parquet files need the package pyarrow: pip install 'leapp[parquet]'.") from error
    return pyarrow, pyarrow.parquet
