// The engine OpenVINO, on the CPU. Values agree with ONNX Runtime within rounding, not bit for bit.
#pragma once

#include <memory>
#include <optional>
#include <openvino/openvino.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine.hpp"

namespace leapp {

namespace detail {

inline ov::element::Type ov_type(const Dtype& dtype) {
  switch (dtype.code) {
    case 1: return ov::element::f32;
    case 2: return ov::element::u8;
    case 3: return ov::element::i8;
    case 4: return ov::element::u16;
    case 5: return ov::element::i16;
    case 6: return ov::element::i32;
    case 7: return ov::element::i64;
    case 9: return ov::element::boolean;
    case 10: return ov::element::f16;
    case 11: return ov::element::f64;
    case 12: return ov::element::u32;
    case 13: return ov::element::u64;
    case 16: return ov::element::bf16;
    case 17: return ov::element::f8e4m3;
    case 19: return ov::element::f8e5m2;
    default: throw std::runtime_error(std::string("OpenVINO has no element type ") + dtype.name);
  }
}

class OpenVinoSession : public Session {
 public:
  OpenVinoSession(ov::Core& core, const Model& model, const Node& node, int threads) {
    for (const Port& port : node.inputs) input_names_.push_back(port.name);
    for (const Port& port : node.outputs) output_names_.push_back(port.name);
    const std::string bytes(model.bytes.begin(), model.bytes.end());
    std::optional<UnpackedModel> unpacked;  // until the model is compiled
    if (!model.external.empty()) unpacked.emplace(model);
    model_ = unpacked ? core.read_model(unpacked->path().native()) : core.read_model(bytes, ov::Tensor());
    // Half precision is the default where the processor has it; a policy was proven in its own.
    auto compiled =
        core.compile_model(model_, "CPU", ov::hint::inference_precision(ov::element::f32), ov::inference_num_threads(threads),
                           ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY));
    request_ = compiled.create_infer_request();
  }

  std::vector<ModelPort> inputs() const override { return ports(model_->inputs(), input_names_); }
  std::vector<ModelPort> outputs() const override { return ports(model_->outputs(), output_names_); }

  void bind(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) override {
    const auto over = [](const Tensor& tensor) {
      return ov::Tensor(ov_type(*tensor.dtype), ov::Shape(tensor.shape.begin(), tensor.shape.end()), tensor.data);
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) request_.set_tensor(input_names_[i], over(inputs[i]));
    outputs_ = outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) request_.set_tensor(output_names_[i], over(outputs[i]));
  }

  void run() override {
    request_.infer();
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const ov::Tensor made = request_.get_tensor(output_names_[i]);
      if (made.get_byte_size() != outputs_[i].bytes) throw std::runtime_error("an output came out in another size");
      if (made.data() != outputs_[i].data) std::memcpy(outputs_[i].data, made.data(), outputs_[i].bytes);
    }
  }

 private:
  template <class Found>
  static std::vector<ModelPort> ports(const Found& found, const std::vector<std::string>& wanted) {
    std::vector<ModelPort> made;
    for (const auto& value : found) {
      ModelPort port;
      const auto& names = value.get_names();
      // Several names may mean one value; the one that the bundle knows is the port's.
      for (const std::string& name : wanted) {
        if (names.count(name) != 0) port.name = name;
      }
      if (port.name.empty() && !names.empty()) port.name = *names.begin();
      for (const Dtype& dtype : dtypes) {
        if (dtype.code == 14 || dtype.code == 15 || dtype.code == 18 || dtype.code == 20 || dtype.code == 24) continue;
        if (ov_type(dtype) == value.get_element_type()) port.type = std::string("tensor(") + dtype.onnx + ")";
      }
      for (const auto& size : value.get_partial_shape()) port.shape.push_back({size.is_static() ? size.get_length() : -1, ""});
      made.push_back(port);
    }
    return made;
  }

  std::shared_ptr<ov::Model> model_;
  ov::InferRequest request_;
  std::vector<Tensor> outputs_;
  std::vector<std::string> input_names_, output_names_;
};

}  // namespace detail

/// OpenVINO on the CPU.
class OpenVino : public Engine {
 public:
  explicit OpenVino(int threads = 1) : threads_(threads) {}

  std::vector<std::string> backends() const override { return {"onnx"}; }

  std::unique_ptr<Session> open(const Model& model, const Node& node) override {
    return std::make_unique<detail::OpenVinoSession>(core_, model, node, threads_);
  }

 private:
  ov::Core core_;
  int threads_;
};

}  // namespace leapp
