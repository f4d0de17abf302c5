// The engine ONNX Runtime, through its C API.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine.hpp"

namespace leapp {

namespace detail {

/// The functions of the library. Version 11 of the API has all that is used here, so any later library will do.
inline const OrtApi& ort() {
  static const OrtApi* api = OrtGetApiBase()->GetApi(11);
  if (api == nullptr) throw BundleError("This libonnxruntime is older than 1.11.");
  return *api;
}

inline void ort_check(OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = ort().GetErrorMessage(status);
  ort().ReleaseStatus(status);
  throw std::runtime_error(message);
}

/// Owns an object of the C API.
template <class T>
using Ort = std::unique_ptr<T, void (*)(T*)>;

template <class T>
Ort<T> ort_own(T* object, void (*release)(T*)) {
  return Ort<T>(object, release);
}

/// One environment for the process, alive as long as a session is.
inline std::shared_ptr<OrtEnv> ort_environment() {
  static const std::shared_ptr<OrtEnv> environment = [] {
    OrtEnv* made = nullptr;
    // Its log has names of models as they are, which a terminal would obey. What failed is thrown, too.
    ort_check(ort().CreateEnv(ORT_LOGGING_LEVEL_FATAL, "leapp", &made));
    return std::shared_ptr<OrtEnv>(made, ort().ReleaseEnv);
  }();
  return environment;
}

class OrtSessionOf : public Session {
 public:
  OrtSessionOf(const Model& model, const Node& node, const OrtSessionOptions& options) : environment_(ort_environment()) {
    for (const Port& port : node.inputs) input_names_.push_back(port.name);
    for (const Port& port : node.outputs) output_names_.push_back(port.name);
    if (model.bytes.size() >= 8 && std::memcmp(model.bytes.data() + 4, "ORTM", 4) == 0) {
      throw std::runtime_error("it is in ONNX Runtime's own format and not an ONNX model");
    }
    OrtSession* made = nullptr;
    if (model.external.empty()) {
      ort_check(ort().CreateSessionFromArray(environment_.get(), model.bytes.data(), model.bytes.size(), &options, &made));
    } else {
      const UnpackedModel unpacked(model);
      ort_check(ort().CreateSession(environment_.get(), unpacked.path().c_str(), &options, &made));
    }
    session_.reset(made);
    OrtMemoryInfo* memory = nullptr;
    ort_check(ort().CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
    memory_.reset(memory);
  }

  std::vector<ModelPort> inputs() const override {
    return ports(ort().SessionGetInputCount, ort().SessionGetInputName, ort().SessionGetInputTypeInfo);
  }

  std::vector<ModelPort> outputs() const override {
    return ports(ort().SessionGetOutputCount, ort().SessionGetOutputName, ort().SessionGetOutputTypeInfo);
  }

  void bind(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) override {
    OrtIoBinding* made = nullptr;
    ort_check(ort().CreateIoBinding(session_.get(), &made));
    auto binding = ort_own(made, ort().ReleaseIoBinding);
    std::vector<Ort<OrtValue>> values;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      values.push_back(value_over(inputs[i]));
      ort_check(ort().BindInput(binding.get(), input_names_[i].c_str(), values.back().get()));
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      values.push_back(value_over(outputs[i]));
      ort_check(ort().BindOutput(binding.get(), output_names_[i].c_str(), values.back().get()));
    }
    binding_ = std::move(binding);
    values_ = std::move(values);
  }

  void run() override { ort_check(ort().RunWithBinding(session_.get(), nullptr, binding_.get())); }

 private:
  Ort<OrtValue> value_over(const Tensor& tensor) const {
    OrtValue* made = nullptr;
    ort_check(ort().CreateTensorWithDataAsOrtValue(memory_.get(), tensor.data, tensor.bytes, tensor.shape.data(),
                                                   tensor.shape.size(),
                                                   static_cast<ONNXTensorElementDataType>(tensor.dtype->code), &made));
    return ort_own(made, ort().ReleaseValue);
  }

  template <class Count, class Name, class Type>
  std::vector<ModelPort> ports(Count count_of, Name name_of, Type type_of) const {
    OrtAllocator* allocator = nullptr;
    ort_check(ort().GetAllocatorWithDefaultOptions(&allocator));
    std::size_t count = 0;
    ort_check(count_of(session_.get(), &count));
    std::vector<ModelPort> found(count);
    for (std::size_t i = 0; i < count; ++i) {
      char* name = nullptr;
      ort_check(name_of(session_.get(), i, allocator, &name));
      found[i].name = name;
      ort_check(ort().AllocatorFree(allocator, name));
      OrtTypeInfo* type = nullptr;
      ort_check(type_of(session_.get(), i, &type));
      const auto owned = ort_own(type, ort().ReleaseTypeInfo);
      describe(*type, found[i]);
    }
    return found;
  }

  static void describe(const OrtTypeInfo& type, ModelPort& port) {
    const OrtTensorTypeAndShapeInfo* info = nullptr;
    ort_check(ort().CastTypeInfoToTensorInfo(&type, &info));
    port.type = "something else than a tensor";
    if (info == nullptr) return;
    ONNXTensorElementDataType code{};
    ort_check(ort().GetTensorElementType(info, &code));
    port.type = "tensor(of a type without a name)";
    for (const Dtype& known : dtypes) {
      if (known.code == static_cast<int>(code)) port.type = std::string("tensor(") + known.onnx + ")";
    }
    std::size_t rank = 0;
    ort_check(ort().GetDimensionsCount(info, &rank));
    Shape sizes(rank);
    std::vector<const char*> symbols(rank);
    ort_check(ort().GetDimensions(info, sizes.data(), rank));
    ort_check(ort().GetSymbolicDimensions(info, symbols.data(), rank));
    for (std::size_t axis = 0; axis < rank; ++axis) {
      port.shape.push_back({sizes[axis], symbols[axis] != nullptr ? symbols[axis] : ""});
    }
  }

  std::shared_ptr<OrtEnv> environment_;
  Ort<OrtSession> session_ = ort_own<OrtSession>(nullptr, ort().ReleaseSession);
  Ort<OrtMemoryInfo> memory_ = ort_own<OrtMemoryInfo>(nullptr, ort().ReleaseMemoryInfo);
  std::vector<Ort<OrtValue>> values_;
  Ort<OrtIoBinding> binding_ = ort_own<OrtIoBinding>(nullptr, ort().ReleaseIoBinding);
  std::vector<std::string> input_names_, output_names_;
};

}  // namespace detail

/// How ONNX Runtime is opened.
struct OnnxRuntimeOptions {
  int threads = 1;  ///< Threads of one session. Policies are small, and thread pools wake up late.
  /// Called with the options of every session, to add an execution provider such as CUDA or TensorRT.
  std::function<void(const OrtApi&, OrtSessionOptions*)> configure;
};

/// ONNX Runtime. Settings are those of the Python runtime, so results are bit for bit the same.
class OnnxRuntime : public Engine {
 public:
  explicit OnnxRuntime(OnnxRuntimeOptions options = {}) : options_(std::move(options)) {}

  std::vector<std::string> backends() const override { return {"onnx"}; }

  std::unique_ptr<Session> open(const Model& model, const Node& node) override {
    using detail::ort;
    using detail::ort_check;
    OrtSessionOptions* made = nullptr;
    ort_check(ort().CreateSessionOptions(&made));
    const auto settings = detail::ort_own(made, ort().ReleaseSessionOptions);
    ort_check(ort().SetIntraOpNumThreads(made, options_.threads));
    ort_check(ort().SetInterOpNumThreads(made, 1));
    ort_check(ort().SetSessionLogSeverityLevel(made, ORT_LOGGING_LEVEL_FATAL));
    ort_check(ort().AddSessionConfigEntry(made, "session.load_model_format", "ONNX"));
    ort_check(ort().AddSessionConfigEntry(made, "session.intra_op.allow_spinning", "0"));
    ort_check(ort().AddSessionConfigEntry(made, "session.inter_op.allow_spinning", "0"));
    const auto wide = [](const Port& port) { return std::string(port.dtype->name) == "float64"; };
    if (std::any_of(node.inputs.begin(), node.inputs.end(), wide) ||
        std::any_of(node.outputs.begin(), node.outputs.end(), wide)) {
      // It would move factors into matrix products, which keep them in float32.
      ort_check(ort().AddSessionConfigEntry(made, "optimization.disable_specified_optimizers", "MatMulScaleFusion"));
    }
    if (options_.configure) options_.configure(ort(), made);
    return std::make_unique<detail::OrtSessionOf>(model, node, *made);
  }

 private:
  OnnxRuntimeOptions options_;
};

}  // namespace leapp
