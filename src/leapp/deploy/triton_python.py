"""Writes a repository with one model, which runs the whole bundle in the server's Python backend."""

from __future__ import annotations

from pathlib import Path

from leapp.bundle.sidecars import write_initial_values
from leapp.bundle.staging import Staging
from leapp.deploy.triton_config import describe, free_name, safe_name, seen_ports
from leapp.deploy.triton_repository import Repository
from leapp.graph.contract import Contract

_BUNDLE = "bundle"
_MODEL = '''"""Runs the bundle beside this file. The Python of this server needs leapp and onnxruntime."""

from leapp.deploy.bundle_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


class PythonRepository(Repository):
    """The model, with a bundle of its own in the directory of its version."""

    def write(self) -> tuple[Contract, dict[str, str]]:
        """See ``Repository``."""
        folder, bundle, options = self.version_folder(self.model), self.bundle, self.options
        with Staging(folder / _BUNDLE) as staging:
            paths: dict[str, str] = {}
            for node in self.plan.order:
                name = free_name(safe_name(node), [Path(path).parent.name for path in paths.values()], "_")
                paths[node] = self.copy_model(node, staging.path / name).relative_to(staging.path).as_posix()
            file = write_initial_values(staging.path, bundle.graph, self.values, bundle.contract) if self.values else None
            staging.commit(bundle.graph, self.contract(paths, file))
        (folder / "model.py").write_text(_MODEL, encoding="utf-8", newline="\n")
        inputs, outputs = seen_ports(self.plan, options.dtypes)
        settings = {
            "bundle": _BUNDLE,
            "digest": staging.digest,
            "threads": options.threads,
            "nonfinite": options.nonfinite,
            "idle_seconds": options.idle_seconds,
            "outputs": {key: self.names[key] for key in self.plan.outputs},
            "dtypes": {key: port.dtype for key, port in outputs.items()},
        }
        entering = [describe(key, key, port, None) for key, port in inputs.items()]
        leaving = [describe(key, self.names[key], port, None) for key, port in outputs.items()]
        models = self.write_config(self.python_config(entering, leaving, settings))
        here = folder.relative_to(self.root) / _BUNDLE
        moved = {node: (here / path).as_posix() for node, path in paths.items()}
        return self.contract(moved, (here / file).as_posix() if file else None), models
