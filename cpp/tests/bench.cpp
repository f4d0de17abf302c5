// The time of a step beside the same models in a loop written by hand, step by step in turn: bench BUNDLE [STEPS].
//
// The loop has what somebody writes for one robot: sessions, tensors made once, Run with names, states copied by hand. It
// checks nothing.
#include <chrono>
#include <iostream>

#include "leapp/leapp.hpp"

namespace {

using leapp::detail::ort;
using leapp::detail::ort_check;

struct ByHand {
  struct Model {
    OrtSession* session = nullptr;
    std::vector<const char*> inputs, outputs;
    std::vector<OrtValue*> in, out;
  };
  std::vector<Model> models;
  std::map<std::string, std::vector<char>> memory;
  std::vector<std::pair<std::string, std::string>> feedback;

  explicit ByHand(const leapp::Bundle& bundle) {
    const leapp::Plan plan = leapp::make_plan(bundle.contract, {"onnx"});
    feedback = plan.feedback;
    OrtMemoryInfo* host = nullptr;
    ort_check(ort().CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &host));
    OrtSessionOptions* options = nullptr;
    ort_check(ort().CreateSessionOptions(&options));
    ort_check(ort().SetIntraOpNumThreads(options, 1));
    const auto value = [&](const std::string& key, const leapp::Port& port) {
      auto& data = memory[key];
      data.resize(port.bytes());
      OrtValue* made = nullptr;
      ort_check(ort().CreateTensorWithDataAsOrtValue(host, data.data(), data.size(), port.shape.data(), port.shape.size(),
                                                     static_cast<ONNXTensorElementDataType>(port.dtype->code), &made));
      return made;
    };
    for (const leapp::Node* node : plan.order) {
      Model model;
      const leapp::Model read = leapp::read_model(bundle, *node);
      ort_check(ort().CreateSessionFromArray(leapp::detail::ort_environment().get(), read.bytes.data(), read.bytes.size(),
                                             options, &model.session));
      for (const leapp::Port& port : node->inputs) {
        const std::string key = leapp::key_of(node->name, port.name);
        const auto edge = plan.edges.find(key);
        model.inputs.push_back(port.name.c_str());
        model.in.push_back(value(edge == plan.edges.end() ? "in " + key : "out " + edge->second, port));
      }
      for (const leapp::Port& port : node->outputs) {
        model.outputs.push_back(port.name.c_str());
        model.out.push_back(value("out " + leapp::key_of(node->name, port.name), port));
      }
      models.push_back(std::move(model));
    }
    for (const auto& [key, raw] : leapp::read_initial_values(bundle)) {
      std::copy(raw.data.begin(), raw.data.end(), memory.at("in " + key).begin());
    }
  }

  void step() {
    for (Model& model : models) {
      ort_check(ort().Run(model.session, nullptr, model.inputs.data(), model.in.data(), model.in.size(), model.outputs.data(),
                          model.out.size(), model.out.data()));
    }
    for (const auto& [target, source] : feedback) {
      const auto& from = memory["out " + source];
      std::memcpy(memory["in " + target].data(), from.data(), from.size());
    }
  }
};

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) return 2;
  using Clock = std::chrono::steady_clock;
  auto pipeline = leapp::open(words[1]);
  ByHand by_hand(pipeline.bundle());
  const long steps = count > 2 ? std::stol(words[2]) : 20000;
  std::vector<leapp::Input<float>> inputs;
  std::vector<float*> targets;
  for (const std::string& key : pipeline.inputs()) {
    inputs.push_back(pipeline.input<float>(key));
    targets.push_back(reinterpret_cast<float*>(by_hand.memory.at("in " + key).data()));
  }
  std::vector<double> ours, theirs;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  bool equal = true;
  for (long step = 0; step < steps; ++step) {
    std::vector<std::vector<float>> values;
    for (const auto& input : inputs) {
      values.emplace_back(input.size());
      for (float& value : values.back()) value = normal(generator);
    }
    const auto run_ours = [&] {
      const auto start = Clock::now();
      for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i].set(values[i]);
      pipeline.step();
      ours.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    };
    const auto run_theirs = [&] {
      const auto start = Clock::now();
      for (std::size_t i = 0; i < inputs.size(); ++i) std::copy(values[i].begin(), values[i].end(), targets[i]);
      by_hand.step();
      theirs.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    };
    if (step % 2 == 0) {
      run_ours(), run_theirs();
    } else {
      run_theirs(), run_ours();
    }
    for (const std::string& key : pipeline.outputs()) {
      equal = equal &&
              std::memcmp(pipeline.read_bytes(key), by_hand.memory.at("out " + key).data(), pipeline.output_bytes(key)) == 0;
    }
  }
  std::cout << "leapp " << median(ours) << " us, by hand " << median(theirs) << " us, ratio " << median(ours) / median(theirs)
            << (equal ? ", equal bits" : ", OTHER VALUES") << "\n";
  return equal ? 0 : 1;
}
