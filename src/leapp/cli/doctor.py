"""``leapp doctor``: versions, engines and known problems of this machine."""

from __future__ import annotations

import platform
import re
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec

from leapp.bundle.system import leapp_version, package_version
from leapp.cli.output import Answer, Cell, Table, Text
from leapp.extras import EXPORT, INSTALL

PACKAGES = {
    "numpy": "1.26", "msgspec": "0.19", "pyyaml": "6", "onnxruntime": "1.20", "onnx": "1.19", "onnxscript": "0.7.1",
    "onnx-ir": "0.1.16", "pillow": "10", "rich": "13", "torch": "2.7",
}  # fmt: skip
"""The packages that leapp uses, each with the oldest supported version."""

_EXPORT = (*EXPORT.values(), "rich")
"""The packages that ``leapp[export]`` installs."""

_BUILDS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")
"""Packages that contain ONNX Runtime."""


def command(arguments: Namespace) -> Answer:
    """Versions, engines and known problems of this machine."""
    own = leapp_version()
    versions = {name: _version(name) for name in PACKAGES}
    providers, failure = _providers()
    problems = [*_problems(versions, failure)]
    data = {
        "leapp": own,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "providers": providers,
        "problems": [{"level": level, "text": text} for level, text in problems],
    }
    rows: list[list[Cell]] = [["leapp", own, ""], ["python", platform.python_version(), ""]]
    rows += [[name, found or ("missing", "yellow"), f"at least {PACKAGES[name]}"] for name, found in versions.items()]
    style = {"error": "red", "note": "yellow"}
    parts: list[Table | Text] = [
        Table(platform.platform(), ("what", "version", "needed"), rows),
        Table("ONNX Runtime providers", ("provider",), [[name] for name in providers]),
        Table("Problems", ("level", "what"), [[(level, style[level]), text] for level, text in problems]),
    ]
    if not problems:
        parts.append(Text("No known problems.", "green"))
    return Answer(data, parts, 1 if any(level == "error" for level, _ in problems) else 0)


def _version(name: str) -> str | None:
    names = _BUILDS if name == "onnxruntime" else (name,)
    return next((found for candidate in names if (found := package_version(candidate)) is not None), None)


def _providers() -> tuple[list[str], str | None]:
    try:
        import onnxruntime
    except Exception as error:  # importing a broken build may raise any type
        return [], " ".join(str(error).split())
    return list(onnxruntime.get_available_providers()), None


def _problems(versions: dict[str, str | None], failure: str | None) -> Iterator[tuple[str, str]]:
    for name, found in versions.items():
        if found is None and name not in ("torch", *_EXPORT):
            yield "error", f"{name} is not installed: pip install {name}."
        elif found is not None and _numbers(found) < _numbers(PACKAGES[name]):
            yield "error", f"{name} {found} is older than {PACKAGES[name]}: pip install -U {name}."
    if failure is not None and versions["onnxruntime"] is not None:
        yield "error", f"onnxruntime cannot be imported: {failure}."
    if missing := [name for name in _EXPORT if versions[name] is None]:
        yield "note", f"bundles run here; exporting, fusing and drawing need {', '.join(missing)}: {INSTALL}."
    if versions["torch"] is None:
        yield "note", "torch is not installed: ONNX bundles run; exporting, TorchScript and .pt2 nodes need it."
    builds = [name for name in _BUILDS if package_version(name) is not None]
    if len(builds) > 1:
        yield "error", f"{' and '.join(builds)} overwrite each other's files: uninstall all of them and install one."
    if find_spec("ml_dtypes") is None:
        yield "note", "ml_dtypes is not installed: bfloat16 and 8-bit float ports cannot be fed."
    if _plain_font():
        yield "note", "no DejaVu, Noto, Liberation or Arial font was found: pictures use a plain one without bold."


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text.split("+")[0])[:3])


def _plain_font() -> bool:
    try:
        from PIL import ImageFont
    except ImportError:
        return False
    from leapp.view.text import TYPEFACES

    def found(name: str) -> bool:
        try:
            ImageFont.truetype(name, 12)
        except OSError:
            return False
        return True

    return not any(found(regular) for regular, _ in TYPEFACES)
