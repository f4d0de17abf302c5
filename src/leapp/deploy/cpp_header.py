"""Writes a C++ header for one bundle: structs for inputs and outputs, enums of element names. A misspelt name cannot compile.

The header uses ``leapp/typed.hpp`` of the C++ runtime in ``cpp/``. It is made from the description of the ports only.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from leapp.bundle import Bundle, open_bundle
from leapp.errors import BundleError
from leapp.graph.contract import Port, split_key
from leapp.runtime.plan import make_plan
from leapp.runtime.ports import describe

_TYPES = {
    "float32": "float", "float64": "double", "bool": "bool", "complex64": "std::complex<float>",
    "complex128": "std::complex<double>", **{f"{sign}int{bits}": f"std::{sign}int{bits}_t" for sign in ("", "u")
    for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""C++ types by dtype. The C++ runtime defines a type of the same name for the other dtypes."""

_KEYWORDS = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class co_await
    co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept
    not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return short signed sizeof
    static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename union
    unsigned using virtual void volatile wchar_t while xor xor_eq std leapp""".split()
)


@dataclass(frozen=True, slots=True)
class CppHeader:
    """The header that was written.

    Attributes:
        path: The header.
        namespace: The namespace in it.
        inputs: For each input key the field of ``Inputs``.
        outputs: For each output key the field of ``Outputs``.
        enums: For each enum its element names.
        digest: The digest of the bundle it belongs to.

    Example:
        >>> deploy_cpp("exports/my_policy", "generated").enums
        {'Joint': ('hip', 'knee')}
    """

    path: Path
    namespace: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    enums: dict[str, tuple[str, ...]]
    digest: str | None


def deploy_cpp(bundle: str | os.PathLike[str] | Bundle, directory: str | os.PathLike[str]) -> CppHeader:
    """Write a C++ header with types for one bundle.

    Args:
        bundle: The bundle's YAML file or its directory, or a bundle that is already open.
        directory: Where ``<graph>.hpp`` is written. It is created if it does not exist.

    Raises:
        BundleError: A node is not an ONNX model; the C++ runtime runs only those.

    Example:
        >>> deploy_cpp("exports/my_policy", "generated").inputs
        {'policy/obs': 'obs'}
    """
    if not isinstance(bundle, Bundle):
        bundle = open_bundle(bundle)
    plan = make_plan(bundle.contract)
    for name, node in bundle.contract.nodes.items():
        if node.model.backend != "onnx":
            what = "no model" if node.model.backend is None else f"a {node.model.backend} model"
            raise BundleError(f"Node {name!r} has {what}; the C++ runtime runs ONNX. Export it with export_with='onnx'.")
    one_row = plan if plan.batch is None else plan.at(1)
    inputs = {key: one_row.input_ports[key] for key in plan.inputs}
    outputs = {key: one_row.output_ports[key] for key in plan.outputs}
    enums = _enums({**inputs, **outputs})
    namespace = _identifier(bundle.graph, ())
    given, made = _Side("Input", inputs, enums.values()), _Side("Output", outputs, enums.values())
    path = Path(directory) / f"{bundle.graph}.hpp"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _text(bundle, namespace, given, made, enums, any_batch=plan.batch is not None)
    path.write_text(text, encoding="utf-8", newline="\n")
    named = {name: names for names, name in enums.items()}
    return CppHeader(path, namespace, given.fields, made.fields, named, bundle.digest)


class _Side:
    """The inputs, or the outputs, of the pipeline.

    Attributes:
        title: ``Input`` or ``Output``.
        ports: The port of each key.
        fields: The field of each key: the name of its port, with the name of the node if several nodes have such a port.
    """

    def __init__(self, title: str, ports: Mapping[str, Port], taken: Collection[str]) -> None:
        self.title, self.ports = title, ports
        self.fields: dict[str, str] = {}
        names = [port.name for port in ports.values()]
        for key, port in ports.items():
            text = port.name if names.count(port.name) == 1 else key
            self.fields[key] = _identifier(text, {*self.fields.values(), *taken})


def _identifier(text: str, taken: Collection[str]) -> str:
    """A C++ identifier for a text, different from the taken ones."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    name = re.sub(r"__+", "_", name).strip("_") or "value"
    if name[0].isdigit() or name in _KEYWORDS:
        name = f"n{name}" if name[0].isdigit() else f"{name}_"
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def _elements(key: str, port: Port) -> tuple[str, ...] | None:
    """The names of all elements of a port, in order; None unless each element has a unique name."""
    names = describe(key, port, "").element_names
    return names if names and len(set(names)) == len(names) == math.prod(port.shape) else None


def _enums(ports: Mapping[str, Port]) -> dict[tuple[str, ...], str]:
    """An enum for every list of element names, named after what the elements are, such as ``Joint``."""
    found: dict[tuple[str, ...], str] = {}
    for key, port in ports.items():
        names = _elements(key, port)
        if names is not None and names not in found:
            word = "joint" if "/joint/" in f"{port.kind}/" else split_key(key)[1]
            title = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", word))
            found[names] = _identifier(title, {*found.values(), "Inputs", "Outputs", "Policy"})
    return found


def _enumerators(names: Iterable[str]) -> list[str]:
    made: list[str] = []
    for name in names:
        made.append(_identifier(name, made))
    return made


def _quoted(text: str) -> str:
    """A C++ string literal."""
    escaped = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{escaped}"'


def _comment(text: str) -> str:
    """Text for a ``//`` comment, without characters that would end or continue the line."""
    return re.sub(r"[^\x20-\x7e]", "?", text).replace("\\", "/")


def _type(dtype: str) -> str:
    return _TYPES.get(dtype, f"leapp::{dtype}")


def _struct(side: _Side, enums: Mapping[tuple[str, ...], str]) -> list[str]:
    lines = [f"struct {side.title}s {{"]
    for key, port in side.ports.items():
        names, kind, count = _elements(key, port), _type(port.dtype), math.prod(port.shape)
        kind = f"leapp::Named<{kind}, {enums[names]}, {count}>" if names else f"std::array<{kind}, {count}>"
        about = [key, str(list(port.shape)), *(str(fact) for fact in (port.kind, port.units) if fact)]
        lines.append(f"  {kind} {side.fields[key]}{'' if names else '{}'};  ///< {_comment(', '.join(about))}")
    return [*lines, "};", ""]


def _text(
    bundle: Bundle, namespace: str, inputs: _Side, outputs: _Side, enums: Mapping[tuple[str, ...], str], *, any_batch: bool
) -> str:
    digest = bundle.digest or ""
    frequency = bundle.contract.pipeline.frequency
    lines = [
        f"// The bundle {_comment(bundle.graph)} with types. Written by leapp deploy cpp: do not edit, write it again.",
        "#pragma once",
        "",
        "#include <array>",
        "#include <complex>",
        "#include <cstdint>",
        "#include <cstring>",
        "#include <leapp/typed.hpp>",
        "",
        f"namespace {namespace} {{",
        "",
        "/// The bundle this header belongs to; empty if it carries no seal.",
        f"inline constexpr char digest[] = {_quoted(digest)};",
    ]
    if isinstance(frequency, (int, float)) and not isinstance(frequency, bool) and math.isfinite(frequency):
        lines += ["/// The rate in hertz it was made for.", f"inline constexpr double frequency = {float(frequency)!r};"]
    lines.append("")
    for names, enum in enums.items():
        lines += [f"enum class {enum} : std::size_t {{"]
        lines += [f"  {word} = {place}," for place, word in enumerate(_enumerators(names))]
        listed = ", ".join(map(_quoted, names))
        lines += ["};", f"inline constexpr std::array<const char*, {len(names)}> names_of_{enum} = {{{listed}}};", ""]
    lines += [*_struct(inputs, enums), *_struct(outputs, enums), *_policy(inputs, outputs, any_batch=any_batch)]
    return "\n".join([*lines, f"}}  // namespace {namespace}", ""])


def _policy(inputs: _Side, outputs: _Side, *, any_batch: bool) -> list[str]:
    handles = []
    for side in (inputs, outputs):
        what = side.title.lower()
        for key, port in side.ports.items():
            kind = f"<{_type(port.dtype)}>"
            handles.append(f"  leapp::{side.title}{kind} {what}_{side.fields[key]}_ = pipeline_.{what}{kind}({_quoted(key)});")
    taken = [f"    input_{f}_.set(inputs.{f}.data(), inputs.{f}.size());" for f in inputs.fields.values()]
    given = [f"    std::copy_n(output_{f}_.data(), output_{f}_.size(), outputs.{f}.data());" for f in outputs.fields.values()]
    one_row = ["    if (pipeline_.batch() != 1) pipeline_.reset_batch(1);"] if any_batch else []
    return [
        "/// The bundle, opened. One thread at a time.",
        "class Policy {",
        " public:",
        "  Policy(const std::filesystem::path& path, leapp::Engine& engine, leapp::Options options = {})",
        "      : pipeline_(path, engine, leapp::detail::pinned(std::move(options), digest)) {",
        *one_row,
        "  }",
        "  /// One step. If it throws, the state is as it was.",
        f"  void step({'const Inputs& inputs' if taken else 'const Inputs&'}, Outputs& outputs) {{",
        *taken,
        "    pipeline_.step();",
        *given,
        "  }",
        "  /// Put the state back to its initial values.",
        "  void reset() { pipeline_.reset(); }",
        "  leapp::Pipeline& pipeline() { return pipeline_; }",
        "",
        " private:",
        "  leapp::Pipeline pipeline_;",
        *handles,
        "};",
        "",
    ]
