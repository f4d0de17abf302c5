"""What users build: the installed package, the example, and the header that ``leapp deploy cpp`` writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from leapp.bundle import open_bundle
from leapp.deploy import deploy_cpp
from leapp.runtime import Pipeline
from tests.cpp.conftest import BUILD, ROOT, call
from tests.cpp.makers import MAKERS

DEPS = BUILD / "deps"
FLAGS = [
    "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT}/cpp/include", f"-I{DEPS}/yaml/usr/include",
    "-isystem", f"{DEPS}/onnxruntime/include",
]  # fmt: skip

TYPED = """
#include <leapp/onnxruntime.hpp>
#include "quadruped.hpp"
#include <cstdio>
#include <type_traits>

static_assert(decltype(quadruped::Inputs::position)::size() == 12 && quadruped::frequency == 50.0);
static_assert(!std::is_same_v<quadruped::Joint, quadruped::Rotation>);

int main(int, char** words) {
  leapp::OnnxRuntime engine;
  quadruped::Policy policy(words[1], engine);
  quadruped::Inputs in;
  quadruped::Outputs out;
  in.rotation[quadruped::Rotation::w] = 1;
  for (int step = 0; step < 10; ++step) {
    in.position[quadruped::Joint::JOINT] = 0.1f * static_cast<float>(step);
    policy.step(in, out);
  }
  for (float target : out.targets) std::printf("%a\\n", static_cast<double>(target));
}
"""


def compiled(source: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "main.cpp").write_text(source)
    command = ["g++", *FLAGS, f"-I{folder}", *more, str(folder / "main.cpp")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_header_runs_and_a_misspelt_joint_does_not_compile(bundles, tmp_path):
    import numpy as np

    deploy_cpp(open_bundle(bundles / "quadruped"), tmp_path)
    libraries = [
        f"-L{DEPS}/onnxruntime/lib", f"-Wl,-rpath,{DEPS}/onnxruntime/lib", f"-L{DEPS}/yaml/usr/lib/x86_64-linux-gnu",
        "-o", str(tmp_path / "main"),
    ]  # fmt: skip
    source = tmp_path / "main.cpp"
    source.write_text(TYPED.replace("JOINT", "RR_calf"))
    call("g++", *FLAGS, f"-I{tmp_path}", source, *libraries, "-lonnxruntime", "-lyaml")
    printed = [float.fromhex(line) for line in call(tmp_path / "main", bundles / "quadruped").split()]
    pipeline = Pipeline(bundles / "quadruped")
    given = pipeline.zeros_input()
    given["observe/rotation"][0, 0] = 1
    for step in range(10):
        given["observe/position"][0, 11] = np.float32(0.1) * np.float32(step)
        made = pipeline(given)
    assert printed == made["act/targets"][0].tolist()

    refused = compiled(TYPED.replace("JOINT", "RR_claf"), tmp_path, "-fsyntax-only")
    assert refused.returncode != 0 and "RR_claf" in refused.stderr
    other = subprocess.run([tmp_path / "main", bundles / "chain"], capture_output=True, text=True, check=False)
    assert other.returncode != 0 and "expected the bundle with digest" in other.stderr


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "demo"])
def test_every_header_compiles(name, bundles, tmp_path):
    found = deploy_cpp(open_bundle(bundles / name), tmp_path)
    space = found.namespace
    use = f"void use({space}::Policy& policy, const {space}::Inputs& in, {space}::Outputs& out) {{ policy.step(in, out); }}"
    done = compiled(f'#include "{name}.hpp"\n{use}\n', tmp_path, "-fsyntax-only")
    assert done.returncode == 0, done.stderr


def test_the_installed_package_builds_the_example(bundles, tmp_path):
    call("cmake", "--install", BUILD / "plain", "--prefix", tmp_path / "prefix")
    call(
        "cmake", "-S", ROOT / "cpp" / "examples" / "demo", "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path}/prefix",
        f"-DONNXRUNTIME_ROOT={DEPS}/onnxruntime", f"-DYAML_ROOT={DEPS}/yaml/usr",
    )  # fmt: skip
    call("cmake", "--build", tmp_path / "build")
    printed = call(tmp_path / "build" / "demo", bundles / "quadruped")
    assert "RR_calf" in printed and "median of a step" in printed
