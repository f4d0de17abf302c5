"""Builds the device "robot" and adds it to this process. A process of its own, because a device cannot be taken out again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import torch

SOURCE = Path(__file__).with_name("device.cpp")


def build(library: Path) -> Path:
    """Compile the device, which takes g++ about five seconds."""
    home = Path(torch.__file__).parent
    headers = [f"-I{home / 'include'}", f"-I{home / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"]
    command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", *headers, SOURCE, "-o", library, f"-L{home / 'lib'}"]
    subprocess.run([*command, "-ltorch", "-ltorch_cpu", "-lc10"], check=True)
    return library


def add(library: str) -> None:
    """Let torch know the device."""
    torch.utils.rename_privateuse1_backend("robot")
    torch.ops.load_library(library)
    module = ModuleType("torch.robot")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda *device: torch.zeros(1, dtype=torch.uint8)
    module.set_rng_state = lambda *state: None
    torch._register_device_module("robot", module)
    torch.utils.generate_methods_for_privateuse1_backend()
