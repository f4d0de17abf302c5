"""What an editor makes of leapp: mypy and pyright check programs that use it, and pyright completes its calls.

pyright comes from PyPI as basedpyright, which brings its own node, into a venv of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leapp
from tests.venvs import programs_of

HERE, REPOSITORY = Path(__file__).parent, Path(__file__).resolve().parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
RECIPES = sorted((REPOSITORY / "examples" / "recipes").glob("*.py"))

Found = list[tuple[Path, int, str]]


@pytest.fixture(scope="module")
def pyright() -> Path:
    """The directory with pyright's programs."""
    return programs_of("pyright", "basedpyright==1.40.2")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pyright's own settings, and where leapp is if it is not installed but on the path."""
    directory = tmp_path_factory.mktemp("project")
    files = [str(file) for file in (HERE / "typical.py", HERE / "mistaken.py", *EXAMPLES, *RECIPES)]
    source = str(Path(leapp.__file__).parents[1])
    config = {"typeCheckingMode": "standard", "include": files, "extraPaths": [source]}
    (directory / "pyrightconfig.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def by_pyright(pyright: Path, project: Path) -> Found:
    done = subprocess.run(
        [pyright / "basedpyright", "-p", project, "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 2 + len(EXAMPLES) + len(RECIPES)
    return [
        (Path(d["file"]), d["range"]["start"]["line"] + 1, d["message"])
        for d in found["generalDiagnostics"]
        if d["severity"] == "error"
    ]


@pytest.fixture(scope="module")
def by_mypy() -> Found:
    """One run over all files with the strict settings of ``make lint``, whose cache has the types of torch and NumPy."""
    files = (HERE / "typical.py", HERE / "mistaken.py", *EXAMPLES)
    done = subprocess.run([sys.executable, "-m", "mypy", *files], capture_output=True, text=True, cwd=REPOSITORY)
    assert f"checked {len(files)} source files" in done.stdout, done.stdout + done.stderr
    lines = re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return [(REPOSITORY / file, int(line), text) for file, line, text in lines]


def test_programs_of_users_have_no_errors(by_pyright: Found, by_mypy: Found) -> None:
    """The examples return what a torch module returns, which has the type Any."""
    assert [found for found in by_pyright if found[0] in (HERE / "typical.py", *EXAMPLES)] == []
    assert [found for found in by_mypy if found[0] == HERE / "typical.py"] == []
    assert [found for found in by_mypy if found[0] in EXAMPLES and "[no-any-return]" not in found[2]] == []


def test_recipes_have_no_errors_in_calls_of_leapp(by_pyright: Found) -> None:
    """The packages of the recipes are not typed in full, so only lines about leapp count."""
    ours = re.compile(r"\b(leapp|annotate|manager|pipeline|InferenceManager|Pipeline)\b")
    lines = [(file.name, n, text) for file, n, text in by_pyright if file in RECIPES and ours.search(line(file, n))]
    assert lines == []


def line(file: Path, number: int) -> str:
    return file.read_text().splitlines()[number - 1]


def test_mistakes_are_shown_while_they_are_typed(by_pyright: Found, by_mypy: Found) -> None:
    file = HERE / "mistaken.py"
    wrong = [n for n, text in enumerate(file.read_text().splitlines(), 1) if text.endswith("# wrong")]
    assert wrong
    assert sorted({n for found, n, _ in by_pyright if found == file}) == wrong
    assert sorted({n for found, n, _ in by_mypy if found == file}) == wrong


class Editor:
    """The little of the language server protocol that completions need."""

    def __init__(self, server: Path, project: Path) -> None:
        self._process = subprocess.Popen([server, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._file, self._number, self._version = (project / "edited.py").as_uri(), 0, 0
        folder = [{"uri": project.as_uri(), "name": "project"}]
        self.ask("initialize", {"processId": None, "rootUri": project.as_uri(), "workspaceFolders": folder, "capabilities": {}})
        self._send({"method": "initialized", "params": {}})
        python = {"python": {"pythonPath": sys.executable}}
        self._send({"method": "workspace/didChangeConfiguration", "params": {"settings": python}})
        document = {"uri": self._file, "languageId": "python", "version": 0, "text": ""}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while header := self._process.stdout.readline().strip():
            if header.lower().startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        assert length, "the server is gone"
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == self._number and "method" not in message:
                return message["result"]
            if "id" in message and "method" in message:  # the server asks us: no settings beyond its file
                items = message.get("params", {}).get("items", ())
                answer = [{"pythonPath": sys.executable} if item.get("section") == "python" else None for item in items]
                self._send({"id": message["id"], "result": answer})

    def at_the_end_of(self, text: str, method: str) -> Any:
        """What the server knows of the place after the last character of a program."""
        self._version += 1
        changed = {"textDocument": {"uri": self._file, "version": self._version}, "contentChanges": [{"text": text}]}
        self._send({"method": "textDocument/didChange", "params": changed})
        place = {"line": text.count("\n"), "character": len(text) - text.rfind("\n") - 1}
        return self.ask(f"textDocument/{method}", {"textDocument": {"uri": self._file}, "position": place})

    def completions(self, text: str) -> set[str]:
        return {item["label"].strip("\"'=") for item in self.at_the_end_of(text, "completion")["items"]}

    def help(self, text: str) -> str:
        """What stands beside the cursor after an opening parenthesis."""
        shown = self.at_the_end_of(text, "signatureHelp")
        return "\n".join(f"{s['label']}\n{s.get('documentation', {}).get('value', '')}" for s in shown["signatures"])

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def editor(pyright: Path, project: Path) -> Iterator[Editor]:
    made = Editor(pyright / "basedpyright-langserver", project)
    yield made
    made.close()


def test_every_public_name_completes(editor: Editor) -> None:
    assert set(leapp.__all__) - {"__version__"} <= editor.completions("import leapp\nleapp.")
    public = {name for name in dir(leapp.annotate) if not name.startswith("_")}
    assert public <= editor.completions("from leapp import annotate\nannotate.")
    opened = "from leapp.runtime import Pipeline\npipeline = Pipeline('policy')\npipeline."
    assert {"reset", "state", "load_state", "bind", "record", "input_ports", "outputs"} <= editor.completions(opened)
    manager = "from leapp import InferenceManager\nInferenceManager('policy')."
    assert {"run_policy", "reset", "feedback_inputs", "get_mock_input"} <= editor.completions(manager)


@pytest.mark.parametrize(
    ("text", "some"),
    [
        ("from leapp import annotate\nannotate.output_tensors('n', {}, export_with='", {"onnx", "pt2", "jit"}),
        ("from leapp import annotate\nannotate.output_tensors('n', {}, backend_params={'", {"opset_version", "model_path"}),
        ("from leapp import annotate\nannotate.output_tensors('n', y, ", {"export_with", "graph_outputs", "static_outputs"}),
        ("import leapp\nleapp.start('g', escapes='", {"warn", "error", "ignore"}),
        ("import leapp\nleapp.start('g', ", {"save_path", "min_passes", "dynamic_batch"}),
        ("import leapp\nleapp.compile_graph(target='", {"onnxruntime", "tensorrt", "openvino", "isaac-ros"}),
        ("import leapp\nleapp.session('g', compile={'", {"fuse", "graph_configs", "strict"}),
        ("from leapp.runtime import Pipeline\nPipeline('p', nonfinite='", {"ignore", "warn", "raise"}),
        ("from leapp import InputKindEnum\nkind = InputKindEnum.", {"JOINT_POSITION", "WRENCH"}),
    ],
)  # fmt: skip
def test_arguments_complete(text: str, some: set[str], editor: Editor) -> None:
    assert some <= editor.completions(text)


@pytest.mark.parametrize(
    ("text", "some"),
    [
        ("from leapp.runtime import Pipeline\nPipeline(", "execution providers"),
        ("from leapp import InferenceManager\nInferenceManager(", "execution providers"),
        ("import leapp\nleapp.start(", "One pass cannot show"),
        ("import leapp\nleapp.session(", "stopped on the way out"),
        ("from leapp import TensorSemantics\nTensorSemantics(", "what it means"),
        ("from leapp import annotate\nannotate.method(", "its arguments are the inputs"),
    ],
)
def test_calls_are_explained_where_they_are_typed(text: str, some: str, editor: Editor) -> None:
    assert re.search(some, editor.help(text))
