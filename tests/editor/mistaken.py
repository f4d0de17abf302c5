"""Mistakes that an editor shows while they are typed: each line that ends in ``# wrong`` must be refused by both checkers."""

from __future__ import annotations

import torch

import leapp
from leapp import GraphConfigs, InferenceManager, TensorSemantics, annotate
from leapp.runtime import Pipeline

x = torch.zeros(2)
annotate.output_tensors("n", {"y": x}, export_with="onxn")  # wrong
annotate.output_tensors("n", {"y": x}, exprt_with="onnx")  # wrong
annotate.output_tensors({"y": x}, "n", export_with="onnx")  # wrong
annotate.input_tensors("n", {"x": x}, batch_axis="first")  # wrong
annotate.method(export_with="tensorflow")  # wrong
annotate.method(name="n")  # wrong
leapp.start("g", escapes="raise")  # wrong
leapp.start("g", passes=2)  # wrong
leapp.compile_graph(validate="deep")  # wrong
leapp.compile_graph(target="cuda")  # wrong
leapp.session("g", compile={"fused": True})  # wrong
TensorSemantics("q", x, unit="rad")  # wrong
GraphConfigs(rate=50)  # wrong
Pipeline("g", nonfinite="stop")  # wrong
InferenceManager("g", thread=1)  # wrong
InferenceManager("g").run([x])  # wrong
leapp.compile()  # wrong
