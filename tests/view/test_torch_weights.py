"""Weights of TorchScript and ``.pt2`` files, read without torch: the values that were exported, and nothing that runs."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import leapp
from leapp import annotate
from leapp.cli import main
from leapp.view.torch_weights import read_torch_weights

FILES = {"jit": "n.pt", "pt2": "n.pt2"}


def export(directory: Path, backend: str, network: torch.nn.Module) -> Path:
    with leapp.session("g", save_path=directory, compile={"visualize": False}), torch.no_grad():
        for _ in range(2):
            x = annotate.input_tensors("n", {"x": torch.randn(1, 3)})
            annotate.output_tensors("n", {"y": network(x)}, export_with=backend)
    return directory / "g"


@pytest.mark.parametrize("backend", FILES)
def test_values_are_those_that_were_exported(backend: str, tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2).double().float())
    found = {w.name: w for w in read_torch_weights(export(tmp_path, backend, network) / FILES[backend])}
    wanted = {name: value.detach().numpy() for name, value in network.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name].array(), value)


@pytest.mark.parametrize("backend", FILES)
def test_diff_names_the_weight_and_how_much_it_changed(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = torch.nn.Linear(3, 2)
    before = export(tmp_path / "before", backend, network)
    with torch.no_grad():
        network.bias[1] += 0.5
    after = export(tmp_path / "after", backend, network)
    capsys.readouterr()
    assert main(["diff", str(before), str(after), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    (changed,) = answer["weights"]
    assert (changed["weight"], changed["value"]) == ("bias", "float32 [2]")
    assert changed["largest"] == pytest.approx(0.5)
    assert [(o["key"], o["moves"]) for o in answer["outputs"]] == [("n/y", True)]


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("(_ for _ in ()).throw(RuntimeError('it ran'))",)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_pickle_that_does_anything_else_is_refused(compression: int, tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as package:
        package.writestr("archive/constants.pkl", pickle.dumps((Attack(),), protocol=2))
    (tmp_path / "n.pt").write_bytes(made.getvalue())
    with pytest.raises(ValueError, match=r"eval|compressed"):
        read_torch_weights(tmp_path / "n.pt")


_LIST = b"\x80\x02(" + b"K\x01" * 60_000 + b"lq\x00"
BOMBS = {
    "a place far away": b"\x80\x02)r\xff\xff\xff\x7f.",
    "a long list copied often": _LIST + b"(" + b"ccollections\nOrderedDict\nh\x00\x85R" * 30_000 + b"t.",
    "a long storage": _LIST + b"(" + b"ctorch._utils\n_rebuild_tensor_v2\n(h\x00K\x00))tR" * 30_000 + b"t.",
    "many axes": _LIST + b"((X\x07\x00\x00\x00float32X\x01\x00\x00\x000h\x00h\x00K\x00tt.",
    "a function with another state": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x01\x00\x00\x00aK\x01sb.",
}


@pytest.mark.parametrize("pickled", BOMBS.values(), ids=BOMBS.keys())
def test_a_pickle_that_would_fill_the_memory_is_refused(pickled: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "n.pt", "w") as package:
        package.writestr("archive/constants.pkl", pickled)
    code = (
        "import resource, sys, pathlib; from leapp.view.torch_weights import read_torch_weights\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); resource.setrlimit(resource.RLIMIT_CPU, (10, 10))\n"
        "try: read_torch_weights(pathlib.Path(sys.argv[1]))\n"
        "except ValueError as error: print(type(error.__cause__).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "n.pt"], capture_output=True, text=True)
    assert done.stdout.strip() in ("UnpicklingError", "ValueError"), done.stderr


def test_one_large_entry_is_read_once(tmp_path: Path) -> None:
    """As tied weights are, and as a stranger could make a small file look large."""
    form = {"dtype": 7, "sizes": [{"as_int": 1 << 20}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}}
    entry = {"path_name": "w", "use_pickle": False, "tensor_meta": form}
    with zipfile.ZipFile(tmp_path / "n.pt2", "w") as package:
        package.writestr("n/data/weights/w", np.arange(1 << 20, dtype=np.float32).tobytes())
        config = {"config": {f"w{i}": entry for i in range(1000)}}
        package.writestr("n/data/weights/model_weights_config.json", json.dumps(config))
    found = read_torch_weights(tmp_path / "n.pt2")
    assert len({id(weight.data.obj) for weight in found if weight.data is not None}) == 1
    np.testing.assert_array_equal(found[-1].array(), np.arange(1 << 20, dtype=np.float32))
