"""Torch forms of scipy and ``math``, compared with the originals."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import scipy.linalg
import scipy.signal
import torch
from scipy.spatial.transform import Rotation

import leapp
from leapp import annotate
from leapp.capture.functions import math as numbers
from leapp.capture.functions import scipy_linalg as linalg
from leapp.capture.functions import scipy_rotation as rotation
from leapp.capture.functions import scipy_signal as signal
from leapp.capture.functions import standin
from leapp.errors import TraceError
from leapp.tracing import patches

RNG = np.random.default_rng(0)
T = torch.from_numpy
SEQUENCES = "xyz zyx xzx zxz yxy XYZ ZYX ZXZ YZY XZX zyz XZY yzx".split()


def same(found, expected, tolerance=1e-9):
    found = found if isinstance(found, tuple) else (found,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(f), np.asarray(e), rtol=tolerance, atol=tolerance)
        assert np.shape(f) == np.shape(e)


@pytest.mark.parametrize("degrees", [False, True])
@pytest.mark.parametrize("shape", [(), (5,)])
class TestRotation:
    def test_euler(self, shape, degrees):
        scale = 50 if degrees else 1
        turned = Rotation.from_quat(RNG.normal(size=(*shape, 4)))
        for seq in SEQUENCES:
            angles = RNG.normal(size=(*shape, 3)) * scale
            same(rotation.from_euler(seq, T(angles), degrees), Rotation.from_euler(seq, angles, degrees).as_quat())
            same(rotation.as_euler(T(turned.as_quat()), seq, degrees), turned.as_euler(seq, degrees))
        for seq in ("x", "Y", "xy", "ZX"):
            angles = RNG.normal(size=(*shape, len(seq)))
            expected = Rotation.from_euler(seq, angles, degrees).as_quat()
            # scipy before 1.17 makes a stack of a list with one angle; there leapp does not follow the class.
            same(rotation.from_euler(seq, T(angles), degrees), expected.reshape(*shape, 4))

    @pytest.mark.filterwarnings("ignore:Gimbal lock")
    def test_gimbal_lock(self, shape, degrees):
        right = 90 if degrees else math.pi / 2
        for seq in SEQUENCES:
            angles = RNG.normal(size=(*shape, 3))
            angles[..., 1] = 0 if seq[0] == seq[2] else right
            locked = Rotation.from_euler(seq, angles, degrees)
            same(rotation.as_euler(T(locked.as_quat()), seq, degrees), locked.as_euler(seq, degrees), 1e-6)

    def test_vectors(self, shape, degrees):
        turned = Rotation.from_quat(RNG.normal(size=(*shape, 4)))
        for size in (1.0, 1e-5, 50.0):
            v = size * RNG.normal(size=(*shape, 3))
            same(rotation.from_rotvec(T(v), degrees), Rotation.from_rotvec(v, degrees).as_quat())
            small = Rotation.from_rotvec(v, degrees)
            same(rotation.as_rotvec(T(small.as_quat()), degrees), small.as_rotvec(degrees))
        q = T(turned.as_quat())
        same(rotation.as_mrp(q), turned.as_mrp())
        same(rotation.from_mrp(T(turned.as_mrp())), Rotation.from_mrp(turned.as_mrp()).as_quat())
        for inverse in (False, True):
            same(rotation.apply(q, T(v), inverse), turned.apply(v, inverse))
        same(rotation.apply(q, T(v).reshape(-1, 3)[0]), turned.apply(v.reshape(-1, 3)[0]))

    def test_quaternions(self, shape, degrees):
        plain = RNG.normal(size=(*shape, 4))
        for first in (False, True):
            same(rotation.from_quat(T(plain), scalar_first=first), Rotation.from_quat(plain, scalar_first=first).as_quat())
            turned = Rotation.from_quat(plain, scalar_first=first)
            for canonical in (False, True):
                found = rotation.as_quat(T(turned.as_quat()), canonical, scalar_first=first)
                same(found, turned.as_quat(canonical=canonical, scalar_first=first))
        p, q = (Rotation.from_quat(RNG.normal(size=(*shape, 4))) for _ in range(2))
        tp, tq = T(p.as_quat()), T(q.as_quat())
        same(rotation.compose(tp, tq), (p * q).as_quat())
        same(rotation.inverse(tp), p.inv().as_quat())
        same(rotation.magnitude(tp), p.magnitude())
        for n in (2.5, -1, 1, 0, -0.375):  # numbers that scipy before 1.17, which takes a C float, rounds to themselves
            same(rotation.power(tp, n), (p**n).as_quat())

    def test_matrices(self, shape, degrees):
        for _ in range(5):
            turned = Rotation.from_quat(RNG.normal(size=(*shape, 4)))
            m = turned.as_matrix()
            same(rotation.as_matrix(T(turned.as_quat())), m)
            for given in (m, m.astype(np.float32).astype(np.float64), m + 0.2 * RNG.normal(size=m.shape)):
                same(rotation.from_matrix(T(given)), Rotation.from_matrix(given).as_quat())


A, W, B, b = (RNG.normal(size=shape) for shape in ((5, 5), (4, 6), (5, 2), (5,)))
P = A @ A.T + np.eye(5)
LINALG = [
    ("inv", (A,), {}), ("det", (A,), {}), ("expm", (A,), {}), ("norm", (A,), {}), ("norm", (b, 1), {}), ("pinvh", (P,), {}),
    *(("pinv", (m,), {}) for m in (W, W.T, A)),
    *(("solve", (A, v), {"transposed": turned}) for v in (b, B) for turned in (False, True)),
    *(("solve", (P, v), {"assume_a": "pos"}) for v in (b, B)),
    *(("solve_triangular", (P, v), {"lower": low, "trans": t}) for v in (b, B) for low in (False, True) for t in (0, 1)),
    *((name, (P,), {"lower": low}) for name in ("cholesky", "cho_factor") for low in (False, True)),
    *(("cho_solve", (scipy.linalg.cho_factor(P, lower=low), v), {}) for v in (b, B) for low in (False, True)),
    ("pinv", (W,), {"return_rank": False}), ("pinvh", (P,), {"atol": None, "return_rank": False}),
    ("solve_discrete_are", (A / 2, B, np.eye(5), np.eye(2)), {"e": None, "s": None}),
    ("solve_discrete_are", (A / 2, B, np.eye(5), np.eye(2)), {}), ("solve_discrete_lyapunov", (A / 6, P), {}),
]  # fmt: skip


def tensors(value):
    if isinstance(value, tuple):
        return tuple(tensors(v) for v in value)
    return T(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("name", "args", "options"), LINALG)
def test_linalg(name, args, options):
    same(linalg.FUNCTIONS[name](*tensors(args), **options), getattr(scipy.linalg, name)(*args, **options), 1e-7)


def test_linalg_covers_functions_that_exist():
    assert [name for name in linalg.FUNCTIONS if not hasattr(scipy.linalg, name)] == []
    assert {name for name, _, _ in LINALG} == set(linalg.FUNCTIONS)


@pytest.mark.parametrize(("shape", "axis"), [((40,), -1), ((3, 40), -1), ((40, 3), 0), ((2, 40, 3), 1)])
def test_filters(shape, axis):
    x = RNG.normal(size=shape)
    coefficients, sections = scipy.signal.butter(3, 0.2), scipy.signal.butter(4, 0.2, output="sos")
    for name, given in (("lfilter", coefficients), ("sosfilt", (sections,)), ("filtfilt", coefficients)):
        same(signal.FUNCTIONS[name](*given, T(x), axis), getattr(scipy.signal, name)(*given, x, axis))
    same(signal.FUNCTIONS["lfilter"]([1, 2, 0.5], 1, T(x), axis), scipy.signal.lfilter([1, 2, 0.5], 1, x, axis))
    same(signal.FUNCTIONS["sosfiltfilt"](sections, T(x), axis), scipy.signal.sosfiltfilt(sections, x, axis))
    same(signal.FUNCTIONS["savgol_filter"](T(x), 7, 2, 1, 0.1, axis), scipy.signal.savgol_filter(x, 7, 2, 1, 0.1, axis))
    states = list(shape)
    for name, given, order, front in (("lfilter", coefficients, 3, []), ("sosfilt", (sections,), 2, [2])):
        states[axis] = order
        zi = RNG.normal(size=[*front, *states])
        same(signal.FUNCTIONS[name](*given, T(x), axis, T(zi)), getattr(scipy.signal, name)(*given, x, axis, zi))


ARGUMENTS = [
    (0.3,), (-0.3,), (1.7,), (0.3, -2.2), (5.5, 2.0), (-5.5, 2.0), (0.1, 0.2, 0.3), (4.0, 3),
    ([0.1, 0.2, 3.0],), ([0.1], [2.0]),
]  # fmt: skip


@pytest.mark.parametrize("name", numbers.FUNCTIONS)
def test_math(name):
    if not hasattr(math, name):
        assert sys.version_info < {"fma": (3, 13), "sumprod": (3, 12), "exp2": (3, 11), "cbrt": (3, 11)}[name]
        return
    right = 0
    for args in ARGUMENTS:
        try:
            expected = getattr(math, name)(*args)
        except (TypeError, ValueError):
            continue
        given = (a if isinstance(a, int) else torch.tensor(a, dtype=torch.float64) for a in args)
        same(numbers.FUNCTIONS[name](*given), expected)
        right += 1
    assert right


def test_a_rotation_that_cannot_be_followed_is_named(monkeypatch, tmp_path):
    """As with scipy before 1.17, whose class is compiled."""
    monkeypatch.setattr(standin, "_TYPE_CAN_CHANGE", 0)
    monkeypatch.setattr(patches, "_plans", {})
    leapp.start("turned", save_path=tmp_path)
    try:
        q = annotate.input_tensors("n", {"q": RNG.normal(size=4)})
        with pytest.raises(TraceError, match=r"Rotation from scipy 1\.17 on; this is scipy "):
            annotate.output_tensors("n", {"v": Rotation.from_quat(q).as_rotvec()}, export_with="onnx")
    finally:
        leapp.stop()
