"""``deploy_triton``: a bundle as a model repository of NVIDIA's Triton Inference Server.

The repository is written whole or not at all. It is a bundle itself: its YAML describes and seals the copies of the models,
so ``leapp verify`` and ``leapp.runtime`` work on it, and a later deployment replaces only files that an earlier one wrote.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from leapp.bundle import Bundle, load_contract, open_bundle
from leapp.bundle.files import descriptions_in
from leapp.bundle.reading import require_signed
from leapp.bundle.signing import Keys
from leapp.bundle.staging import Staging
from leapp.bundle.trust import require_trust
from leapp.deploy.triton_config import TritonOptions, describe, seen_ports
from leapp.deploy.triton_native import NativeRepository
from leapp.deploy.triton_python import PythonRepository
from leapp.errors import BundleError, LeappError
from leapp.graph.contract import Contract, Port
from leapp.runtime.plan import Plan, make_plan

_MARK = "leapp deployment"
_KIND = "triton"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A written repository.

    Attributes:
        path: Its directory, as it was given.
        model: The model that clients call.
        models: All models, each with its backend.
        inputs: For each input of the pipeline its name, type and dimensions on the server.
        outputs: The same for each output.
        stateful: Whether requests belong to sequences, with a correlation id and a start flag.
        digest: The digest of the bundle that was deployed, if it is sealed.

    Example:
        >>> found = deploy_triton("exports/my_policy", "served")
        >>> found.inputs["policy/obs"], found.stateful
        (('policy/obs', 'FP32', [2]), True)
    """

    path: Path
    model: str
    models: dict[str, str]
    inputs: dict[str, tuple[str, str, list[int]]]
    outputs: dict[str, tuple[str, str, list[int]]]
    stateful: bool
    digest: str | None


def deploy_triton(
    bundle: str | os.PathLike[str] | Bundle,
    repository: str | os.PathLike[str],
    options: TritonOptions | None = None,
    *,
    allow_outside: bool = False,
    allow_code: bool | None = None,
    trust: Keys | None = None,
) -> Deployment:
    """Write a bundle as a Triton model repository.

    Args:
        bundle: The bundle's YAML file or its directory, or a bundle that is already open.
        repository: The directory to write. An earlier deployment of the same graph there is replaced.
        options: How to write it.
        allow_outside: Let files of an unsealed bundle lie outside its directory.
        allow_code: As for ``leapp.runtime.Pipeline``: the server runs every program in its repository.
        trust: As for ``leapp.runtime.Pipeline``.

    Returns:
        What clients need to know.

    Raises:
        BundleError: The server cannot run the bundle, or the directory holds something else.

    Example:
        >>> deploy_triton("exports/my_policy", "repository").model
        'my_policy'
    """
    options = options or TritonOptions()
    if not isinstance(bundle, Bundle):
        bundle = open_bundle(bundle, allow_outside=allow_outside, trust=trust)
    require_signed(bundle, trust)
    require_trust(bundle, allow_code)
    plan = make_plan(bundle.contract)
    _check_runnable(plan)
    target = Path(os.path.realpath(repository))
    _check_target(bundle, target)
    kind = PythonRepository if options.backend == "python" else NativeRepository
    with Staging(target) as staging:
        written = kind(bundle, plan, staging.path, options)
        contract, models = written.write()
        _check_free(target, models)
        staging.commit(bundle.graph, _marked(contract, bundle.digest))
    inputs, outputs = seen_ports(plan, options.dtypes)
    return Deployment(
        path=Path(repository),
        model=written.model,
        models=models,
        inputs={k: _shown(k, k, port, options) for k, port in inputs.items()},
        outputs={k: _shown(k, written.names[k], port, options) for k, port in outputs.items()},
        stateful=bool(plan.feedback),
        digest=bundle.digest,
    )


def _check_runnable(plan: Plan) -> None:
    if plan.missing:
        raise BundleError(f"The bundle has no model for node {', '.join(map(repr, plan.missing))}, so it cannot be deployed.")
    for what, keys in (("input", plan.inputs), ("output", plan.outputs)):
        if not keys:
            raise BundleError(f"The pipeline has no {what}; Triton serves requests with inputs and outputs only.")


def _check_target(bundle: Bundle, target: Path) -> None:
    """Refuse a directory that holds a bundle, or the repository of another bundle."""
    source = Path(os.path.realpath(bundle.directory))
    if target == source or target in source.parents:
        raise BundleError(f"{target} holds the bundle itself. Choose another directory for the repository.")
    if target.exists() and not target.is_dir():
        raise BundleError(f"{target} is not a directory.")
    for graph in _graphs(target):
        if graph != bundle.graph:
            raise BundleError(
                f"{target} serves {graph!r} already. Give each bundle a repository of its own; tritonserver takes "
                "--model-repository several times."
            )


def _check_free(target: Path, models: Mapping[str, str]) -> None:
    """Refuse to write over a model that leapp did not deploy."""
    if _graphs(target):
        return
    for name in models:
        if os.path.lexists(target / name):
            raise BundleError(f"{target} has a model {name!r} that leapp did not write. Choose another directory.")


def _graphs(target: Path) -> list[str]:
    """The graphs whose deployments a directory holds."""
    found = []
    for path in descriptions_in(target) if target.is_dir() else ():
        try:
            contract = load_contract(path)
        except LeappError:
            continue
        if contract.system.get(_MARK) != _KIND:
            raise BundleError(f"{target} holds the bundle {path.stem!r}. Choose another directory for the repository.")
        found.append(path.stem)
    return found


def _marked(contract: Contract, digest: str | None) -> Contract:
    """The contract, marked as a deployment and with the digest of the bundle it was made from."""
    mark = {_MARK: _KIND, f"{_MARK} of": digest or "an unsealed bundle"}
    return msgspec.structs.replace(contract, system={**contract.system, **mark})


def _shown(where: str, name: str, port: Port, options: TritonOptions) -> tuple[str, str, list[int]]:
    batched = options.max_batch_size > 0
    entry = describe(where, name, port, None, batched=batched)
    return name, str(entry["data_type"]).removeprefix("TYPE_"), [*([-1] if batched else []), *entry["dims"]]
