"""The bundle: what is on disk. Written whole or not at all, read with every file checked.

This station alone knows the YAML and the sidecar files. It imports no tensor library and no engine.
"""

from __future__ import annotations

from leapp.bundle.arrays import RawTensor, Sample, encode, encode_samples, feedback_ports
from leapp.bundle.files import hash_file
from leapp.bundle.layout import dump_contract, port_entry
from leapp.bundle.reading import (
    Bundle,
    check_files,
    load_contract,
    model_file,
    open_bundle,
    read_initial_values,
    read_model,
    read_samples,
)
from leapp.bundle.schema import schema
from leapp.bundle.sealing import seal_again
from leapp.bundle.staging import Staging
from leapp.bundle.system import system_information
from leapp.bundle.writing import describe_model, write_initial_values, write_samples

__all__ = [
    "Bundle",
    "RawTensor",
    "Sample",
    "Staging",
    "check_files",
    "describe_model",
    "dump_contract",
    "encode",
    "encode_samples",
    "feedback_ports",
    "hash_file",
    "load_contract",
    "model_file",
    "open_bundle",
    "port_entry",
    "read_initial_values",
    "read_model",
    "read_samples",
    "schema",
    "seal_again",
    "system_information",
    "write_initial_values",
    "write_samples",
]
