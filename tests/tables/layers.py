"""``torch.nn`` layers, their functional forms, losses and distributions, as policies use them."""

# ruff: noqa: E501 -- a row is a line

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import distributions as D
from torch import nn

from tests.tables.case import Draw, Table, bools, index, ints, normal, quaternion, uniform

T = torch.Tensor
row = Table("layers")
CASES = row.cases
X34 = normal(3, 4)
SEQ, IMG, VOL = normal(2, 4, 9), normal(2, 4, 8, 8), normal(1, 4, 4, 4, 4)
TOK = normal(2, 5, 8)


def layer(name: str, make: Callable[[], nn.Module], *draws: Draw, pick: Callable[[Any], Any] = lambda out: out) -> None:
    """A module in eval mode, made before the session."""
    row(name, lambda m, *x: pick(m(*x)), *draws, setup=lambda: randomised(make()).eval())


def unrolled(cell: Callable[..., T], x: T, h: T) -> T:
    """A cell that runs over the second axis, from a constant state."""
    for step in x.unbind(1):
        h = cell(step, h)
    return h


def randomised(module: nn.Module) -> nn.Module:
    """Give affine weights and running statistics values that a wrong order or a lost one would show."""
    for name, value in module.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 2.0)
        elif value.is_floating_point() and value.dim() == 1:
            value.uniform_(-0.5, 1.0)
    return module


# Linear

layer("linear", lambda: nn.Linear(4, 5), X34)
layer("linear_no_bias", lambda: nn.Linear(4, 5, bias=False), X34)
layer("linear_3d", lambda: nn.Linear(8, 3), TOK)
layer("linear_1d", lambda: nn.Linear(4, 3), normal(4))
layer("linear_double", lambda: nn.Linear(4, 3).double(), normal(3, 4, dtype=torch.float64))
layer("bilinear", lambda: nn.Bilinear(4, 3, 2), X34, normal(3, 3))
layer("identity", lambda: nn.Sequential(nn.Identity(), nn.Linear(4, 4)), X34)
layer("flatten", lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), SEQ)
layer("unflatten", lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3))), X34)
layer("mlp_elu", lambda: nn.Sequential(nn.Linear(4, 16), nn.ELU(), nn.Linear(16, 16), nn.ELU(), nn.Linear(16, 2)), X34)
layer("mlp_layernorm", lambda: nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 2)), X34)
row("functional_linear", lambda x, w, b: F.linear(x, w, b), X34, normal(5, 4), normal(5))

# Convolutions

layer("conv1d", lambda: nn.Conv1d(4, 6, 3), SEQ)
layer("conv1d_stride_pad", lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), SEQ)
layer("conv1d_dilation_causal", lambda: nn.Sequential(nn.ConstantPad1d((4, 0), 0.0), nn.Conv1d(4, 6, 3, dilation=2)), SEQ)
layer("conv1d_circular", lambda: nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), SEQ)
layer("conv1d_same", lambda: nn.Conv1d(4, 6, 3, padding="same"), SEQ)
layer("conv2d", lambda: nn.Conv2d(4, 6, 3), IMG)
layer("conv2d_groups", lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), IMG)
layer("conv2d_stride", lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), bias=False), IMG)
layer("conv2d_reflect", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMG)
layer("conv2d_unbatched", lambda: nn.Conv2d(4, 6, 3), normal(4, 8, 8))
layer("conv3d", lambda: nn.Conv3d(4, 2, 3, padding=1), VOL)
layer("conv_transpose1d", lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), SEQ)
layer("conv_transpose2d", lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), IMG)
layer("conv_transpose2d_groups", lambda: nn.ConvTranspose2d(4, 4, 2, groups=2, dilation=2), IMG)
layer("conv_transpose3d", lambda: nn.ConvTranspose3d(4, 2, 2), VOL)
layer("nature_cnn", lambda: nn.Sequential(nn.Conv2d(4, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)), IMG)
row("functional_conv2d", lambda x, w: F.conv2d(x, w, padding="same", dilation=1), IMG, normal(3, 4, 3, 3))
row("functional_conv1d", lambda x, w, b: F.conv1d(x, w, b, stride=2), SEQ, normal(3, 4, 3), normal(3))
row("functional_conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), IMG, normal(4, 3, 3, 3))

# Normalisation

layer("batch_norm1d", lambda: nn.BatchNorm1d(4), X34)
layer("batch_norm1d_untracked", lambda: nn.BatchNorm1d(4, track_running_stats=False), X34)
layer("batch_norm1d_seq", lambda: nn.BatchNorm1d(4), SEQ)
layer("batch_norm2d", lambda: nn.BatchNorm2d(4), IMG)
layer("batch_norm2d_plain", lambda: nn.BatchNorm2d(4, affine=False), IMG)
layer("batch_norm3d", lambda: nn.BatchNorm3d(4), VOL)
layer("layer_norm", lambda: nn.LayerNorm(4), X34)
layer("layer_norm_2d", lambda: nn.LayerNorm([5, 8]), TOK)
layer("layer_norm_plain", lambda: nn.LayerNorm(4, elementwise_affine=False), X34)
layer("rms_norm", lambda: nn.RMSNorm(4), X34)
layer("group_norm", lambda: nn.GroupNorm(2, 4), IMG)
layer("group_norm_seq", lambda: nn.GroupNorm(4, 4), SEQ)
layer("instance_norm1d", lambda: nn.InstanceNorm1d(4, affine=True), SEQ)
layer("instance_norm2d", lambda: nn.InstanceNorm2d(4), IMG)
layer("instance_norm2d_tracked", lambda: nn.InstanceNorm2d(4, track_running_stats=True), IMG)
layer("local_response_norm", lambda: nn.LocalResponseNorm(2), IMG)
layer("cross_map_norm", lambda: nn.CrossMapLRN2d(3, alpha=2.0), IMG)
row("functional_layer_norm", lambda x: F.layer_norm(x, (4,)), X34)
row("functional_batch_norm", lambda x, m, v: F.batch_norm(x, m, v, training=False), X34, normal(4), uniform(0.5, 2, 4))
row("functional_group_norm", lambda x, w: F.group_norm(x, 2, w), IMG, normal(4))
row("functional_normalize", lambda x: F.normalize(x, dim=-1), X34)
row("functional_normalize_p1", lambda x: F.normalize(x, p=1.0, dim=0, eps=1e-6), X34)
row("functional_rms_norm", lambda x: F.rms_norm(x, (4,)), X34)

# Pooling and padding

for dims, draw in ((1, SEQ), (2, IMG), (3, VOL)):
    layer(f"max_pool{dims}d", lambda d=dims: getattr(nn, f"MaxPool{d}d")(2), draw)
    layer(f"avg_pool{dims}d", lambda d=dims: getattr(nn, f"AvgPool{d}d")(2), draw)
    layer(f"adaptive_avg_pool{dims}d", lambda d=dims: getattr(nn, f"AdaptiveAvgPool{d}d")(1), draw)
    layer(f"adaptive_max_pool{dims}d", lambda d=dims: getattr(nn, f"AdaptiveMaxPool{d}d")(1), draw)
layer("max_pool2d_pad_stride", lambda: nn.MaxPool2d(3, stride=2, padding=1), IMG)
layer("max_pool2d_indices", lambda: nn.MaxPool2d(2, return_indices=True), IMG)
layer("avg_pool2d_pad", lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), IMG)
layer("adaptive_max_pool2d_uneven", lambda: nn.AdaptiveMaxPool2d((3, 2)), IMG)
layer("adaptive_avg_pool2d_even", lambda: nn.AdaptiveAvgPool2d((4, 2)), IMG)
layer("lp_pool1d", lambda: nn.LPPool1d(2, 3), SEQ)
layer("zero_pad2d", lambda: nn.ZeroPad2d((1, 0, 2, 1)), IMG)
layer("reflection_pad1d", lambda: nn.ReflectionPad1d(2), SEQ)
layer("replication_pad2d", lambda: nn.ReplicationPad2d(1), IMG)
layer("constant_pad3d", lambda: nn.ConstantPad3d(1, 0.5), VOL)
for mode in ("constant", "reflect", "replicate", "circular"):
    row("functional_pad_" + mode, lambda x, mode=mode: F.pad(x, (1, 2), mode=mode), SEQ)
row("functional_pad_negative", lambda x: F.pad(x, (-1, 1)), SEQ)
row("functional_max_pool2d", lambda x: F.max_pool2d(x, 2, ceil_mode=True), normal(1, 2, 5, 5))
row("spatial_softmax", lambda x: (lambda a: torch.stack([(a * torch.linspace(-1, 1, 8)).sum((-1, -2)), (a * torch.linspace(-1, 1, 8)[:, None]).sum((-1, -2))], -1))(F.softmax(x.flatten(2), -1).view_as(x)), IMG)

# Activations

for name in "ReLU ReLU6 ELU SELU CELU GELU SiLU Mish Tanh Sigmoid Softplus Softsign LeakyReLU LogSigmoid Hardtanh Hardswish Hardsigmoid Hardshrink Softshrink Tanhshrink PReLU GLU RReLU".split():
    layer("act_" + name, lambda name=name: getattr(nn, name)(), normal(3, 4))
layer("act_gelu_tanh", lambda: nn.GELU(approximate="tanh"), X34)
layer("act_softplus_beta", lambda: nn.Softplus(beta=2, threshold=1), X34)
layer("act_softmax", lambda: nn.Softmax(dim=-1), X34)
layer("act_log_softmax", lambda: nn.LogSoftmax(dim=0), X34)
layer("act_softmax2d", lambda: nn.Softmax2d(), IMG)
layer("act_threshold", lambda: nn.Threshold(0.1, 2.0), X34)
layer("act_relu_inplace", lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2), nn.ELU(inplace=True)), X34)
layer("dropout_eval", lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.AlphaDropout(0.2), nn.Dropout1d()), X34)
row("functional_gumbel_free_softmax", lambda x: F.softmax(x / 0.5, dim=-1), X34)
row("functional_leaky_relu", lambda x: F.leaky_relu(x, 0.3), X34)
row("functional_glu", lambda x: F.glu(x, dim=1), X34)
row("functional_dropout_off", lambda x: F.dropout(x, 0.5, training=False) * 2, X34)
row("functional_silu_inplace", lambda x: F.silu(x * 2, inplace=True), X34)

# Recurrent layers

layer("lstm", lambda: nn.LSTM(4, 5), normal(6, 2, 4), pick=lambda o: (o[0], *o[1]))
layer("lstm_state", lambda: Stateful(nn.LSTM(4, 5, num_layers=2)), normal(6, 2, 4), normal(2, 2, 5), normal(2, 2, 5))
layer("lstm_batch_first", lambda: nn.LSTM(4, 5, batch_first=True), normal(2, 6, 4), pick=lambda o: o[0])
layer("lstm_bidirectional", lambda: nn.LSTM(4, 5, bidirectional=True, batch_first=True), normal(2, 6, 4), pick=lambda o: o[0])
layer("lstm_projected", lambda: nn.LSTM(4, 5, proj_size=3), normal(6, 2, 4), pick=lambda o: o[0])
layer("lstm_unbatched", lambda: nn.LSTM(4, 5), normal(6, 4), pick=lambda o: o[0])
layer("gru", lambda: nn.GRU(4, 5), normal(6, 2, 4))
layer("gru_state", lambda: nn.GRU(4, 5, num_layers=2), normal(6, 2, 4), normal(2, 2, 5))
layer("gru_bidirectional", lambda: nn.GRU(4, 5, bidirectional=True), normal(6, 2, 4), pick=lambda o: o[0])
layer("gru_one_step", lambda: nn.GRU(4, 5), normal(1, 2, 4), normal(1, 2, 5))
layer("gru_no_bias", lambda: nn.GRU(4, 5, bias=False), normal(6, 2, 4), pick=lambda o: o[0])
layer("rnn_tanh", lambda: nn.RNN(4, 5), normal(6, 2, 4))
layer("rnn_relu", lambda: nn.RNN(4, 5, nonlinearity="relu", num_layers=2), normal(6, 2, 4))
layer("lstm_cell", lambda: nn.LSTMCell(4, 5), normal(2, 4))
layer("lstm_cell_state", lambda: CellState(nn.LSTMCell(4, 5)), normal(2, 4), normal(2, 5), normal(2, 5))
layer("gru_cell", lambda: nn.GRUCell(4, 5), normal(2, 4), normal(2, 5))
row("gru_cell_loop", lambda m, x: unrolled(m, x, torch.zeros(2, 5)), normal(2, 4, 4), setup=lambda: nn.GRUCell(4, 5))
row("lstm_cell_loop", lambda m, x: unrolled(lambda t, h: m(t, (h, h + 1))[0], x, torch.zeros(2, 5)), normal(2, 4, 4), setup=lambda: nn.LSTMCell(4, 5))
layer("rnn_cell_relu", lambda: nn.RNNCell(4, 5, nonlinearity="relu"), normal(2, 4), normal(2, 5))
layer("rnn_cell", lambda: nn.RNNCell(4, 5), normal(2, 4), normal(2, 5))


class Stateful(nn.Module):
    """An LSTM with its state as separate inputs and outputs."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, x: T, h: T, c: T) -> tuple[T, T, T]:
        y, (h, c) = self.lstm(x, (h, c))
        return y, h, c


class CellState(nn.Module):
    """An LSTM cell with its state as separate inputs."""

    def __init__(self, cell: nn.LSTMCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: T, h: T, c: T) -> tuple[T, T]:
        return self.cell(x, (h, c))


# Attention



def padded(rows: int, length: int) -> Draw:
    """A mask of padding at the end of each row, of any length."""
    return lambda g: torch.arange(length) >= torch.randint(1, length + 1, (rows, 1), generator=g)


PADDING = torch.tensor([[False, False, False, True, True], [False, False, False, False, False]])
CAUSAL = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)


def attention(**options: Any) -> Callable[[], nn.Module]:
    """Multi-head self attention of width 8."""
    return lambda: nn.MultiheadAttention(8, 2, batch_first=True, **options)


def encoder(layers: int, **options: Any) -> Callable[[], nn.Module]:
    """A transformer encoder of width 8."""
    block = lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)  # noqa: E731
    return block if layers == 1 else lambda: nn.TransformerEncoder(block(), layers, enable_nested_tensor=False)


def seq(name: str, make: Callable[[], nn.Module], call: Callable[..., Any], *draws: Draw) -> None:
    """A sequence module called in its own way."""
    row(name, call, *draws, setup=lambda: make().eval())


seq("mha", attention(), lambda m, x: m(x, x, x), TOK)
seq("mha_no_weights", attention(), lambda m, x: m(x, x, x, need_weights=False)[0], TOK)
seq("mha_no_grad", attention(), lambda m, x: torch.no_grad()(m)(x, x, x, need_weights=False)[0], TOK)
seq("mha_cross", attention(), lambda m, x, y: m(x, y, y)[0], TOK, normal(2, 3, 8))
seq("mha_padding", attention(), lambda m, x: m(x, x, x, key_padding_mask=PADDING)[0], TOK)
seq("mha_padding_traced", attention(), lambda m, x, p: m(x, x, x, key_padding_mask=p)[0], TOK, lambda g: bools(2, 5)(g) & (torch.arange(5) > 0))
seq("mha_causal", attention(), lambda m, x: m(x, x, x, attn_mask=CAUSAL, is_causal=True)[0], TOK)
seq("mha_per_head", attention(), lambda m, x: m(x, x, x, average_attn_weights=False)[1], TOK)
seq("mha_kdim", attention(kdim=4, vdim=3), lambda m, x, k, v: m(x, k, v)[0], TOK, normal(2, 6, 4), normal(2, 6, 3))
seq("mha_seq_first", lambda: nn.MultiheadAttention(8, 2), lambda m, x: m(x, x, x)[0], TOK)
seq("mha_unbatched", attention(), lambda m, x: m(x, x, x)[0], normal(5, 8))
seq("mha_bias_kv", attention(add_bias_kv=True, add_zero_attn=True), lambda m, x: m(x, x, x)[0], TOK)
seq("encoder_layer", encoder(1), lambda m, x: m(x), TOK)
seq("encoder_layer_no_grad", encoder(1), lambda m, x: torch.no_grad()(m)(x), TOK)
seq("encoder_layer_inference", encoder(1), lambda m, x: torch.inference_mode()(m)(x), TOK)
seq("encoder_layer_norm_first", encoder(1, norm_first=True), lambda m, x: m(x), TOK)
seq("encoder_layer_gelu", encoder(1, activation="gelu"), lambda m, x: m(x), TOK)
seq("encoder_layer_padding", encoder(1), lambda m, x: m(x, src_key_padding_mask=PADDING), TOK)
seq("encoder_layer_causal", encoder(1), lambda m, x: m(x, src_mask=CAUSAL, is_causal=True), TOK)
seq("encoder", encoder(2), lambda m, x: m(x), TOK)
seq("encoder_no_grad", encoder(2), lambda m, x: torch.no_grad()(m)(x), TOK)
seq("encoder_padding", encoder(2), lambda m, x: m(x, src_key_padding_mask=PADDING), TOK)
seq("encoder_padding_no_grad", encoder(2), lambda m, x: torch.no_grad()(m)(x, src_key_padding_mask=PADDING), TOK)
seq("encoder_nested_fast_path", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), lambda m, x: torch.no_grad()(m)(x, src_key_padding_mask=PADDING), TOK)
for _name, _first, _call in (
    ("encoder_nested_padding_traced", False, lambda m, x, p: torch.no_grad()(m)(x, src_key_padding_mask=p)),
    ("encoder_nested_padding_grad", False, lambda m, x, p: m(x, src_key_padding_mask=p)),
    ("encoder_nested_norm_first", True, lambda m, x, p: torch.no_grad()(m)(x, src_key_padding_mask=p)),
):
    seq(_name, lambda first=_first: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first), 2), _call, TOK, padded(2, 5))
seq("encoder_mask_float", encoder(2), lambda m, x: m(x, mask=nn.Transformer.generate_square_subsequent_mask(5)), TOK)
seq("decoder_layer", lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), lambda m, x, y: m(x, y), TOK, normal(2, 3, 8))
seq("decoder", lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2), lambda m, x, y: m(x, y, tgt_mask=CAUSAL), TOK, normal(2, 3, 8))
seq("transformer", lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), lambda m, x, y: m(x, y), TOK, normal(2, 3, 8))
HEADS = normal(2, 2, 5, 4)
row("sdpa", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), HEADS, HEADS, HEADS)
row("sdpa_3d", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), TOK, TOK, TOK)
row("sdpa_2d", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), normal(5, 4), normal(5, 4), normal(5, 4))
row("sdpa_causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), HEADS, HEADS, HEADS)
row("sdpa_mask", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=~CAUSAL), HEADS, HEADS, HEADS)
row("sdpa_float_mask", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), HEADS, HEADS, HEADS, normal(5, 5))
row("sdpa_scale", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), HEADS, HEADS, HEADS)
row("sdpa_grouped", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), normal(1, 4, 5, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8))

# Embeddings, resampling, shuffling

layer("embedding", lambda: nn.Embedding(6, 3), index(6, 2, 4))
layer("embedding_padding", lambda: nn.Embedding(6, 3, padding_idx=0), index(6, 2, 4))
layer("embedding_bag", lambda: nn.EmbeddingBag(6, 3, mode="mean"), index(6, 2, 4))
layer("upsample_nearest", lambda: nn.Upsample(scale_factor=2), IMG)
layer("upsample_bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMG)
layer("upsample_bilinear_corners", lambda: nn.Upsample(size=(11, 5), mode="bilinear", align_corners=True), IMG)
layer("upsample_linear", lambda: nn.Upsample(scale_factor=2, mode="linear"), SEQ)
layer("upsample_bicubic", lambda: nn.Upsample(size=(12, 12), mode="bicubic"), IMG)
layer("upsample_trilinear", lambda: nn.Upsample(scale_factor=2, mode="trilinear"), VOL)
layer("pixel_shuffle", lambda: nn.PixelShuffle(2), IMG)
layer("pixel_unshuffle", lambda: nn.PixelUnshuffle(2), IMG)
layer("channel_shuffle", lambda: nn.ChannelShuffle(2), IMG)
row("interpolate_area", lambda x: F.interpolate(x, size=(4, 4), mode="area"), IMG)
row("interpolate_nearest_exact", lambda x: F.interpolate(x, scale_factor=0.5, mode="nearest-exact"), IMG)
row("interpolate_antialias", lambda x: F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True), IMG)
for _mode in ("bilinear", "bicubic"):
    row(f"interpolate_antialias_{_mode}_aligned", lambda x, m=_mode: F.interpolate(x, size=(5, 3), mode=m, antialias=True, align_corners=True), IMG)
    row(f"interpolate_{_mode}_factor", lambda x, m=_mode: F.interpolate(x, scale_factor=1.7, mode=m), IMG)
row("interpolate_nearest_camera", lambda x: F.interpolate(x, size=(224, 56), mode="nearest"), normal(1, 1, 480, 160))
row("pad_modes", lambda x: [F.pad(x, (2, 1, 0, 3), mode=m) for m in ("reflect", "replicate", "circular")], IMG)
row("max_pool2d_of_masked", lambda x: F.max_pool2d(torch.where(x > -1.0, float("-inf"), x), 2), normal(2, 8, 8))
row("max_pool2d_of_undefined", lambda x: F.max_pool2d((x[None] + 1.5).log(), 3, 2, 1), normal(2, 8, 9))
row("avg_pool2d_ceil_pad", lambda x: [F.avg_pool2d(x, 3, 2, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)], IMG)
row("avg_pool2d_divisor", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=4), IMG)
row("interpolate_double", lambda x: [F.interpolate(x.double(), size=(5, 3), mode="bilinear", antialias=a) for a in (False, True)], IMG)
row("adaptive_avg_pool2d_odd", lambda x: F.adaptive_avg_pool2d(x, (3, 5)), IMG)
row("image_encoder", lambda m, x: m(x), normal(1, 3, 16, 16), setup=lambda: randomised(nn.Sequential(
    nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 3, padding=1),
    nn.GroupNorm(2, 8), nn.Mish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.RMSNorm(8), nn.Linear(8, 4),
)).eval())  # fmt: skip
row("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False), IMG, uniform(-0.9, 0.9, 2, 3, 3, 2))
row("grid_sample_nearest", lambda x, g: F.grid_sample(x, g, mode="nearest", padding_mode="border", align_corners=True), IMG, uniform(-1.2, 1.2, 2, 3, 3, 2))
row("affine_grid", lambda t: F.affine_grid(t, [2, 1, 3, 4], align_corners=False), normal(2, 2, 3))
row("spatial_transformer", lambda x, t: F.grid_sample(x, F.affine_grid(t, list(x.shape), align_corners=False), align_corners=False), IMG, normal(2, 2, 3))
row("unfold", lambda x: F.unfold(x, 3, padding=1), IMG)
row("fold", lambda x: F.fold(x, (4, 4), 2, stride=2), normal(2, 12, 4))
row("unfold_fold", lambda x: F.fold(F.unfold(x, 3), (8, 8), 3), IMG)
row("one_hot", lambda x: F.one_hot(x, 6).float() * 2, index(6, 4))
row("cosine_similarity", lambda x, y: nn.CosineSimilarity(dim=1)(x, y), X34, X34)
row("pairwise_distance", lambda x, y: nn.PairwiseDistance()(x, y), X34, X34)
row("pdist", lambda x: F.pdist(x), X34)

# Losses

row("loss_mse", lambda x, y: F.mse_loss(x, y), X34, X34)
row("loss_mse_none", lambda x, y: nn.MSELoss(reduction="none")(x, y), X34, X34)
row("loss_l1", lambda x, y: F.l1_loss(x, y), X34, X34)
row("loss_smooth_l1", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), X34, X34)
row("loss_huber", lambda x, y: F.huber_loss(x, y, delta=0.7), X34, X34)
row("loss_cross_entropy", lambda x, y: F.cross_entropy(x, y), X34, index(4, 3))
row("loss_cross_entropy_smooth", lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, reduction="none"), X34, index(4, 3))
row("loss_nll", lambda x, y: F.nll_loss(F.log_softmax(x, 1), y), X34, index(4, 3))
row("loss_bce", lambda x, y: F.binary_cross_entropy(torch.sigmoid(x), y), X34, uniform(0, 1, 3, 4))
row("loss_bce_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y), X34, uniform(0, 1, 3, 4))
row("loss_kl", lambda x, y: F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean"), X34, X34)
row("loss_gaussian_nll", lambda x, y, v: F.gaussian_nll_loss(x, y, v), X34, X34, uniform(0.3, 2, 3, 4))
row("loss_cosine_embedding", lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(3)), X34, X34)
row("loss_triplet", lambda x, y, z: F.triplet_margin_loss(x, y, z), X34, X34, X34)
row("loss_hinge", lambda x, y: F.hinge_embedding_loss(x, y), X34, lambda g: ints(0, 2, 3, 4)(g) * 2 - 1)

# Distributions

S34 = uniform(0.3, 2.0, 3, 4)
row("dist_normal_mean", lambda x, s: D.Normal(x, s).mean + s, X34, S34)
row("dist_normal_log_prob", lambda x, s, a: D.Normal(x, s, validate_args=False).log_prob(a).sum(-1), X34, S34, X34)
row("dist_normal_entropy", lambda x, s: D.Normal(x, s, validate_args=False).entropy().sum(-1) + x.sum(), X34, S34)
row("dist_normal_cdf", lambda x, s: D.Normal(x, s, validate_args=False).cdf(torch.zeros(3, 4)), X34, S34)
row("dist_normal_kl", lambda x, s, y: D.kl_divergence(D.Normal(x, s, validate_args=False), D.Normal(y, torch.ones(4), validate_args=False)), X34, S34, X34)
row("dist_independent", lambda x, s, a: D.Independent(D.Normal(x, s, validate_args=False), 1, validate_args=False).log_prob(a), X34, S34, X34)
row("dist_tanh_normal", lambda x, s, a: (lambda u: D.Normal(x, s, validate_args=False).log_prob(u).sum(-1) - torch.log(1 - torch.tanh(u).pow(2) + 1e-6).sum(-1))(a), X34, S34, X34)
row("dist_tanh_action", lambda x, s: torch.tanh(D.Normal(x, s, validate_args=False).mean) * s, X34, S34)
row("dist_tanh_transform", lambda x, a: D.TransformedDistribution(D.Normal(x, 1.0, validate_args=False), [D.TanhTransform()], validate_args=False).log_prob(a), X34, uniform(-0.8, 0.8, 3, 4))
row("dist_categorical_probs", lambda x: D.Categorical(logits=x, validate_args=False).probs, X34)
row("dist_categorical_log_prob", lambda x, a: D.Categorical(logits=x, validate_args=False).log_prob(a), X34, index(4, 3))
row("dist_categorical_entropy", lambda x: D.Categorical(logits=x, validate_args=False).entropy(), X34)
row("dist_categorical_mode", lambda x: D.Categorical(logits=x, validate_args=False).mode, X34)
row("dist_bernoulli", lambda x: D.Bernoulli(logits=x, validate_args=False).probs, X34)
row("dist_multivariate_normal", lambda x, a: D.MultivariateNormal(x, scale_tril=torch.eye(4) * 0.5, validate_args=False).log_prob(a), X34, X34)
row("dist_beta_mean", lambda a, b: D.Beta(a, b, validate_args=False).mean, S34, S34)
row("dist_laplace_log_prob", lambda x, s, a: D.Laplace(x, s, validate_args=False).log_prob(a), X34, S34, X34)

# Whole policies


class ActorCritic(nn.Module):
    """Mean, value and a learned standard deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.Linear(16, 3))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.Linear(16, 1))
        self.log_std = nn.Parameter(torch.full((3,), -0.5))

    def forward(self, x: T) -> dict[str, T]:
        mean = self.actor(x)
        return {"mean": mean, "std": self.log_std.exp().expand_as(mean) + 0 * mean, "value": self.critic(x).squeeze(-1)}


class ResidualBlock(nn.Module):
    """FiLM-conditioned residual block of a diffusion policy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(4, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.Mish())
        self.film = nn.Sequential(nn.Mish(), nn.Linear(8, 12))
        self.skip = nn.Conv1d(4, 6, 1)

    def forward(self, x: T, c: T) -> T:
        scale, bias = self.film(c).unsqueeze(-1).chunk(2, dim=1)
        return self.conv(x) * scale + bias + self.skip(x)


class PatchEncoder(nn.Module):
    """A small vision transformer with a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, 8, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.place = nn.Parameter(torch.randn(1, 5, 8))
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), 2, enable_nested_tensor=False)

    def forward(self, x: T) -> T:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.blocks(x)[:, 0]


class Experts(nn.Module):
    """A soft mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList([nn.Linear(8, 2) for _ in range(3)])

    def forward(self, x: T) -> T:
        w = F.softmax(self.gate(x), dim=-1)
        return (torch.stack([e(x) for e in self.experts], 1) * w.unsqueeze(-1)).sum(1)


layer("policy_actor_critic", ActorCritic, normal(3, 8))
layer("policy_diffusion_block", ResidualBlock, SEQ, normal(2, 8))
layer("policy_patch_encoder", PatchEncoder, IMG)
layer("policy_experts", Experts, normal(3, 8))
layer("policy_quaternion_head", lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()), quaternion(3), pick=lambda q: F.normalize(q, dim=-1))
