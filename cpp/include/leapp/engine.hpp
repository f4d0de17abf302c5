// What runs models. A pipeline knows this interface only; onnxruntime.hpp and openvino.hpp implement it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bundle.hpp"

namespace leapp {

/// Memory of one value. It belongs to the pipeline and stays where it is until the next `bind`.
struct Tensor {
  const Dtype* dtype = nullptr;
  Shape shape;
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// One input or output as the model itself describes it.
struct ModelPort {
  struct Size {
    std::int64_t value = -1;  ///< -1 if the model leaves it open.
    std::string symbol;       ///< Its name then, if it has one.
  };
  std::string name;
  std::string type;  ///< As ONNX Runtime writes it: `tensor(float)`.
  std::vector<Size> shape;
};

/// A loaded model. Engines throw any std::exception; the pipeline adds the node's name.
class Session {
 public:
  virtual ~Session() = default;

  virtual std::vector<ModelPort> inputs() const = 0;
  virtual std::vector<ModelPort> outputs() const = 0;

  /// Use this memory from now on, in the order of the node's ports. Called once after opening, and after another batch.
  virtual void bind(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) = 0;

  /// Read the bound inputs, write the bound outputs. The inputs are left as they are.
  virtual void run() = 0;
};

/// Opens models. It is used while a pipeline is opened, not later.
class Engine {
 public:
  virtual ~Engine() = default;

  /// The backends it runs, as a description names them: `onnx`.
  virtual std::vector<std::string> backends() const = 0;

  /// Load a verified model. `node` says the names and the order of its ports.
  virtual std::unique_ptr<Session> open(const Model& model, const Node& node) = 0;
};

}  // namespace leapp
