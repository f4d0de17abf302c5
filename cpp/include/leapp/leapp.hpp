// A bundle in C++: everything, with ONNX Runtime as the engine. See docs/cpp.md.
#pragma once

#include "onnxruntime.hpp"
#include "pipeline.hpp"

namespace leapp {

/// Open a bundle with ONNX Runtime, on one thread.
inline Pipeline open(const std::filesystem::path& path, Options options = {}) {
  OnnxRuntime engine;
  return Pipeline(path, engine, std::move(options));
}

}  // namespace leapp
