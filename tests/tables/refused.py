"""Rows that a backend's own exporter or engine cannot do, grouped by the reason that docs/coverage.md gives."""

from __future__ import annotations

import onnxruntime
import onnxscript
import scipy
import torch

from tests.tables.case import Case

# backend -> reason -> table -> row names
_UNASKED = {
    "NumPy reads the arrays in a list given to a ufunc, and what is written to an array older than the node, unasked": {
        "numpy_ops": "ufunc_minimum_reduce_list set_array_made_before",
    },
}
_MIRRORED = {
    "NumPy reads an array over the memory of a tensor without asking": {
        "idioms": """
            mirror_made_before mirror_read_as_tensor mirror_written mirror_lends_its_memory mirror_of_a_part
            memory_mapped_buffer
        """,
    },
}
REFUSED: dict[str, dict[str, dict[str, str]]] = {
    "jit": {**_UNASKED, **_MIRRORED},
    "onnx": {
        **_UNASKED,
        **_MIRRORED,
        "ONNX has no operator for this special function": {
            "torch_ops": """
                i0 inplace_i0 special_i0e special_i1 special_i1e special_bessel_j0 special_ndtri polygamma inplace_polygamma
                igamma inplace_igamma igammac inplace_igammac zeta gcd lcm inplace_gcd inplace_lcm
            """,
            "numpy_ops": "gcd lcm i0",
            "edges": "unary_i0",
        },
        "ONNX has no operator for this matrix factorisation": {
            "torch_ops": """
                la_eigh_function la_eigh_values la_eigvalsh la_eigvals_sorted la_svd_rebuilt la_qr la_lu_rebuilt la_lu_solve
                la_lstsq la_cholesky_inverse
            """,
            "numpy_ops": "linalg_qr_rebuilt linalg_eigvalsh linalg_eigh_rebuilt linalg_lstsq"
            " linalg_lstsq_rank_one linalg_lstsq_rank linalg_lstsq_wide linalg_lstsq_residuals",
            "edges": "eigvalsh qr_r_abs",
        },
        "ONNX cannot reinterpret the bits of a tensor": {
            "torch_ops": "shape_view_bytes shape_view_dtype frexp nextafter inplace_nextafter",
            "numpy_ops": "frexp",
            "edges": "binary_nextafter shape_view_dtype",
        },
        "onnxruntime has no bfloat16 arithmetic on the CPU": {
            "torch_ops": "cast_bfloat16_maths dtype_bf16_port",
            "idioms": "autocast autocast_matmul",
        },
        "ONNX has no complex numbers at ports": {"torch_ops": "dtype_complex_port"},
        "an operator of the user's own has no translation to ONNX": {"idioms": "library_custom_op"},
        "ONNX has no nested tensors": {"idioms": "nested_rows"},
    },
    "pt2": {
        **_UNASKED,
        **_MIRRORED,
        "torch.export cannot tell the shape of what lstsq gives": {"torch_ops": "la_lstsq"},
        "torch.export does not take nested tensors": {"idioms": "nested_rows"},
    },
}
if torch.__version__.startswith("2.7."):
    REFUSED["onnx"] |= {"torch 2.7 cannot follow a count of unique values": {"edges": "unique_count"}}
    REFUSED["pt2"] |= {
        "torch 2.7 cannot write NaN as a number into a .pt2 file": {
            "torch_ops": "reduce_quantile_of_nan reduce_nanquantile_of_nan reduce_nan_mean",
            "numpy_ops": """
                reduce_median reduce_median_axis reduce_percentile reduce_percentile_axis reduce_quantile reduce_nanmax
                reduce_nanmin reduce_nanstd reduce_nanvar reduce_medians_by_position reduce_nanvar_of_infinity
            """,
            "edges": "edge_clamp_nan",
        },
        "torch 2.7 cannot write complex numbers into a .pt2 file": {
            "torch_ops": "complex_j complex_exp",
            "numpy_ops": "angle_of_complex real_imag number_complex",
        },
    }
if scipy.__version__ < "1.17":
    _COMPILED = """
        gravity gravity_stack scalar_first as_scalar_first euler_degrees euler_intrinsic euler_symmetric six_numbers error
        from_euler from_numbers from_one_angle from_rotvec from_rotvec_degrees magnitude times_constants concatenate items
        from_noisy_matrix power mrp slerp heading_frame of_tensors
    """
    for _reasons in REFUSED.values():
        _reasons["scipy before 1.17 has a compiled Rotation, whose methods cannot be followed"] = {
            "packages": " ".join(f"rotation_{name}" for name in _COMPILED.split()),
        }
if onnxruntime.__version__.startswith("1.20."):
    REFUSED["onnx"] |= {"ONNX Runtime 1.20 takes the root of infinity for NaN": {"edges": "unary_sqrt edge_pow_half edge_root"}}
if onnxscript.__version__ == "0.7.1":
    REFUSED["onnx"] |= {
        "onnxscript 0.7.1 does not translate bincount": {
            "torch_ops": "bincount", "numpy_ops": "bincount bincount_beyond_minlength", "edges": "int64_bincount i32_bincount",
        },
        "onnxscript 0.7.1 cannot write values to the places of a mask": {"torch_ops": "set_mask_selected set_augmented_masks"},
    }


def refusal(case: Case, backend: str) -> str | None:
    """Why ``backend`` refuses the row, or None."""
    for reason, tables in REFUSED.get(backend, {}).items():
        if case.name in tables.get(case.table, "").split():
            return reason
    return None
