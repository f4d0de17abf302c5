# ruff: noqa: E501
"""Mistakes that users make, each a few lines, with what leapp answers. ``docs/mistakes.md`` is written from it.

The line that the answer must name ends with ``# HERE``. ``issue`` says that the mistake came from a report; the rest were
found by using the library in a hurry.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MISTAKES", "PREAMBLE", "Mistake"]

PREAMBLE = """\
import numpy as np
import torch
from torch import nn
import leapp
from leapp import InferenceManager, TensorSemantics, annotate
"""

_STEP = """
def step(x):
    x = annotate.input_tensors("policy", {"x": x})
    return annotate.output_tensors("policy", {"y": x * 2.0}, export_with="onnx")
"""

_DONE = """
leapp.stop()
result = leapp.compile_graph(visualize=False)
"""

_BUNDLE = f"""{_STEP}
leapp.start("g")
for _ in range(2):
    step(torch.randn(3))
{_DONE}
manager = InferenceManager("g")
"""


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        name: What was done, in words.
        code: The program.
        answer: The class of the error, ``WARNING``, or ``RIGHT`` for what looks like a mistake and works.
        says: What the answer must hold.
        issue: Whether a user reported it.
    """

    name: str
    code: str
    answer: str
    says: tuple[str, ...]
    issue: bool = False


MISTAKES: list[Mistake] = []


def mistake(name: str, code: str, answer: str, *says: str, issue: bool = False) -> None:
    """Add a row."""
    MISTAKES.append(Mistake(name, code.strip("\n") + "\n", answer, says, issue))


def looped(body: str, passes: int = 2, before: str = "") -> str:
    """A session around a body."""
    inner = "\n".join(f"    {line}" if line else "" for line in body.strip("\n").splitlines())
    return f'{before}\nleapp.start("g")\nfor number in range({passes}):\n{inner}\n{_DONE}'


# -- mistakes from reports ---------------------------------------------------------------------------------------------

mistake("dropout left in training mode", looped('''
x = annotate.input_tensors("policy", {"x": torch.randn(2, 3)})
y = network(x)  # HERE
annotate.output_tensors("policy", {"y": y}, export_with="jit")
''', before="network = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))"), "WARNING", "Sequential.1 (Dropout)", ".eval()", issue=True)
mistake("batch norm left in training mode", looped('''
x = annotate.input_tensors("policy", {"x": torch.randn(2, 3)})
y = network(x)  # HERE
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
''', before="network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))"), "WARNING", "Sequential.1 (BatchNorm1d)", ".eval()", issue=True)
mistake("noise added inside the node", looped('''
x = annotate.input_tensors("policy", {"x": torch.randn(3)})
noise = torch.randn_like(x)  # HERE
y = x + noise
annotate.output_tensors("policy", {"y": y}, export_with="jit")
'''), "WARNING", "draws random numbers", "allow_random=True", issue=True)
mistake("torch.rand inside the node", looped('''
x = annotate.input_tensors("policy", {"x": torch.randn(3)})
noise = torch.rand(3)  # HERE
y = x + noise
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
'''), "WARNING", "draws random numbers", "allow_random=True", issue=True)
mistake("a generator of its own inside the node", looped('''
x = annotate.input_tensors("policy", {"x": torch.randn(3)})
noise = torch.rand(3, generator=generator)  # HERE
y = x + noise
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
''', before="generator = torch.Generator()"), "TraceError", "random numbers, drawn once and frozen", "input_tensors()")
mistake("update_state forgotten", looped('''
x = annotate.input_tensors("policy", {"x": torch.randn(3)})
h = annotate.state_tensors("policy", {"h": torch.zeros(3)})  # HERE
annotate.output_tensors("policy", {"y": x + h}, export_with="onnx")
'''), "WARNING", "'h'", "it became a constant input", "update_state", issue=True)
mistake("a state misspelt in update_state", looped('''
x = annotate.input_tensors("policy", {"x": torch.randn(3)})
h = annotate.state_tensors("policy", {"history": torch.zeros(3)})
annotate.update_state("policy", {"hisotry": h + x})  # HERE
annotate.output_tensors("policy", {"y": x + h}, export_with="onnx")
'''), "AnnotationError", "'hisotry'", "Did you mean 'history'", issue=True)
mistake("a state updated and never declared", looped('''
x = annotate.input_tensors("policy", {"x": torch.randn(3)})
annotate.update_state("policy", {"memory": x * 2.0})  # HERE
annotate.output_tensors("policy", {"y": x + 1.0}, export_with="onnx")
'''), "WARNING", "'memory'", "nothing reads it", issue=True)
mistake("one tensor given to two nodes", looped('''
obs = torch.randn(3)
a = annotate.input_tensors("a", {"obs": obs})
annotate.output_tensors("a", {"y": a * 2.0}, export_with="onnx")
b = annotate.input_tensors("b", {"obs": obs})  # HERE
annotate.output_tensors("b", {"z": b + 1.0}, export_with="onnx")
'''), "WARNING", "'a/obs'", "'b/obs'", "two graph inputs", issue=True)
_OWN = '''
x = annotate.input_tensors("policy", {{"x": torch.randn(3)}})
y = {code}
annotate.output_tensors("policy", {{"y": y}}, backend_params={{"model_path": "{path}"}})
'''
mistake("a brought model that is junk", looped(_OWN.format(code="x * 2.0", path="mine.onnx"),
    before='open("mine.onnx", "w").write("junk")'), "ExportError", "'policy'", "mine.onnx cannot be used", issue=True)
mistake("a brought model that does not exist", looped(_OWN.format(code="x * 2.0", path="mine.onnx")), "BundleFileError", "'policy'", "mine.onnx does not exist", issue=True)
mistake("a brought model of an unknown kind", looped(_OWN.format(code="x * 2.0", path="mine.h5"), before='open("mine.h5", "w").write("")'), "AnnotationError", "'mine.h5'", ".onnx", issue=True)
_SAVE = '''
class Mine(nn.Module):
    def forward(self, x):
        return {code}
torch.jit.trace(Mine(), torch.zeros(3)).save("mine.pt")
'''
mistake("a brought model of another shape", looped(_OWN.format(code="x * 2.0", path="mine.pt"), before=_SAVE.format(code="x[:2]")), "ValidationError", "mine.pt fails", "[2]", "[3]", issue=True)
mistake("a brought model with two outputs instead of one", looped(_OWN.format(code="torch.zeros(3)", path="mine.pt"), before=_SAVE.format(code="x, x + 1.0")), "ValidationError", "mine.pt fails", "returns 2 tensors", issue=True)
mistake("a brought model that computes something else", looped(_OWN.format(code="x * 2.0", path="mine.pt"), before=_SAVE.format(code="x * 3.0")), "ValidationError", "policy/y, sample 0", "computes something else", issue=True)
mistake("a brought model that writes to its input", looped(_OWN.format(code="x * 2.0", path="mine.pt"), before=_SAVE.format(code="x.mul_(2.0) + 0.0")), "ValidationError", "writes to its input 'x'", issue=True)
mistake("a brought model behind a placeholder", looped(_OWN.format(code="torch.zeros(3)", path="mine.pt"), before=_SAVE.format(code="x * 3.0")), "WARNING", "values not compared", "'y'", issue=True)
mistake("NaN in an output", looped('''
x = annotate.input_tensors("policy", {"x": torch.randn(3)})
y = torch.log(-x.abs())  # HERE
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
'''), "ValidationError", "policy/y, sample 0", "3 NaN (100.0 %)", "allow_nonfinite=True", issue=True)
mistake("a session without annotations", 'leapp.start("g")\nleapp.stop()\nleapp.compile_graph()', "SessionError", "nothing was traced", issue=True)
mistake("an if on a tensor", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
y = x * 2.0 if x.sum() > 0.0 else x  # HERE
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
'''), "WARNING", "__bool__", "`if` on a tensor froze the branch; use torch.where", issue=True)
mistake("an if on a tensor that goes both ways", looped('''
x = annotate.input_tensors("policy", {"x": torch.ones(3) * (1 - 2 * number)})
y = x * 2.0 if x.sum() > 0.0 else torch.sin(x)  # HERE
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
'''), "TraceError", "torch.where", issue=True)
mistake("float() of a tensor", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
y = x * float(x[0])  # HERE
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
'''), "TraceError", "differs between passes", issue=True)
mistake(".item() in a single pass", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
y = x * x[0].item()  # HERE
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
''', passes=1), "WARNING", "item", ".item() froze the number; compute with the tensor", issue=True)
mistake("an unknown backend", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
annotate.output_tensors("policy", {"y": x + 1.0}, export_with="nonsense")  # HERE
'''), "ExportError", "'nonsense'", "Choose one of 'jit'", "'onnx'", "'pt2'", issue=True)
mistake("a misspelt backend", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
annotate.output_tensors("policy", {"y": x + 1.0}, export_with="onxx")  # HERE
'''), "ExportError", "Did you mean 'onnx'", issue=True)
mistake("a key without its node", f"{_BUNDLE}\nmanager({{'x': torch.zeros(3)}})", "InputError", "'x'", "Did you mean 'policy/x'", issue=True)
mistake("a misspelt kind", looped('''
q = TensorSemantics("q", torch.rand(3), kind="state/joint/positon")
q = annotate.input_tensors("policy", q)  # HERE
annotate.output_tensors("policy", {"y": q + 1.0}, export_with="onnx")
'''), "WARNING", "'state/joint/positon'", "Did you mean 'state/joint/position'", issue=True)
mistake("a hidden tensor kept in an attribute, in one pass", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
memory.h = memory.h * 0.9 + x  # HERE
annotate.output_tensors("policy", {"y": memory.h + 1.0}, export_with="onnx")
''', passes=1, before="class Memory:\n    h = torch.zeros(3)\nmemory = Memory()"), "WARNING", "undeclared state", "state_tensors", issue=True)
mistake("a hidden tensor kept in an attribute", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
memory.h = memory.h * 0.9 + x  # HERE
annotate.output_tensors("policy", {"y": memory.h + 1.0}, export_with="onnx")
''', before="class Memory:\n    h = torch.zeros(3)\nmemory = Memory()"), "TraceError", "undeclared state", "update_state()", issue=True)
mistake("set_input_value with another dtype", f"{_BUNDLE}\nmanager.set_input_value('policy', 'x', torch.zeros(3, dtype=torch.float64))", "InputError", "float64", "float32", issue=True)

# -- mistakes that were not reported -----------------------------------------------------------------------------------

mistake("stop() without start()", "leapp.stop()", "SessionError", "no session is open", "leapp.start()")
mistake("compile_graph() before stop()", f'{_STEP}\nleapp.start("g")\nstep(torch.randn(3))\nleapp.compile_graph()', "SessionError", "leapp.stop() first")
mistake("compile_graph() without start()", "leapp.compile_graph()", "SessionError", "leapp.start() first")
mistake("a misspelt keyword of start()", 'leapp.start("g", save_pth="out")', "AnnotationTypeError", "'save_pth'", "'save_path'")
mistake("a misspelt keyword of compile_graph()", f'{_STEP}\nleapp.start("g")\nstep(torch.randn(3))\nleapp.stop()\nleapp.compile_graph(validat=True)', "AnnotationTypeError", "'validat'", "'validate'")
mistake("outputs declared for a misspelt node", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
annotate.output_tensors("polcy", {"y": x + 1.0}, export_with="onnx")  # HERE
'''), "SessionError", "no node 'polcy'", "Did you mean 'policy'")
mistake("outputs never declared", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
''', passes=1), "SessionError", "policy", "output_tensors()")
mistake("the computation before input_tensors()", looped('''
x = torch.rand(3)
y = x * 2.0
annotate.input_tensors("policy", {"x": x})
annotate.output_tensors("policy", {"y": y}, export_with="onnx")  # HERE
'''), "TraceError", "'y'", "not computed from the node's")
mistake("the result of input_tensors() thrown away", looped('''
x = torch.rand(3)
annotate.input_tensors("policy", {"x": x})
annotate.output_tensors("policy", {"y": x * 2.0}, export_with="onnx")
'''), "RIGHT")
mistake("a bare tensor instead of a dict", looped('''
x = annotate.input_tensors("policy", torch.rand(3))  # HERE
'''), "AnnotationTypeError", "policy", "dict")
mistake("a string as a node's payload value", looped('''
name, x = annotate.input_tensors("policy", {"name": "obs", "x": torch.rand(3)})  # HERE
annotate.output_tensors("policy", {"y": x + 1.0}, export_with="onnx")
'''), "WARNING", "'name'", "a value of type str is not a tensor")
mistake("an output that is a Python number", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
annotate.output_tensors("policy", {"y": float(x.sum())}, export_with="onnx")  # HERE
'''), "AnnotationError", "policy", "no output")
mistake("a node name with a slash", looped('''
x = annotate.input_tensors("robot/policy", {"x": torch.rand(3)})  # HERE
'''), "AnnotationError", "'robot/policy'", "cannot be a node name")
mistake("a port name with a slash", looped('''
x = annotate.input_tensors("policy", {"obs/x": torch.rand(3)})  # HERE
'''), "AnnotationError", "'obs/x'", "'_'")
mistake("two inputs with one name", looped('''
a = annotate.input_tensors("policy", {"x": torch.rand(3)})
b = annotate.input_tensors("policy", {"x": torch.rand(4)})  # HERE
'''), "AnnotationError", "'x'", "another name")
mistake("another batch size in the second pass", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(2 + number, 3)})  # HERE
annotate.output_tensors("policy", {"y": x + 1.0}, export_with="onnx")
'''), "AnnotationError", "'x'", "[2, 3]", "[3, 3]")
mistake("another dtype in the second pass", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3).to([torch.float32, torch.float64][number])})  # HERE
annotate.output_tensors("policy", {"y": x + 1.0}, export_with="onnx")
'''), "AnnotationError", "float32", "float64")
mistake("the same inputs in every pass", looped('''
x = annotate.input_tensors("policy", {"x": x0})
annotate.output_tensors("policy", {"y": x + 1.0}, export_with="onnx")
''', before="x0 = torch.rand(3)"), "WARNING", "'policy'", "same inputs in every pass")
mistake("one pass only", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
annotate.output_tensors("policy", {"y": x + 1.0}, export_with="onnx")
''', passes=1), "WARNING", "'policy'", "one pass only")
mistake("an input that reaches no output", looped('''
x, unused = annotate.input_tensors("policy", {"x": torch.rand(3), "unused": torch.rand(3)})
annotate.output_tensors("policy", {"y": x + 1.0}, export_with="onnx")
'''), "WARNING", "no output depends on 'unused'")
mistake("update_state() after output_tensors()", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
h = annotate.state_tensors("policy", {"h": torch.zeros(3)})
annotate.output_tensors("policy", {"y": x + h}, export_with="onnx")
annotate.update_state("policy", {"h": h + x})  # HERE
'''), "SessionError", "policy/h", "before declaring the outputs")
mistake("a state of another shape in update_state()", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
h = annotate.state_tensors("policy", {"h": torch.zeros(3)})
annotate.update_state("policy", {"h": (h + x)[None]})  # HERE
annotate.output_tensors("policy", {"y": x + h}, export_with="onnx")
'''), "AnnotationError", "'h'", "[3]", "[1, 3]")
mistake("states in a list", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
h = annotate.state_tensors("policy", {"h": [torch.zeros(3), torch.zeros(3)]})  # HERE
'''), "AnnotationTypeError", "'h'", "flat")
mistake("a value of another node used without declaring it", looped('''
x = annotate.input_tensors("a", {"x": torch.rand(3)})
y = x * 2.0
annotate.output_tensors("a", {"y": y}, export_with="onnx")
z = annotate.input_tensors("b", {"z": torch.rand(3)})
annotate.output_tensors("b", {"w": z + y}, export_with="onnx")  # HERE
'''), "TraceError", "'b'", "'a'", "input_tensors('b'")
mistake("an operation between two nodes", looped('''
x = annotate.input_tensors("a", {"x": torch.rand(3)})
y = annotate.output_tensors("a", {"y": x * 2.0}, export_with="onnx")
y = y * 0.5
z = annotate.input_tensors("b", {"y": y})  # HERE
annotate.output_tensors("b", {"w": z + 1.0}, export_with="onnx")
'''), "WARNING", "a/y", "b", "mul")
mistake("the decorator without parentheses", '@annotate.method\ndef policy(x):\n    return x * 2.0', "AnnotationTypeError", "parentheses")
mistake("a decorated function that returns nothing", '''
@annotate.method(export_with="onnx")
def policy(x):
    x * 2.0
leapp.start("g")
policy(torch.rand(3))  # HERE
''', "AnnotationTypeError", "'policy'", "returned None")
mistake("a misspelt keyword of the decorator", '@annotate.method(exportwith="onnx")\ndef policy(x):\n    return x * 2.0', "AnnotationTypeError", "'exportwith'", "'export_with'")
mistake("a misspelt backend parameter", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
annotate.output_tensors("policy", {"y": x + 1.0}, export_with="onnx", backend_params={"opset": 17})  # HERE
'''), "ExportError", "'opset'", "'opset_version'")
mistake("something else given as a module", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
annotate.module("policy", lambda x: x)  # HERE
'''), "AnnotationTypeError", "nn.Module", "function")
mistake("a buffer that the module does not have", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
annotate.module("policy", nn.BatchNorm1d(3), buffer_names=["runing_mean"])  # HERE
'''), "AnnotationError", "'runing_mean'", "'running_mean'")
mistake("a counter in Python", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
count += 1
y = x * count  # HERE
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
''', before="count = 0"), "TraceError", "a number that differs between the passes", "state_tensors()")
mistake("the clock inside a node", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
y = x * time.perf_counter()  # HERE
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
''', before="import time"), "TraceError", "a number that differs between the passes", "input_tensors()")
mistake("weights trained between the passes", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
y = network(x)  # HERE
annotate.output_tensors("policy", {"y": y}, export_with="onnx")
with torch.no_grad():
    network.weight.add_(1.0)
''', before="network = nn.Linear(3, 3)"), "TraceError", "weight")
mistake("graph_outputs with an unknown name", looped('''
x = annotate.input_tensors("policy", {"x": torch.rand(3)})
annotate.output_tensors("policy", {"action": x + 1.0}, export_with="onnx", graph_outputs=["acton"])  # HERE
'''), "AnnotationError", "'acton'", "'action'")
mistake("an unknown target", f'{_STEP}\nleapp.start("g")\nfor _ in range(2):\n    step(torch.rand(3))\nleapp.stop()\nleapp.compile_graph(target="jetson")', "AnnotationError", "'jetson'", "'tensorrt'")
mistake("validate with a wrong word", f'{_STEP}\nleapp.start("g")\nfor _ in range(2):\n    step(torch.rand(3))\nleapp.stop()\nleapp.compile_graph(validate="full")', "AnnotationError", "'full'", "'thorough'")
mistake("escapes with a wrong word", 'leapp.start("g", escapes="warning")', "AnnotationError", "'warning'", "'warn'")
mistake("min_passes that the loop does not reach", f'{_STEP}\nleapp.start("g", min_passes=3)\nfor _ in range(2):\n    step(torch.rand(3))\n{_DONE}', "TraceError", "min_passes=3", "'policy' (2)")
mistake("a bundle that does not exist", 'InferenceManager("nowhere")', "BundleFileError", "nowhere", "does not exist")
mistake("a model file instead of the bundle", f'{_BUNDLE}\nInferenceManager("g/policy.onnx")', "BundleError", "policy.onnx", ".yaml")
mistake("an input left out", f"{_BUNDLE}\nmanager({{}})", "InputError", "Missing input 'policy/x'")
mistake("an input of another shape", f"{_BUNDLE}\nmanager({{'policy/x': torch.zeros(4)}})", "InputError", "policy/x", "[3]", "[4]")
mistake("an input of another dtype", f"{_BUNDLE}\nmanager({{'policy/x': np.zeros(3)}})", "InputError", "policy/x", "float64", "float32")
mistake("a misspelt input", f"{_BUNDLE}\nmanager({{'polcy/x': torch.zeros(3)}})", "UnknownPortError", "'polcy'", "Did you mean 'policy/x'")
mistake("a tensor instead of a dict at run time", f"{_BUNDLE}\nmanager(torch.zeros(3))", "InputTypeError", "mapping", "Tensor")
mistake("a model changed after the export", f'{_BUNDLE}\nopen("g/policy.onnx", "ab").write(b"x")\nInferenceManager("g")', "BundleError", "policy.onnx", "checksum mismatch")
mistake("only the YAML copied to the robot", f'{_BUNDLE}\nimport os, shutil\nos.mkdir("robot")\nshutil.copy("g/g.yaml", "robot")\nInferenceManager("robot")', "BundleFileError", "policy.onnx", "Copy the whole bundle directory")
mistake("an exception of leapp looked for in the wrong place", "leapp.LeappError", "AttributeError", "leapp.errors.LeappError")
mistake("a name of leapp misspelt", "leapp.InferenceManger", "AttributeError", "InferenceManager")
mistake("tracing under inference_mode", looped('''
with torch.inference_mode():
    x = annotate.input_tensors("policy", {"x": torch.rand(3)})
    annotate.output_tensors("policy", {"y": network(x)}, export_with="onnx")
''', before="network = nn.Linear(3, 3)"), "RIGHT")
mistake("start() called twice", f'{_STEP}\nleapp.start("g")\nstep(torch.rand(3))\nleapp.start("g")\nleapp.stop()', "WARNING", "start() was called while a session was open")
