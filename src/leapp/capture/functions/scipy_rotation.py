"""``scipy.spatial.transform.Rotation`` for tensors. A rotation is a unit quaternion ``x, y, z, w`` along the last axis.

The functions follow scipy's own algorithms, signs and limits included, so that values can be compared call by call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from leapp.capture.numpy.table.tensors import double

Tensor = torch.Tensor
_SMALL = 1e-3
_NEWTON_STEPS = 14


def _norm(v: Tensor) -> Tensor:
    return torch.sqrt((v * v).sum(-1, keepdim=True))


def _unit(q: Tensor) -> Tensor:
    return q / _norm(q)


# -- constructors -------------------------------------------------------------------------------------------------------


def from_quat(quat: Any, *, scalar_first: bool = False) -> Tensor:
    """Rotations from quaternions, which are normalised."""
    q = double(quat)
    return _unit(torch.cat([q[..., 1:], q[..., :1]], -1) if scalar_first else q)


def from_rotvec(rotvec: Any, degrees: bool = False) -> Tensor:
    """Rotations from rotation vectors: axis times angle."""
    v = double(rotvec)
    v = v * (math.pi / 180) if degrees else v
    angle = _norm(v)
    small = angle <= _SMALL
    size = torch.where(small, torch.ones_like(angle), angle)
    square = angle * angle
    scale = torch.where(small, 0.5 - square / 48 + square * square / 3840, torch.sin(size / 2) / size)
    return torch.cat([v * scale, torch.cos(angle / 2)], -1)


def from_mrp(mrp: Any) -> Tensor:
    """Rotations from modified Rodrigues parameters."""
    v = double(mrp)
    square = (v * v).sum(-1, keepdim=True)
    return torch.cat([2 * v, 1 - square], -1) / (1 + square)


def from_matrix(matrix: Any, assume_valid: bool = False) -> Tensor:
    """Rotations from matrices. Unless ``assume_valid``, the nearest orthogonal matrix is taken."""
    m = double(matrix)
    m = m if assume_valid else _orthogonal(m)
    d = torch.stack([m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]], -1)
    trace = d.sum(-1, keepdim=True)
    choice = torch.cat([d, trace], -1).argmax(-1)[..., None, None]
    candidates = []
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        q: list[Any] = [None] * 4
        q[i] = 1 - trace[..., 0] + 2 * m[..., i, i]
        q[j], q[k] = m[..., j, i] + m[..., i, j], m[..., k, i] + m[..., i, k]
        q[3] = m[..., k, j] - m[..., j, k]
        candidates.append(torch.stack(q, -1))
    axis = [m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]]
    candidates.append(torch.stack([*axis, 1 + trace[..., 0]], -1))
    found = torch.stack(candidates, -2)
    return _unit(torch.take_along_dim(found, choice.expand(*choice.shape[:-2], 1, 4), -2).squeeze(-2))


def _orthogonal(m: Tensor) -> Tensor:
    """The rotation nearest to a matrix of positive determinant, by Newton's iteration for the polar decomposition."""
    for _ in range(_NEWTON_STEPS):
        around = torch.cat([m, m[..., :2, :]], -2)
        around = torch.cat([around, around[..., :2]], -1)  # rows and columns go on at the other side
        one, two = slice(1, 4), slice(2, 5)
        cofactors = around[..., one, one] * around[..., two, two] - around[..., one, two] * around[..., two, one]
        det = (m[..., 0, :] * cofactors[..., 0, :]).sum(-1)[..., None, None]
        other = cofactors / det  # the inverse, transposed
        ratio = (other * other).sum((-2, -1), keepdim=True) / (m * m).sum((-2, -1), keepdim=True)
        scale = torch.sqrt(torch.sqrt(ratio))
        m = (m * scale + other / scale) / 2
    return m


def _cross(a: Tensor, b: Tensor) -> Tensor:
    (ax, ay, az), (bx, by, bz) = a.unbind(-1), b.unbind(-1)
    return torch.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], -1)


def from_euler(seq: str, angles: Any, degrees: bool = False) -> Tensor:
    """Rotations from Euler angles. Axes in upper case turn with the body (intrinsic)."""
    a = double(angles)
    a = a * (math.pi / 180) if degrees else a
    if len(seq) == 1:
        a = a if a.dim() and a.shape[-1] == 1 else a.unsqueeze(-1)
    turns = [_turn(axis, a[..., i]) for i, axis in enumerate(seq.lower())]
    result = turns[0]
    for turn in turns[1:]:
        result = compose(result, turn) if seq.isupper() else compose(turn, result)
    return result


def _turn(axis: str, angle: Tensor) -> Tensor:
    parts = [torch.zeros_like(angle)] * 3
    parts["xyz".index(axis)] = torch.sin(angle / 2)
    return torch.stack([*parts, torch.cos(angle / 2)], -1)


# -- representations ---------------------------------------------------------------------------------------------------


def as_quat(q: Tensor, canonical: bool = False, *, scalar_first: bool = False) -> Tensor:
    """The quaternion. ``canonical`` chooses the one of ``q`` and ``-q`` whose scalar part is positive."""
    if canonical:
        sign = torch.zeros_like(q[..., 3:])
        for i in (3, 0, 1, 2):
            sign = torch.where(sign == 0, torch.sign(q[..., i : i + 1]), sign)
        q = torch.where(sign < 0, -q, q)
    return torch.cat([q[..., 3:], q[..., :3]], -1) if scalar_first else q.clone()


def as_matrix(q: Tensor) -> Tensor:
    """The rotation matrix."""
    x, y, z, w = q.unbind(-1)
    xx, yy, zz, ww = x * x, y * y, z * z, w * w
    xy, zw, xz, yw, yz, xw = x * y, z * w, x * z, y * w, y * z, x * w
    rows = [
        [xx - yy - zz + ww, 2 * (xy - zw), 2 * (xz + yw)],
        [2 * (xy + zw), -xx + yy - zz + ww, 2 * (yz - xw)],
        [2 * (xz - yw), 2 * (yz + xw), -xx - yy + zz + ww],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def as_rotvec(q: Tensor, degrees: bool = False) -> Tensor:
    """Axis times angle."""
    q = torch.where(q[..., 3:] < 0, -q, q)
    angle = 2 * torch.atan2(_norm(q[..., :3]), q[..., 3:])
    small = angle <= _SMALL
    size = torch.where(small, torch.ones_like(angle), angle)
    square = angle * angle
    scale = torch.where(small, 2 + square / 12 + 7 * square * square / 2880, size / torch.sin(size / 2))
    v = scale * q[..., :3]
    return v * (180 / math.pi) if degrees else v


def as_mrp(q: Tensor) -> Tensor:
    """Modified Rodrigues parameters."""
    sign = torch.where(q[..., 3:] < 0, -torch.ones_like(q[..., 3:]), torch.ones_like(q[..., 3:]))
    return q[..., :3] * sign / (1 + sign * q[..., 3:])


def as_euler(q: Tensor, seq: str, degrees: bool = False, *, suppress_warnings: bool = False) -> Tensor:
    """Euler angles, by the algorithm of Bernardes and Viollet that scipy uses."""
    extrinsic = seq.islower()
    i, j, k = ("xyz".index(c) for c in (seq.lower() if extrinsic else seq.lower()[::-1]))
    symmetric = i == k
    k = 3 - i - j if symmetric else k
    sign = (i - j) * (j - k) * (k - i) // 2
    if symmetric:
        a, b, c, d = q[..., 3], q[..., i], q[..., j], q[..., k] * sign
    else:
        a, b = q[..., 3] - q[..., j], q[..., i] + q[..., k] * sign
        c, d = q[..., j] + q[..., 3], q[..., k] * sign - q[..., i]
    middle = 2 * torch.atan2(torch.hypot(c, d), torch.hypot(a, b))
    first_lock, second_lock = middle.abs() <= 1e-7, (middle - math.pi).abs() <= 1e-7
    half_sum, half_difference = torch.atan2(b, a), torch.atan2(d, c)
    lock = torch.where(first_lock, 2 * half_sum, 2 * half_difference * (-1 if extrinsic else 1))
    free = ~(first_lock | second_lock)
    zero = torch.zeros_like(middle)
    # Intrinsic rotations are extrinsic ones in reverse order. In gimbal lock the third angle is set to zero.
    difference = torch.where(free, half_sum - half_difference, lock if extrinsic else zero)
    total = torch.where(free, half_sum + half_difference, zero if extrinsic else lock)
    if not symmetric:
        total, middle = total * sign, middle - math.pi / 2
    angles = [difference, middle, total] if extrinsic else [total, middle, difference]
    angles = [_wrapped(angle) for angle in angles]
    found = torch.stack(angles, -1)
    return found * (180 / math.pi) if degrees else found


def _wrapped(angle: Tensor) -> Tensor:
    angle = torch.where(angle < -math.pi, angle + 2 * math.pi, angle)
    return torch.where(angle > math.pi, angle - 2 * math.pi, angle)


def magnitude(q: Tensor) -> Tensor:
    """The rotation angle."""
    return 2 * torch.atan2(_norm(q[..., :3])[..., 0], q[..., 3].abs())


# -- operations --------------------------------------------------------------------------------------------------------


def compose(p: Tensor, q: Tensor) -> Tensor:
    """First ``q``, then ``p``."""
    shape = torch.broadcast_shapes(p.shape, q.shape)  # type: ignore[no-untyped-call]
    p, q = p.expand(shape), q.expand(shape)
    a, b, v, w = p[..., 3:], q[..., 3:], p[..., :3], q[..., :3]
    vector = a * w + b * v + _cross(v, w)
    return _unit(torch.cat([vector, a * b - (v * w).sum(-1, keepdim=True)], -1))


def inverse(q: Tensor) -> Tensor:
    """The inverse rotation."""
    return torch.cat([-q[..., :3], q[..., 3:]], -1)


def power(q: Tensor, n: float) -> Tensor:
    """The rotation by ``n`` times the angle."""
    if n == 0:
        return torch.cat([torch.zeros_like(q[..., :3]), torch.ones_like(q[..., 3:])], -1)
    if n in (1, -1):
        return q.clone() if n == 1 else inverse(q)
    return from_rotvec(n * as_rotvec(q))


def apply(q: Tensor, vectors: Any, inverse: bool = False) -> Tensor:
    """Rotate vectors."""
    m = as_matrix(q)
    v = double(vectors)
    m = m.mT if inverse else m
    return (m * v.unsqueeze(-2)).sum(-1)


def concatenate(rotations: Sequence[Tensor]) -> Tensor:
    """Rotations in one stack."""
    return torch.cat([q if q.dim() > 1 else q.unsqueeze(0) for q in rotations])
