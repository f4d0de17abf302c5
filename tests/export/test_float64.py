"""Numbers in float64 nodes are exact in ONNX files: as arguments, as keywords, inside functions."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from leapp.export import ExportJob, export_node

from .running import run_onnx

# None of them is a float32.
C, D, E, B = 0.1, 1 / 3, 1e-17, 1e10 / 3

ROWS = {
    "add alpha": lambda x,y: torch.add(x,y,alpha=C),
    "sub alpha": lambda x,y: torch.sub(x,y,alpha=D),
    "rsub alpha": lambda x,y: torch.rsub(x,y,alpha=D),
    "rsub scalar": lambda x,y: torch.rsub(x,C,alpha=D),
    "add scalar": lambda x,y: x+C,
    "add tiny": lambda x,y: x*1e-17+E,
    "add scalar alpha": lambda x,y: torch.add(x,C,alpha=D),
    "addcmul": lambda x,y: torch.addcmul(x,y,y,value=C),
    "addcdiv": lambda x,y: torch.addcdiv(x,y,y+3,value=D),
    "addmm": lambda x,y: torch.addmm(x,y,y,beta=C,alpha=D),
    "addmv": lambda x,y: torch.addmv(x[0],y,y[0],beta=C,alpha=D),
    "addr": lambda x,y: torch.addr(x,y[0],y[1],beta=C,alpha=D),
    "baddbmm": lambda x,y: torch.baddbmm(x[None],y[None],y[None],beta=C,alpha=D),
    "addbmm": lambda x,y: torch.addbmm(x,y[None],y[None],beta=C,alpha=D),
    "clamp": lambda x,y: x.clamp(C,D),
    "clamp kw": lambda x,y: torch.clamp(x,min=C,max=D),
    "clamp min": lambda x,y: x.clamp(min=C),
    "clamp max": lambda x,y: x.clamp(max=D),
    "clip": lambda x,y: torch.clip(x,-D,C),
    "remainder": lambda x,y: torch.remainder(x,C),
    "fmod": lambda x,y: torch.fmod(x,C),
    "floor_div": lambda x,y: x//C,
    "div trunc": lambda x,y: torch.div(x,C,rounding_mode='trunc'),
    "div": lambda x,y: x/D,
    "div product": lambda x,y: x@y/3,
    "div product float": lambda x,y: torch.div(x@y,7.0),
    "div product whole": lambda x,y: x@y/(x>0).shape[0],
    "rdiv": lambda x,y: C/x,
    "mul": lambda x,y: x*C,
    "pow": lambda x,y: x.abs()**D,
    "rpow": lambda x,y: C**x,
    "pow scalar first": lambda x,y: torch.pow(D,x),
    "float_power": lambda x,y: torch.float_power(x.abs(),D),
    "atan2": lambda x,y: torch.atan2(x,y),
    "angle of complex": lambda x,y: torch.angle(torch.complex(x,y)),
    "asin": lambda x,y: x.sin().asin(),
    "acos": lambda x,y: x.cos().acos(),
    "tan": lambda x,y: x.tan(),
    "sinh": lambda x,y: x.sinh()+(x*1e-9).sinh()*1e9,
    "cosh": lambda x,y: x.cosh(),
    "deg2rad": lambda x,y: torch.deg2rad(x),
    "rad2deg": lambda x,y: torch.rad2deg(x),
    "full": lambda x,y: x+torch.full((3,),C,dtype=torch.float64),
    "full_like": lambda x,y: x*torch.full_like(x,C),
    "new_full": lambda x,y: x*x.new_full((3,),C),
    "scalar tensor": lambda x,y: x*torch.tensor(C,dtype=torch.float64),
    "where": lambda x,y: torch.where(x>0,C,x),
    "where both": lambda x,y: torch.where(x>0,C,D).double()*x,
    "masked_fill": lambda x,y: x.masked_fill(x>0,C),
    "index_fill": lambda x,y: x.index_fill(0,torch.tensor([1]),C),
    "fill_": lambda x,y: x.clone().fill_(C)+y,
    "setitem": lambda x,y: (lambda z:(z.__setitem__((slice(None),0),C),z)[1])(x.clone()),
    "setitem mask": lambda x,y: (lambda z:(z.__setitem__(z>0,C),z)[1])(x.clone()),
    "fill_diagonal": lambda x,y: x.clone().fill_diagonal_(C),
    "nan_to_num": lambda x,y: torch.nan_to_num(x/torch.zeros(3,dtype=torch.float64),nan=C,posinf=D,neginf=B),
    "leaky_relu": lambda x,y: F.leaky_relu(x,C),
    "elu": lambda x,y: F.elu(x,D),
    "celu": lambda x,y: F.celu(x,D),
    "selu": lambda x,y: F.selu(x),
    "gelu": lambda x,y: F.gelu(x),
    "gelu tanh": lambda x,y: F.gelu(x,approximate='tanh'),
    "silu": lambda x,y: F.silu(x),
    "mish": lambda x,y: F.mish(x),
    "hardtanh": lambda x,y: F.hardtanh(x,-C,D),
    "hardshrink": lambda x,y: F.hardshrink(x,D),
    "softshrink": lambda x,y: F.softshrink(x,C),
    "hardsigmoid": lambda x,y: F.hardsigmoid(x),
    "hardswish": lambda x,y: F.hardswish(x),
    "softplus": lambda x,y: F.softplus(x,C,D),
    "softplus default": lambda x,y: F.softplus(x),
    "threshold": lambda x,y: F.threshold(x,C,D),
    "prelu": lambda x,y: F.prelu(x,torch.tensor([C],dtype=torch.float64)),
    "rrelu": lambda x,y: F.rrelu(x,C,D,training=False),
    "logsigmoid": lambda x,y: F.logsigmoid(x),
    "softsign": lambda x,y: F.softsign(x),
    "glu": lambda x,y: F.glu(torch.cat([x,y],1),1),
    "relu6": lambda x,y: F.relu6(x*4),
    "layer_norm": lambda x,y: F.layer_norm(x,(3,),eps=C),
    "group_norm": lambda x,y: F.group_norm(x,3,eps=C),
    "instance_norm": lambda x,y: F.instance_norm(x[None],eps=C),
    "rms_norm": lambda x,y: F.rms_norm(x,(3,),eps=C),
    "normalize": lambda x,y: F.normalize(x,eps=C),
    "normalize p": lambda x,y: F.normalize(x,p=D,eps=C),
    "norm p": lambda x,y: torch.linalg.vector_norm(x,2+C),
    "renorm": lambda x,y: torch.renorm(x,2,0,C),
    "cosine": lambda x,y: F.cosine_similarity(x,y,eps=C),
    "pairwise": lambda x,y: F.pairwise_distance(x,y,eps=C),
    "lerp": lambda x,y: torch.lerp(x,y,C),
    "logit": lambda x,y: torch.logit(x.sigmoid(),eps=C),
    "linspace": lambda x,y: x*torch.linspace(C,D,3,dtype=torch.float64),
    "arange": lambda x,y: x*torch.arange(0,0.3,C,dtype=torch.float64)[:3],
    "logspace": lambda x,y: x*torch.logspace(C,D,3,dtype=torch.float64),
    "huber": lambda x,y: F.huber_loss(x,y,delta=C),
    "smooth_l1": lambda x,y: F.smooth_l1_loss(x,y,beta=C),
    "eq": lambda x,y: ((x*0+C)==C).double()+x,
    "lt": lambda x,y: ((x*0+C)<C).double()+x,
    "ge": lambda x,y: ((x*0+C)>=C).double()+x,
    "heaviside": lambda x,y: torch.heaviside(x,torch.tensor(C,dtype=torch.float64)),
    "copysign": lambda x,y: torch.copysign(x,-C),
    "xlogy": lambda x,y: torch.xlogy(x.abs(),C),
    "atan2 scalar": lambda x,y: torch.atan2(x,torch.tensor(C,dtype=torch.float64)),
    "hypot": lambda x,y: torch.hypot(x,torch.tensor(C,dtype=torch.float64)),
    "clamp float int": lambda x,y: x.clamp(-1,1),
    "std": lambda x,y: x.std(),
    "var": lambda x,y: x.var(1,correction=0),
    "logaddexp": lambda x,y: torch.logaddexp(x,y*C),
    "log2": lambda x,y: x.abs().log2(),
    "log10": lambda x,y: x.abs().log10(),
    "exp2": lambda x,y: x.exp2(),
    "expm1": lambda x,y: x.expm1(),
    "log1p": lambda x,y: x.abs().log1p(),
    "sinc": lambda x,y: x.sinc(),
    "erf": lambda x,y: x.erf(),
    "tanh": lambda x,y: x.tanh(),
    "sigmoid": lambda x,y: x.sigmoid(),
    "softmax": lambda x,y: x.softmax(1),
    "log_softmax": lambda x,y: x.log_softmax(1),
    "logsumexp": lambda x,y: x.logsumexp(1),
    "acosh": lambda x,y: (x.abs()+1).acosh(),
    "asinh": lambda x,y: x.asinh(),
    "atanh": lambda x,y: x.tanh().atanh(),
    "angle": lambda x,y: x.angle(),
    "sdpa": lambda x,y: F.scaled_dot_product_attention(x[None],y[None],y[None],scale=C),
    "sdpa default": lambda x,y: F.scaled_dot_product_attention(x[None],y[None],y[None]),
    "pad": lambda x,y: F.pad(x,(1,1),value=C),
    "pad int": lambda x,y: F.pad(x,(1,1)),
    "cdist": lambda x,y: torch.cdist(x,y,p=2+C),
    "quantile": lambda x,y: torch.quantile(x,C),
    "quantile t": lambda x,y: torch.quantile(x,torch.tensor([C,D],dtype=torch.float64),dim=1),
    "bucketize": lambda x,y: torch.bucketize(x,torch.tensor([C,D],dtype=torch.float64)).double()+x,
    "dropout": lambda x,y: F.dropout(x,C,False),
    "round dec": lambda x,y: torch.round(x,decimals=2),
    "trapezoid": lambda x,y: torch.trapezoid(x,dx=C),
    "gradient": lambda x,y: torch.gradient(x,spacing=C)[0],
    "kl_div": lambda x,y: F.kl_div(x, y.sigmoid(), reduction="sum"),
    "bce": lambda x,y: F.binary_cross_entropy_with_logits(x,y.sigmoid(),pos_weight=torch.tensor(C,dtype=torch.float64)),
    "label_smoothing": lambda x,y: F.cross_entropy(x,torch.tensor([0,1,2]),label_smoothing=C),
    "gnll": lambda x,y: F.gaussian_nll_loss(x,y,y.abs(),eps=C),
    "interpolate": lambda x,y: F.interpolate(x[None],scale_factor=1.7,mode='linear'),
    "foreach": lambda x,y: torch._foreach_add([x,y],C)[0],
    "foreach addcmul": lambda x,y: torch._foreach_addcmul([x],[y],[y],value=C)[0],
    "int*": lambda x,y: torch.arange(3)*torch.tensor(C,dtype=torch.float64)+x,
    "int f64 default": lambda x,y: (torch.arange(3).double()*C)+x,
    "complex": lambda x,y: (torch.complex(x,y)*(C+D*1j)).real,
    "polar": lambda x,y: torch.polar(x.abs(),y*C).real,
    "cumsum*": lambda x,y: (x*C).cumsum(0),
    "inverse": lambda x,y: torch.linalg.inv(x+4*torch.eye(3,dtype=torch.float64)),
    "eye*": lambda x,y: x+C*torch.eye(3,dtype=torch.float64),
    "special logit": lambda x,y: torch.special.logit(x.sigmoid(),C),
    "multi margin": lambda x,y: F.multi_margin_loss(x,torch.tensor([0,1,2]),margin=C),
    "hinge": lambda x,y: F.hinge_embedding_loss(x,torch.sign(y),margin=C),
    "margin": lambda x,y: F.margin_ranking_loss(x,y,torch.sign(y),margin=C),
    "triplet": lambda x,y: F.triplet_margin_loss(x,y,x*2,margin=C,eps=D),
    "poisson": lambda x,y: F.poisson_nll_loss(x,y.abs(),log_input=False,eps=C),
    "softmax temp": lambda x,y: (x/C).softmax(-1),
    "batch_norm": lambda x, y: F.batch_norm(x, y[1], y[0].abs(), eps=C),
}


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return (self.function(*inputs),)


def exported(function, inputs: tuple[torch.Tensor, ...], where: Path) -> Path:
    names = [f"x{i}" for i in range(len(inputs))]
    return export_node(ExportJob("n", Call(function), inputs, names, ["z"], "onnx"), where).path


@pytest.mark.parametrize("name", ROWS)
def test_numbers_keep_their_precision(name: str, tmp_path: Path) -> None:
    def draw(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(3, 3, dtype=torch.float64, generator=generator) for _ in range(2))  # type: ignore[return-value]

    path = exported(ROWS[name], draw(1), tmp_path)
    inputs = draw(2)
    torch.testing.assert_close(run_onnx(path, inputs)[0], ROWS[name](*inputs), rtol=2e-14, atol=1e-16, equal_nan=True)


W = torch.arange(12, dtype=torch.float64).reshape(3, 4) / 7
ANY_BATCH = {
    "add": lambda x: x + C,
    "mul": lambda x: x * C,
    "div": lambda x: x / 3,
    "rdiv": lambda x: C / x,
    "product": lambda x: x @ W * C,
    "divided product": lambda x: x @ W / 7,
    "pow": lambda x: x.abs() ** D,
    "clamp": lambda x: x.clamp(-C, D),
    "clamp min": lambda x: x.clamp(min=C),
    "where": lambda x: torch.where(x > 0, C, x),
    "masked_fill": lambda x: x.masked_fill(x > 0, C),
    "remainder": lambda x: torch.remainder(x, C),
    "lerp": lambda x: torch.lerp(x, x * 2, C),
    "linspace": lambda x: x * torch.linspace(C, D, 3, dtype=torch.float64),
    "elu": lambda x: F.elu(x, alpha=C),
    "softplus": lambda x: F.softplus(x, beta=D),
    "layer_norm": lambda x: F.layer_norm(x, (3,), eps=C),
    "addmm": lambda x: torch.addmm(W[0], x, W, beta=C, alpha=D),
}


@pytest.mark.parametrize("name", ANY_BATCH)
def test_numbers_keep_their_precision_for_any_batch(name: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    example, x = (torch.randn(n, 3, dtype=torch.float64, generator=generator) for n in (2, 5))
    job = ExportJob("n", Call(ANY_BATCH[name]), (example,), ["x"], ["z"], "onnx", batch_axes=(0,))
    got = run_onnx(export_node(job, tmp_path).path, (x,))[0]
    torch.testing.assert_close(got, ANY_BATCH[name](x), rtol=2e-14, atol=1e-16)


FUNCTIONS = (
    torch.erf, torch.atan, torch.asinh, torch.acosh, torch.atanh, torch.expm1, torch.log1p, torch.log2, torch.log10,
    torch.isinf, F.softplus, F.elu, F.selu, F.mish, F.logsigmoid, F.gelu, torch.special.erf, torch.erfc,
    torch.special.log_ndtr, torch.lgamma, torch.digamma,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_over_their_whole_range(function, dtype: torch.dtype, tmp_path: Path) -> None:
    """Tiny, large, infinite and undefined arguments too; relative to the value except where that is below any use."""
    wide = dtype == torch.float64
    sizes = torch.cat(
        [
            torch.logspace(-300 if wide else -37, 300 if wide else 37, 999, dtype=torch.float64),
            torch.linspace(0, 12, 999, dtype=torch.float64),
            torch.tensor([0.0, 1.0, 1e8, math.inf, math.nan], dtype=torch.float64),
        ]
    )
    x = torch.cat([sizes, -sizes]).to(dtype)
    path = exported(function, (torch.rand(len(x), dtype=dtype),), tmp_path)
    got, want = run_onnx(path, (x,))[0], function(x)
    loose = 2e-14 if wide else 2e-6
    if function is torch.digamma:
        loose *= 5  # eager loses digits beside the poles
    # The engine's own Elu, Selu and Erf subtract nearly equal numbers.
    tolerance = {"rtol": loose, "atol": 2e-15 if wide else 5e-7, "equal_nan": True}
    # torch's float32 kernels differ by processor: with AVX-512, gelu is NaN at infinity and 1e-6 off at -3.
    exact = function(x.double()).to(want.dtype)
    torch.testing.assert_close(got, torch.where(torch.isclose(got, want, **tolerance), want, exact), **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("function", [torch.erfc, torch.special.erfcx, torch.special.log_ndtr], ids=lambda f: f.__name__)
def test_tails_keep_their_digits(function, dtype: torch.dtype, tmp_path: Path) -> None:
    """Where the values are as small or as large as the type can hold, relative to them."""
    wide = dtype == torch.float64
    end = 26.0 if wide else 9.0
    ends = torch.tensor([0.0, -0.0, 1e30, math.inf, -math.inf, math.nan], dtype=dtype)
    x = torch.cat([torch.linspace(-end, end, 4999, dtype=dtype), ends])
    path = exported(function, (torch.rand(len(x), dtype=dtype),), tmp_path)
    # Eager squares the argument: of a number as large as its square that many digits are lost.
    torch.testing.assert_close(run_onnx(path, (x,))[0], function(x), rtol=1e-13 if wide else 1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_erfinv_undoes_erf(dtype: torch.dtype, tmp_path: Path) -> None:
    wide = dtype == torch.float64
    near_one = 1 - torch.logspace(-16 if wide else -7, -1, 999, dtype=torch.float64)
    x = torch.cat(
        [
            torch.linspace(-1, 1, 4001, dtype=torch.float64),
            near_one,
            -near_one,
            torch.logspace(-300 if wide else -37, -1, 999, dtype=torch.float64),
            torch.tensor([0.0, 1.5, -2.0, math.inf, math.nan], dtype=torch.float64),
        ]
    ).to(dtype)
    path = exported(torch.erfinv, (torch.rand(len(x), dtype=dtype),), tmp_path)
    got = run_onnx(path, (x,))[0]
    torch.testing.assert_close(got, torch.erfinv(x), rtol=2e-12 if wide else 2e-5, atol=0, equal_nan=True)
    inside = x.abs() < 1
    rounding = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.double().erf()[inside], x.double()[inside], rtol=rounding, atol=rounding)


def test_the_type_of_a_result_is_not_that_of_an_equal_call(tmp_path: Path) -> None:
    """Forms are computed once in a process: calls that differ in what decides the type are different calls."""
    x = torch.tensor([1, 2, 3])
    before = torch.get_default_dtype()
    try:
        for number, (default, factor) in enumerate(itertools.product((torch.float32, torch.float64), (1, 1.0, True))):
            torch.set_default_dtype(default)

            def scaled(x: torch.Tensor, factor: float = factor) -> torch.Tensor:
                return (x * factor) / 2 + (x * factor)[1:].sum()

            where = tmp_path / str(number)
            where.mkdir()
            got = run_onnx(exported(scaled, (x,), where), (x + 5,))[0]
            torch.testing.assert_close(got, scaled(x + 5), check_dtype=True)
    finally:
        torch.set_default_dtype(before)
