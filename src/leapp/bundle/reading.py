"""Opens a bundle: checks the description, and that every file is inside the directory and unchanged, before an engine reads it.

Knows files and the contract. It loads no engine and runs nothing.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from leapp.bundle import yaml_text
from leapp.bundle.contract_yaml import VERSION, contract_of
from leapp.bundle.files import (
    YAML,
    check_collisions,
    descriptions_in,
    hash_file,
    locate,
    read_own,
    read_regular,
    read_verified,
    verify,
    without_links,
)
from leapp.bundle.integrity import Seal, annotations_of, verified_seal
from leapp.bundle.onnx_files import beside, external_files
from leapp.bundle.recent import Recent
from leapp.bundle.safetensors import SAMPLES, RawTensor, Sample, check_initial_values, decode, decode_samples
from leapp.bundle.signing import Keys, Signature, key_paths, verified_signature
from leapp.errors import BundleError, BundleFileError, InputError
from leapp.graph.contract import Contract


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle.

    Attributes:
        path: The YAML file.
        contract: Its content.
        digest: The digest of the sealed bundle, ``None`` if the bundle carries no seal.
        files: The sha256 of every file leapp wrote beside the YAML, by name. Empty without a seal.
        allow_outside: Whether files may lie outside the directory though their sha256 is not known.
        annotations: Keys of the description beyond nodes, ports and wiring, by their path in it.
        seal: What the seal covers.
        signature: Who signed the bundle, if a signature was asked for.
        initial_values: The initial values as ``open_bundle`` found them; None if they were not read.
        root: The directory that holds the bundle, without links.
        located: Where the models were found when the bundle was opened, by the path that the description gives.
        contents: The bytes of models that were read and hashed for the description, by the path that it gives.

    Example:
        >>> open_bundle("exports/my_policy").graph
        'my_policy'
    """

    path: Path
    contract: Contract
    digest: str | None
    files: Mapping[str, str]
    allow_outside: bool = False
    annotations: Mapping[str, Any] = field(default_factory=dict)
    seal: Seal = field(default_factory=Seal)
    signature: Signature | None = None
    initial_values: Mapping[str, RawTensor] | None = field(default=None, repr=False, compare=False)
    root: str = field(default="", repr=False, compare=False)
    located: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.root:
            object.__setattr__(self, "root", os.path.realpath(self.path.parent))

    @property
    def directory(self) -> Path:
        """The directory that holds the bundle."""
        return self.path.parent

    @property
    def graph(self) -> str:
        """The name of the graph, which is that of the YAML file."""
        return self.path.stem

    def _repr_html_(self) -> str:
        from leapp.graph.html import describe_contract  # for notebooks only

        return describe_contract(f"Bundle {self.graph}", self.graph, self.contract, self.digest)


def load_contract(path: str | os.PathLike[str]) -> Contract:
    """The content of a bundle's YAML. The files that it names are not read.

    Example:
        >>> from leapp.bundle import load_contract
        >>> load_contract("exports/my_policy").pipeline.inputs
        {'policy': ('obs',)}
    """
    return _load(find_description(path)).contract


def open_bundle(
    path: str | os.PathLike[str],
    *,
    allow_outside: bool = False,
    expect_digest: str | None = None,
    trust: Keys | None = None,
) -> Bundle:
    """Open a bundle and check everything but the models, which ``read_model`` checks when it hands them out.

    Args:
        path: The ``.yaml`` or ``.yml`` file, or the directory that holds exactly one bundle.
        allow_outside: Accept files outside the bundle directory whose sha256 is not known: those of a bundle without a seal.
            A file whose sha256 is known may lie anywhere, and is checked.
        expect_digest: Refuse any bundle but the one with this digest.
        trust: Files with public keys. Refuse a bundle that none of them signed, before anything of it is parsed.

    Raises:
        BundleError: If the bundle is malformed, inconsistent, changed after its export, not the expected one or not signed
            by a trusted key.
        BundleFileError: If the YAML or a file it names does not exist.

    Example:
        >>> list(open_bundle("exports/my_policy").contract.nodes)
        ['policy']
    """
    yaml_path = find_description(path)
    bundle = _load(yaml_path, allow_outside, trust)
    contract, files = bundle.contract, bundle.files
    require_digest(bundle, expect_digest)
    models = [node.model.model_path for node in contract.nodes.values() if node.model.model_path is not None]
    check_collisions([*models, *files])
    located = {
        node.model.model_path: _locate_model(bundle, name)
        for name, node in contract.nodes.items()
        if node.model.model_path is not None
    }
    # Models are hashed later, when they are read, so that they are read only once. Initial values are read and hashed here.
    inside = {os.path.normpath(model) for model in models}
    stored: bytes | None = None
    for name in files:
        if name == contract.pipeline.initial_values and _is_covered(bundle):
            stored = _read_sealed(bundle, name)
        elif name not in located and os.path.normpath(name) not in inside:
            _verify_sealed(bundle, name)
    return replace(bundle, initial_values=_decode_initial_values(bundle, stored), located=located)


def require_digest(bundle: Bundle, expected: str | None) -> None:
    """Refuse any bundle but the one with this digest; None accepts every bundle.

    Raises:
        BundleError: It is another bundle.
    """
    if expected is not None and bundle.digest != expected:
        found = f"has the digest {bundle.digest}" if bundle.digest else "carries no seal"
        found += "; its annotations were changed after it was sealed" if bundle.seal.annotated else ""
        raise BundleError(f"{bundle.path.name}: expected the bundle with digest {expected}, this one {found}.")


def require_signed(bundle: Bundle, trust: Keys | None) -> None:
    """Refuse an open bundle unless its signature was checked with one of these keys; None accepts every bundle.

    Raises:
        InputError: It was opened without them.
    """
    if trust is not None and (bundle.signature is None or bundle.signature.key not in key_paths(trust)):
        raise InputError(
            f"{bundle.path.name}: the signature of this bundle was not checked with these keys when it was opened. "
            "Pass trust= to open_bundle."
        )


def check_files(bundle: Bundle) -> None:
    """Check every file of a bundle, models and their external data included."""
    for name in bundle.files:
        _verify_sealed(bundle, name)
    for name, node in bundle.contract.nodes.items():
        if node.model.model_path is not None:
            read_model(bundle, name)


def read_model(bundle: Bundle, node: str) -> bytes:
    """The verified bytes of a node's model. An engine loaded from bytes cannot get a file that was exchanged after the check.

    External data of an ONNX model is checked too; see ``model_file`` for engines that must open it themselves.

    Raises:
        BundleError: If the node has no model, or a file is not where or what it should be.
    """
    data = _read_model(bundle, node)
    for path, sha256, what in _external_data(bundle, node, data).values():
        verify(path, sha256, what) if sha256 is not None else read_regular(path, what)
    return data


def read_model_files(bundle: Bundle, node: str) -> tuple[bytes, dict[str, bytes]]:
    """The verified bytes of a node's model, and those of the external data that an ONNX model names, by location.

    Raises:
        BundleError: If the node has no model, or a file is not where or what it should be.
    """
    data = _read_model(bundle, node)
    files = _external_data(bundle, node, data)
    return data, {
        location: read_regular(path, what) if sha256 is None else read_verified(path, sha256, what)
        for location, (path, sha256, what) in files.items()
    }


def _read_model(bundle: Bundle, node: str) -> bytes:
    described = bundle.contract.nodes[node].model
    kept = bundle.contents.get(described.model_path or "")
    if kept is not None:
        return kept
    path = _locate_model(bundle, node)
    assert described.sha256sum is not None
    return read_verified(path, described.sha256sum, f"model of node '{node}'")


def _external_data(bundle: Bundle, node: str, model: bytes) -> dict[str, tuple[str, str | None, str]]:
    """The external data of a model, by location: the file, its sha256 if it is known, and its name for messages."""
    if bundle.contract.nodes[node].model.backend != "onnx":
        return {}
    what = f"external data of node '{node}'"
    locations = _named_files(bundle, node, model)
    return {location: (*_locate_external(bundle, node, location, what), what) for location in locations}


_recent_names: Recent[tuple[str, ...]] = Recent(1 << 16)
"""The files that an ONNX model names, by the sha256 of the model."""


def _named_files(bundle: Bundle, node: str, model: bytes) -> tuple[str, ...]:
    sha256 = bundle.contract.nodes[node].model.sha256sum
    found = _recent_names.get(sha256)
    if found is None:
        found = tuple(external_files(model, f"model of node '{node}'"))
        _recent_names.put(sha256, found, sys.getsizeof(found) + sum(map(sys.getsizeof, found)))
    return found


def model_file(bundle: Bundle, node: str) -> Path:
    """Verify a node's model and return its path, for engines that cannot load from memory.

    If the model is a link, this is the link: engines look for external data beside it.
    """
    read_model(bundle, node)
    return _spelled_path(bundle, node)


def read_initial_values(bundle: Bundle) -> dict[str, RawTensor]:
    """The initial values of all fed-back inputs by ``node/port``; empty if the bundle has none.

    Raises:
        BundleError: If a value is missing, unknown or does not fit its port.
        BundleFileError: If the file does not exist.

    Example:
        >>> from leapp.bundle import read_initial_values
        >>> list(read_initial_values(open_bundle("exports/my_policy")))
        ['policy/h_in']
    """
    if bundle.contract.pipeline.initial_values is None or bundle.initial_values is None:
        return _decode_initial_values(bundle, None)
    return dict(bundle.initial_values)


def _decode_initial_values(bundle: Bundle, data: bytes | None) -> dict[str, RawTensor]:
    """The initial values in the bytes of their file, or in the file itself."""
    name = bundle.contract.pipeline.initial_values
    if name is None:
        return {}
    values = decode(_read_sealed(bundle, name) if data is None else data, name)
    check_initial_values(values, bundle.contract, name)
    return values


def read_samples(bundle: Bundle) -> dict[str, list[Sample]]:
    """The recorded passes of every node, oldest first; empty if the bundle carries none.

    Example:
        >>> from leapp.bundle import read_samples
        >>> len(read_samples(open_bundle("exports/my_policy"))["policy"])
        1
    """
    name = f"{bundle.graph}{SAMPLES}"
    if name not in bundle.files and not (bundle.directory / name).exists():
        return {}
    return decode_samples(_read_sealed(bundle, name), bundle.contract, name)


def find_description(path: str | os.PathLike[str]) -> Path:
    """The YAML file of a bundle, given by itself or by its directory.

    Raises:
        BundleError: If the path names something else.
        BundleFileError: If there is no such file, or several.
    """
    found = Path(path)
    if os.path.isdir(found):
        candidates = descriptions_in(found)
        same_name = [p for p in candidates if p.stem == found.resolve().name]
        chosen = same_name if len(same_name) == 1 else candidates
        if not candidates and found.resolve().name.endswith(".failed"):
            raise BundleFileError(f"{found} was left by a failed export and is not a bundle. See its log.txt.")
        if len(chosen) != 1:
            raise BundleFileError(f"{found} holds {len(candidates)} YAML files. Name the one to open.")
        return chosen[0]
    if found.suffix in YAML:
        return found
    if not found.suffix and not found.exists():
        raise BundleFileError(f"{found} does not exist. Give the directory of a bundle or its .yaml file.")
    raise BundleError(f"{found} is not a bundle description. Give the path of its .yaml file.")


def description_text(path: Path, signature: Signature | None = None, real: str | None = None) -> str:
    """The text of a bundle's YAML file. With a signature, it must be the text that was signed.

    ``real`` is the path without links, if that is known.
    """
    data = read_regular(path, "bundle description", limit=yaml_text.MAX_BYTES, real=real)
    if signature is not None and signature.files.get(path.name) != hashlib.sha256(data).hexdigest():
        raise BundleError(f"{path.name} is not the description that was signed. Restore the file or sign the bundle again.")
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()  # the codec "utf-8-sig" would be imported for this file alone
    except UnicodeDecodeError as error:
        raise BundleError(f"{path.name}: not UTF-8 text (byte {error.start}).") from error


def _load(path: Path, allow_outside: bool = False, trust: Keys | None = None) -> Bundle:
    signature = None if trust is None else verified_signature(path, trust)
    # The files of a description that is a link are beside the link.
    folder, name = os.path.split(path)
    root = os.path.realpath(folder)
    text = description_text(path, signature, without_links(root, name))
    contract, annotations, seal = _described(text, name)
    files = dict(seal.files)
    if signature is not None:
        _require_agreement(path, contract, seal, signature)
        # A file that the seal does not name must have the sha256 of the signature.
        files = {file: sha256 for file, sha256 in signature.files.items() if file != name} | files
    return Bundle(path, contract, seal.digest, files, allow_outside, annotations, seal, signature, root=root)


_recent_descriptions: Recent[bytes] = Recent(1 << 20)
"""What a description says, by its text. It is kept as bytes, from which every bundle gets values of its own."""


@functools.cache
def _unpacker() -> msgspec.msgpack.Decoder[tuple[Contract, dict[str, Any], list[Any]]]:
    return msgspec.msgpack.Decoder(tuple[Contract, dict[str, Any], list[Any]])


def _described(text: str, name: str) -> tuple[Contract, dict[str, Any], Seal]:
    """The contract of a description, its annotations and its seal. A text is parsed and checked once."""
    packed = _recent_descriptions.get(text)
    if packed is not None:
        contract, annotations, sealed = _unpacker().decode(packed)
        return contract, annotations, Seal(*sealed)
    document = yaml_text.parse(text, name)
    contract, seal = contract_of(document, name, text), verified_seal(document, name)
    annotations = annotations_of(document)
    if VERSION in contract.system:  # each reading warns of a description without a version
        sealed = [seal.digest, seal.files, seal.covers_annotations, seal.annotated]
        # The user's values may be numbers or texts that cannot be packed. Such a description is checked each time.
        with contextlib.suppress(OverflowError, ValueError):
            packed = msgspec.msgpack.encode((contract, annotations, sealed))
            _recent_descriptions.put(text, packed, sys.getsizeof(text) + len(packed))
    return contract, annotations, seal


def _require_agreement(path: Path, contract: Contract, seal: Seal, signature: Signature) -> None:
    """Refuse a description that gives a file another sha256 than the signature does."""
    models = [(node.model.model_path, node.model.sha256sum) for node in contract.nodes.values()]
    for name, sha256 in [*models, *seal.files.items()]:
        if name is not None and signature.files.get(os.path.normpath(name), sha256) != sha256:
            raise BundleError(
                f"file '{name}': {path.name} and its signature list different sha256. Export again and sign the bundle again."
            )


def _locate_model(bundle: Bundle, node: str) -> str:
    name = bundle.contract.nodes[node].model.model_path
    if name is None:
        raise BundleError(f"Node '{node}' has no model: it was exported without one (dry run or no backend).")
    return bundle.located.get(name) or locate(bundle.root, name, f"model of node '{node}'", anywhere=True)


def _spelled_path(bundle: Bundle, node: str) -> Path:
    return Path(os.path.normpath(os.path.join(bundle.root, str(bundle.contract.nodes[node].model.model_path))))


def _read_sealed(bundle: Bundle, name: str) -> bytes:
    """A file beside the YAML, verified if the bundle is sealed or signed. A seal that does not name the file refuses it."""
    known = _is_covered(bundle) and name in bundle.files
    path = locate(bundle.root, name, f"file '{name}'", anywhere=known or bundle.allow_outside)
    if not _is_covered(bundle):
        return read_regular(path, f"file '{name}'")
    if name not in bundle.files:
        raise BundleError(f"file '{name}': the seal of {bundle.path.name} does not cover it. Export again.")
    return read_own(path, bundle.files[name], f"file '{name}'")


def _is_covered(bundle: Bundle) -> bool:
    """Whether the sha256 of every file is known, from a seal or a signature."""
    return bundle.digest is not None or bundle.signature is not None


def _verify_sealed(bundle: Bundle, name: str) -> None:
    what = f"file '{name}'"
    verify(locate(bundle.root, name, what, anywhere=True), bundle.files[name], what)


def _locate_external(bundle: Bundle, node: str, location: str, what: str) -> tuple[str, str | None]:
    """The file of an ONNX model's external data, and its sha256 if the bundle is sealed or signed."""
    if "*" in location or os.path.isabs(location) or ".." in location.split("/"):
        # ONNX Runtime reads a location that begins with an asterisk as an address in its own memory, not as a file.
        raise BundleError(f"{what}: {location!r} is not a usable path.")
    # Engines resolve the location relative to the directory of the model.
    if not _is_covered(bundle):
        return locate(os.path.realpath(_spelled_path(bundle, node).parent), location, what, anywhere=bundle.allow_outside), None
    name = beside(str(bundle.contract.nodes[node].model.model_path), location)
    if name not in bundle.files:
        raise BundleError(f"{what}: the seal of {bundle.path.name} does not cover '{name}'. Export again.")
    return locate(bundle.root, name, what, anywhere=True), bundle.files[name]


def fingerprint(bundle: Bundle) -> str:
    """A digest over every file that determines what a bundle computes. Works without a seal too."""
    files = [bundle.path]
    if bundle.contract.pipeline.initial_values is not None:
        name = bundle.contract.pipeline.initial_values
        anywhere = bundle.allow_outside or name in bundle.files
        files.append(Path(locate(bundle.root, name, "initial values", anywhere=anywhere)))
    for name, node in bundle.contract.nodes.items():
        if node.model.model_path is None:
            continue
        path = model_file(bundle, name)
        files.append(path)
        if node.model.backend == "onnx":
            files += [path.parent / location for location in external_files(read_model(bundle, name), name)]
    whole = hashlib.sha256()
    for path in files:
        whole.update(hash_file(path)[1].encode())
    return whole.hexdigest()
