"""Plain NumPy code beside a traced node computes what it always does, and finds NumPy as it was afterwards."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.ndimage
import scipy.optimize
import scipy.signal
import scipy.sparse
import torch

import leapp
from leapp import annotate

Array = np.ndarray[Any, Any]


def work() -> list[Any]:
    a = np.linspace(-3, 3, 400).reshape(20, 20) ** 3
    b = a.copy()
    b += a
    b -= 1
    b *= a
    b /= 2
    b[b > 0] = 0
    b[1:3, ::2] = 7
    rows = np.zeros(3, dtype=[("a", "f4"), ("b", "i4")])
    rows["a"] = 1.5
    numbers = [bool(np.array([1])), int(np.array(3)), float(np.array(2.5)), [1, 2, 3][np.array(1)]]
    return [
        a + 1, 2 - a, a @ a, a**2, -a, abs(a), a // 0.5, a % 0.3, divmod(a, 0.7)[0], a < 0, a == a, ~(a > 0), (a > 0) & (a < 1),
        b, rows["a"], np.array(numbers, float), np.array([x in a[0] for x in a[0][:3]]), np.array(list(map(sum, a))),
        a.T, a.sum(0),
        pickle.loads(pickle.dumps(a)), copy.deepcopy(a), np.frombuffer(memoryview(a.copy())), np.r_[a[0], a[1]],
        np.einsum("ij,jk->ik", a, a, optimize=True), np.ma.masked_less(a, 0).filled(0),
        np.linalg.svd(a)[1], scipy.linalg.expm(a * 0.01), scipy.signal.lfilter([0.5, 0.5], [1], a[0]),
        scipy.ndimage.gaussian_filter(a, 1.0), scipy.sparse.csr_matrix(a) @ a,
        scipy.optimize.minimize(lambda v: ((v - 1) ** 2).sum(), np.zeros(3)).x,
        np.full(shape=(2, 3), fill_value=4), np.full_like(a=a, fill_value=5.0), np.full_like(a, fill_value=1),
        np.sin(torch.ones(3)).numpy(), np.clip(torch.arange(3.0), 0, 1).numpy(), np.round(torch.rand(3) * 0).numpy(),
    ]  # fmt: skip


def session(directory: Path) -> list[Any]:
    leapp.start("plain", save_path=directory)
    try:
        x = annotate.input_tensors("p", {"x": np.arange(4, dtype=np.float32)})
        buffer = np.zeros(4, np.float32)
        part = buffer[1:]
        buffer[:] = x * 2
        part *= 0.5
        computed = work()
        annotate.output_tensors("p", {"y": buffer + part.sum()}, export_with="jit")
    finally:
        leapp.stop()
    return computed


def check(got: list[Any], want: list[Any]) -> None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert isinstance(a, np.ndarray), i
        assert np.array_equal(np.asarray(a), np.asarray(b)), i


def test_nothing_plain_changes(tmp_path: Path) -> None:
    want = work()
    check(session(tmp_path), want)
    check(work(), want)
