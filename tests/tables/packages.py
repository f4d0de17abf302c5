"""Functions of scipy and of ``math`` as observation code calls them, over arrays and over tensors."""

# ruff: noqa: E501 -- a row is a line

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg
import scipy.signal
import torch
from scipy.spatial.transform import Rotation as R
from scipy.spatial.transform import Slerp

from tests.tables.case import Table, normal, quaternion, spd, uniform

A = np.ndarray[Any, Any]
row = Table("packages", numpy=True)
CASES = row.cases
F64 = torch.float64
Q, QS = quaternion(), quaternion(5)
N3, N4, N20 = normal(3, dtype=F64), normal(4, dtype=F64), normal(20, dtype=F64)
N3S = normal(3)


def use(*draws: Any, **more: Any) -> Any:
    """Add the decorated function as a row."""

    def add(fn: Any) -> Any:
        row(fn.__name__, fn, *draws, **more)
        return fn

    return add


# Rotations

TILT = R.from_euler("z", 30, degrees=True)

row("rotation_gravity", lambda q: R.from_quat(q).inv().apply(np.array([0.0, 0.0, -1.0])), Q)
row("rotation_gravity_stack", lambda q: R.from_quat(q).apply([0.0, 0.0, -1.0], inverse=True), QS)
row("rotation_scalar_first", lambda q, v: R.from_quat(q, scalar_first=True).apply(v, inverse=True), Q, N3)
row("rotation_as_scalar_first", lambda q: R.from_quat(q).as_quat(canonical=True, scalar_first=True), QS)
row("rotation_euler_degrees", lambda q: R.from_quat(q).as_euler("xyz", degrees=True), Q)
row("rotation_euler_intrinsic", lambda q: R.from_quat(q).as_euler("ZYX"), QS)
row("rotation_euler_symmetric", lambda q: R.from_quat(q).as_euler("zxz"), Q)
row("rotation_six_numbers", lambda q: R.from_quat(q).as_matrix()[:, :, :2].reshape(5, -1), QS)
row("rotation_error", lambda p, q: (R.from_quat(p).inv() * R.from_quat(q)).as_rotvec(), Q, Q)
row("rotation_from_euler", lambda e: R.from_euler("ZYX", e).as_quat(canonical=True), N3)
row("rotation_from_numbers", lambda e, q: (R.from_euler("xyz", [e[0], e[1], e[2]]) * R.from_quat(q)).as_matrix(), N3, Q)
row("rotation_from_one_angle", lambda e: R.from_euler("z", e[0], degrees=True).as_matrix(), N3)
row("rotation_from_rotvec", lambda v: R.from_rotvec(v).as_quat(), N3)
row("rotation_from_rotvec_degrees", lambda v: R.from_rotvec(50 * v, degrees=True).as_matrix(), N3S)
row("rotation_magnitude", lambda p, q: np.array([(R.from_quat(p) * R.from_quat(q).inv()).magnitude()]), Q, Q)
row("rotation_of_a_constant", lambda v: TILT.apply(v) + TILT.inv().apply(v), N3)
row("rotation_times_constants", lambda q: (TILT * R.from_quat(q) * TILT).as_quat(), Q)
row("rotation_concatenate", lambda p, q: R.concatenate([R.from_quat(p), R.from_quat(q), TILT]).as_rotvec(), Q, Q)
row("rotation_items", lambda q: np.stack([r.as_matrix()[0] for r in R.from_quat(q)]) + R.from_quat(q)[1:3].as_rotvec()[0], QS)
row("rotation_from_noisy_matrix", lambda q, v: R.from_matrix(R.from_quat(q).as_matrix() + 1e-3 * v).as_quat(), Q, N3, apart=("onnx",))
row("rotation_power", lambda q: (R.from_quat(q) ** 0.5).as_quat(), Q)
row("rotation_mrp", lambda q: R.from_mrp(0.5 * R.from_quat(q).as_mrp()).as_matrix(), Q)
row("rotation_slerp", lambda q: Slerp([0.0, 1.0], R.from_quat(q))([0.3, 0.8]).as_quat(), quaternion(2))


@use(Q)
def rotation_heading_frame(q: A) -> A:
    yaw = R.from_quat(q).as_euler("zyx")[0]
    return R.from_euler("z", yaw).inv().apply([1.0, 2.0, 0.0])


@use(Q, N3)
def rotation_of_tensors(q: A, v: A) -> A:
    turned = torch.from_numpy(R.from_quat(q).as_matrix()) @ torch.from_numpy(v)
    return turned.numpy() * 2


# Linear algebra

S4 = spd(4, 4, dtype=F64)
row("scipy_inv", lambda a, b: scipy.linalg.inv(a) @ b, S4, N4)
row("scipy_solve", lambda a, b: scipy.linalg.solve(a, b) + scipy.linalg.solve(a, b, assume_a="pos"), S4, N4)
row("scipy_solve_triangular", lambda a, b: scipy.linalg.solve_triangular(a, b, lower=True, trans=1), S4, N4)
row("scipy_pinv", lambda a: scipy.linalg.pinv(a), normal(3, 5, dtype=F64))
row("scipy_cho_solve", lambda a, b: scipy.linalg.cho_solve(scipy.linalg.cho_factor(a), b), S4, N4)
row("scipy_cho_factor", lambda a: scipy.linalg.cho_factor(a)[0], spd(3, 3))
row("scipy_cholesky", lambda a: scipy.linalg.cholesky(a, lower=True) + scipy.linalg.cholesky(a), S4)
row("scipy_expm", lambda a: scipy.linalg.expm(0.1 * a), normal(3, 3, dtype=F64))
row("scipy_norm", lambda a: a / scipy.linalg.norm(a), N4)
row("scipy_det", lambda a: a * scipy.linalg.det(a), S4)
row("scipy_riccati", lambda a: scipy.linalg.solve_discrete_are(0.3 * a, np.eye(3)[:, :2], np.eye(3), np.eye(2)), normal(3, 3, dtype=F64))
row("scipy_lyapunov", lambda a: scipy.linalg.solve_discrete_lyapunov(0.2 * a, np.eye(3)), normal(3, 3, dtype=F64))


@use(N4, S4, normal(2, dtype=F64))
def scipy_kalman_update(x: A, p: A, z: A) -> A:
    h = np.eye(2, 4)
    s = h @ p @ h.T + 0.1 * np.eye(2)
    gain = scipy.linalg.solve(s, h @ p, assume_a="pos").T
    return np.concatenate([x + gain @ (z - h @ x), ((np.eye(4) - gain @ h) @ p).ravel()])


# Filters

B, D = scipy.signal.butter(2, 0.2)
SECTIONS = scipy.signal.butter(4, 0.3, output="sos")
row("filter_lfilter", lambda x: scipy.signal.lfilter(B, D, x), N20)
row("filter_lfilter_float32", lambda x: scipy.signal.lfilter(B, D, x, axis=0), normal(20, 3))
row("filter_lfilter_state", lambda x, z: scipy.signal.lfilter(B, D, x, axis=0, zi=z), normal(20, 3, dtype=F64), normal(2, 3, dtype=F64))
row("filter_one_sample", lambda x, z: scipy.signal.lfilter(B, D, x, zi=z), normal(1, dtype=F64), normal(2, dtype=F64))
row("filter_moving_average", lambda x: scipy.signal.lfilter(np.ones(4) / 4, 1.0, x), N20)
row("filter_sosfilt", lambda x: scipy.signal.sosfilt(SECTIONS, x), normal(3, 20, dtype=F64))
row("filter_sosfilt_state", lambda x, z: scipy.signal.sosfilt(SECTIONS, x, zi=z), N20, normal(2, 2, dtype=F64))
row("filter_filtfilt", lambda x: scipy.signal.filtfilt(B, D, x), normal(30, dtype=F64))
row("filter_savgol", lambda x: scipy.signal.savgol_filter(x, 7, 2, deriv=1, delta=0.02), N20)

# math

row("math_trigonometry", lambda x: np.array([math.sin(x[0]) * math.cos(x[1]), math.atan2(x[1], x[2]), math.tan(0.1 * x[0])]), N3)
row("math_roots", lambda x: np.array([math.hypot(*x), math.exp(-abs(x[0])), math.sqrt(x[0] ** 2 + x[1] ** 2)]), N3)
row("math_angles", lambda x: np.array([math.degrees(x[1]), math.radians(x[0]), math.fmod(x[0] + math.pi, 2 * math.pi)]), N3)
row("math_signs", lambda x: np.array([math.fabs(x[2]), math.pow(abs(x[0]), 1.5), math.copysign(1.5, x[1])]), N3)
row("math_inverses", lambda x: np.array([math.asin(x[0]), math.acos(x[1]), math.log(x[2] + 2), math.atan(x[0])]), uniform(-0.9, 0.9, 3, dtype=F64))
row("math_whole", lambda x: x * math.floor(x[0] * 5) + math.ceil(x[1] * 3), N3)
row("math_norm", lambda x: x / math.sqrt(sum(v * v for v in x)), N3)
row("math_of_float32", lambda x: x * math.exp(x[0]), N3S)
row("math_of_tensors", lambda x: (torch.from_numpy(x) * math.sin(torch.from_numpy(x)[0]) + math.sqrt(torch.from_numpy(x).square().sum())).numpy(), N3S)
row("math_yaw", lambda q: np.array([math.atan2(2 * (q[3] * q[2] + q[0] * q[1]), 1 - 2 * (q[1] ** 2 + q[2] ** 2))]), Q)
