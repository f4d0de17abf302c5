// What a user of the library would notice, shown on the bundles of tests/cpp/makers.py: behaviour DIRECTORY.
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>
#include <new>
#include <sstream>

namespace {
thread_local bool counting = false;
thread_local std::size_t allocations = 0;

void* counted(std::size_t size, std::size_t alignment) {
  if (counting) ++allocations;
  void* made = alignment > alignof(std::max_align_t)
                   ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                   : std::malloc(size != 0 ? size : 1);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
}  // namespace

void* operator new(std::size_t size) { return counted(size, 0); }
void* operator new[](std::size_t size) { return counted(size, 0); }
void* operator new(std::size_t size, std::align_val_t alignment) { return counted(size, static_cast<std::size_t>(alignment)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#include "leapp/leapp.hpp"

namespace {

std::filesystem::path bundles;

#define EXPECT(condition)                                                                         \
  do {                                                                                            \
    if (!(condition)) throw std::logic_error(std::to_string(__LINE__) + ": not so: " #condition); \
  } while (false)

/// The message of the exception that a call throws.
template <class Expected>
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  throw std::logic_error("nothing was refused");
}

/// An engine around ONNX Runtime: it may fail, it may change outputs, and what it allocates itself does not count.
struct Wrapped : leapp::Engine {
  leapp::OnnxRuntime inner;
  std::string fails_at;
  int fails_in = -1;
  float adds = 0;

  struct Run : leapp::Session {
    Wrapped* engine;
    std::string node;
    std::unique_ptr<leapp::Session> session;
    std::vector<leapp::Tensor> made;

    std::vector<leapp::ModelPort> inputs() const override { return session->inputs(); }
    std::vector<leapp::ModelPort> outputs() const override { return session->outputs(); }
    void bind(const std::vector<leapp::Tensor>& in, const std::vector<leapp::Tensor>& out) override {
      made = out;
      session->bind(in, out);
    }
    void run() override {
      const bool was = counting;
      counting = false;
      if (node == engine->fails_at && engine->fails_in-- == 0) throw std::runtime_error("the engine is on fire");
      session->run();
      if (engine->adds != 0) static_cast<float*>(made[0].data)[0] += engine->adds;
      counting = was;
    }
  };

  std::vector<std::string> backends() const override { return inner.backends(); }
  std::unique_ptr<leapp::Session> open(const leapp::Model& model, const leapp::Node& node) override {
    auto run = std::make_unique<Run>();
    run->engine = this;
    run->node = node.name;
    run->session = inner.open(model, node);
    return run;
  }
};

void give(leapp::Pipeline& pipeline, int step) {
  std::mt19937 generator(static_cast<unsigned>(step));
  std::normal_distribution<float> normal;
  for (const leapp::PortInfo& port : pipeline.ports()) {
    if (port.role != "input" || port.dtype != "float32") continue;
    auto input = pipeline.input<float>(port.key);
    float* values = input.write();
    for (std::size_t i = 0; i < input.size(); ++i) values[i] = normal(generator);
  }
}

std::string outputs(const leapp::Pipeline& pipeline) {
  std::string bits;
  for (const std::string& key : pipeline.outputs()) {
    bits.append(reinterpret_cast<const char*>(pipeline.read_bytes(key)), pipeline.output_bytes(key));
  }
  return bits;
}

std::string stepped(leapp::Pipeline& pipeline, int step) {
  give(pipeline, step);
  pipeline.step();
  return outputs(pipeline);
}

void names_put_elements_into_the_robots_order() {
  auto plain = leapp::open(bundles / "static_outputs"), bound = leapp::open(bundles / "static_outputs");
  bound.bind("policy/position", {"ankle", "hip", "knee"});
  bound.bind({}, {{"policy/target", {"knee", "ankle", "hip"}}});
  auto before = plain.input<float>("policy/position");
  auto after = bound.input<float>("policy/position");
  for (int step = 0; step < 20; ++step) {
    const float base = 0.1f * static_cast<float>(step);
    before.set(std::array<float, 3>{base, base + 1, -base});
    after.set(std::array<float, 3>{-base, base, base + 1});
    plain.step();
    bound.step();
    const auto x = plain.output<float>("policy/target"), y = bound.output<float>("policy/target");
    EXPECT(x[0] == y[2] && x[1] == y[0] && x[2] == y[1]);
    EXPECT(plain.output<float>("policy/kp")[1] == 30.0f);
  }
  const auto wrong = refusal<leapp::InputError>(
      [&] { plain.bind({{"policy/position", {"hip", "knee", "toe"}}}, {{"policy/target", {"hip", "hip", "knee", "ankle"}}}); });
  EXPECT(wrong ==
         "The names bound to 'policy/position' do not fit its elements: missing ['ankle'], extra ['toe'].\n"
         "The names bound to 'policy/target' do not fit its elements: twice ['hip'].");
  EXPECT(refusal<leapp::UnknownPortError>([&] { plain.bind("policy/other", {"hip"}); }) ==
         "'policy/other' cannot be bound; there are ['policy/position'].");
}

void a_failed_step_leaves_the_state_as_it_was() {
  Wrapped faulty;
  faulty.fails_at = "policy";
  leapp::Pipeline broken(bundles / "quadruped", faulty);
  auto whole = leapp::open(bundles / "quadruped");
  for (int step = 0; step < 30; ++step) {
    if (step % 3 == 2) {
      const leapp::State before = broken.state();
      faulty.fails_in = 0;
      give(broken, 1000 + step);
      const std::vector<float> other(broken.input<float>("policy/memory").size(), 5.0f);
      broken.input<float>("policy/memory").set(other);  // a state for one step, which fails
      EXPECT(refusal<leapp::BundleError>([&] { broken.step(); }) == "Node 'policy' failed: the engine is on fire");
      EXPECT(broken.state() == before);
      faulty.fails_in = -1;
      broken.load_state(before);
    }
    give(broken, step), give(whole, step);
    if (step == 7) {
      broken.reset(), whole.reset();
      give(broken, step), give(whole, step);
    }
    if (step % 3 == 2) {
      // The state that was given counts once it ran; here it is given again with the value it has.
      const auto kept = broken.state().at("policy/memory_in");
      std::memcpy(broken.write_bytes("policy/memory"), kept.data(), kept.size());
    }
    broken.step(), whole.step();
    EXPECT(outputs(broken) == outputs(whole));
  }
}

void a_step_allocates_nothing() {
  for (const char* name : {"quadruped", "chain", "feedback", "float64", "static_outputs"}) {
    Wrapped engine;
    leapp::Pipeline pipeline(bundles / name, engine);
    if (std::string(name) == "static_outputs") {
      pipeline.bind("policy/position", {"ankle", "hip", "knee"});
      pipeline.bind("policy/target", {"ankle", "hip", "knee"});
    }
    for (const std::string& key : pipeline.inputs()) std::memset(pipeline.write_bytes(key), 0, pipeline.input_bytes(key));
    pipeline.step();
    std::vector<leapp::Input<float>> inputs;
    if (std::string(name) != "float64") {
      for (const std::string& key : pipeline.inputs()) inputs.push_back(pipeline.input<float>(key));
    }
    const std::string wide = std::string(name) == "float64" ? pipeline.inputs()[0] : "";
    allocations = 0;
    for (int step = 0; step < 100; ++step) {
      counting = true;
      for (auto& input : inputs) std::fill_n(input.write(), input.size(), 0.01f * static_cast<float>(step));
      if (!wide.empty()) std::memset(pipeline.write_bytes(wide), 0, pipeline.input_bytes(wide));
      pipeline.step();
      counting = false;
    }
    EXPECT(allocations == 0);
  }
}

void state_can_be_reset_kept_and_given() {
  auto pipeline = leapp::open(bundles / "quadruped");
  const std::string first = stepped(pipeline, 1), second = stepped(pipeline, 2);
  const leapp::State kept = pipeline.state();
  const std::string third = stepped(pipeline, 3);
  EXPECT(third != stepped(pipeline, 3));
  pipeline.load_state(kept);
  EXPECT(stepped(pipeline, 3) == third);
  pipeline.reset();
  EXPECT(stepped(pipeline, 1) == first && stepped(pipeline, 2) == second);
  const leapp::State before = pipeline.state();
  pipeline.reset("observe");
  const leapp::State after = pipeline.state();
  EXPECT(after.at("policy/memory_in") == before.at("policy/memory_in"));
  EXPECT(after.at("observe/history_in") != before.at("observe/history_in"));
  EXPECT(refusal<leapp::UnknownPortError>([&] { pipeline.reset("nobody"); }) ==
         "There is no node 'nobody'; there are ['act', 'observe', 'policy'].");
  // A state among the inputs replaces the one that is kept, for this step.
  auto other = leapp::open(bundles / "quadruped");
  for (const auto& [key, value] : kept) std::memcpy(other.write_bytes(key), value.data(), value.size());
  EXPECT(stepped(other, 3) == third);
  EXPECT(refusal<leapp::UnknownPortError>([&] { other.load_state({}); }).find("observe/history_in") != std::string::npos);
}

void inputs_are_checked() {
  auto pipeline = leapp::open(bundles / "fan_out");
  EXPECT(refusal<leapp::InputError>([&] { pipeline.step(); }) == "Missing input 'encode/x'. A step takes ['encode/x'].");
  EXPECT(refusal<leapp::InputError>([&] { pipeline.input<double>("encode/x"); }) ==
         "Input 'encode/x': expected float32 [1, 5], got float64.");
  EXPECT(refusal<leapp::InputError>([&] { pipeline.input<float>("encode/x").set(std::vector<float>(4)); }) ==
         "Input 'encode/x': expected float32 [1, 5], got float32 [4].");
  EXPECT(refusal<leapp::InputError>([&] { pipeline.input<float>("left/features"); }) ==
         "Input 'left/features' is fed by 'encode/features' and cannot be given.");
  EXPECT(refusal<leapp::UnknownPortError>([&] { pipeline.input<float>("encode/y"); }) ==
         "Input 'encode/y': node 'encode' has no input 'y'; it has ['x'].");
  EXPECT(refusal<leapp::UnknownPortError>([&] { pipeline.output<float>("encode/features"); }) ==
         "There is no output 'encode/features'; there are ['join/sum'].");
  stepped(pipeline, 1);
  EXPECT(refusal<leapp::InputError>([&] { pipeline.step(); }).find("Missing input") == 0);  // once given is not for ever

  leapp::Options options;
  options.sticky = true;
  options.nonfinite = leapp::NonFinite::raise;
  auto sticky = leapp::open(bundles / "fan_out", options);
  sticky.step();  // zeros at first
  const std::string once = stepped(sticky, 1);
  sticky.step();
  EXPECT(outputs(sticky) == once);
  give(sticky, 2);
  sticky.input<float>("encode/x").write()[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT(refusal<leapp::InputError>([&] { sticky.step(); }) == "Input 'encode/x' holds NaN or infinity.");

  auto held = leapp::open(bundles / "fan_out");
  const std::vector<float> value = {1, 2, 3, 4, 5};
  held.hold<float>("encode/x", value);
  held.step();
  const std::string one = outputs(held);
  held.step();
  EXPECT(outputs(held) == one);
  held.reset();
  EXPECT(refusal<leapp::InputError>([&] { held.step(); }).find("Missing input") == 0);
}

void integers_and_truth_values_have_their_types() {
  auto pipeline = leapp::open(bundles / "integers");
  pipeline.input<std::int64_t>("count/a").set(std::array<std::int64_t, 4>{1, -2, 3, 40});
  pipeline.input<std::int32_t>("count/b").set(std::array<std::int32_t, 4>{5, 6, 7, 8});
  pipeline.input<bool>("count/flag").set(std::array<bool, 4>{true, false, true, false});
  pipeline.input<std::uint8_t>("count/small").set(std::array<std::uint8_t, 4>{200, 100, 50, 1});
  pipeline.step();
  const auto chosen = pipeline.output<std::int64_t>("count/chosen");
  EXPECT(chosen[0] == 1 && chosen[1] == 6 && chosen[2] == 3 && chosen[3] == 8);
  EXPECT(!pipeline.output<bool>("count/larger")[0] && pipeline.output<bool>("count/larger")[3]);
  EXPECT(pipeline.output<std::uint8_t>("count/bytes")[0] == 100);
}

void a_batch_has_any_number_of_rows() {
  auto pipeline = leapp::open(bundles / "dynamic_batch");
  EXPECT(pipeline.batch() == 3);
  auto x = pipeline.input<float>("policy/x");
  auto y = pipeline.output<float>("policy/y");
  const auto row = [](int step, int index) {
    return std::array<float, 4>{0.1f * static_cast<float>(step), static_cast<float>(index), 1, -1};
  };
  std::vector<std::vector<float>> alone(5);
  for (int index = 0; index < 5; ++index) {
    pipeline.reset_batch(1);
    for (int step = 0; step < 4; ++step) x.set(row(step, index)), pipeline.step();
    alone[static_cast<std::size_t>(index)].assign(y.begin(), y.end());
  }
  pipeline.reset_batch(5);
  EXPECT(x.size() == 20 && y.size() == 15);
  for (int step = 0; step < 4; ++step) {
    std::vector<float> all;
    for (int index = 0; index < 5; ++index) {
      const auto one = row(step, index);
      all.insert(all.end(), one.begin(), one.end());
    }
    x.set(all);
    pipeline.step();
  }
  for (std::size_t i = 0; i < 15; ++i) EXPECT(std::fabs(y[i] - alone[i / 3][i % 3]) < 1e-5f);
  const leapp::State before = pipeline.state();
  pipeline.reset_rows({false, true, false, false, false});
  const auto* was = reinterpret_cast<const float*>(before.at("policy/h_in").data());
  const leapp::State after = pipeline.state();
  const auto* is = reinterpret_cast<const float*>(after.at("policy/h_in").data());
  for (std::size_t i = 0; i < 15; ++i) EXPECT(i / 3 == 1 ? is[i] == 0.0f : is[i] == was[i]);
  EXPECT(refusal<leapp::InputError>([&] { pipeline.reset_batch(0); }) == "A batch has one row or more, not 0.");
  auto fixed = leapp::open(bundles / "chain");
  EXPECT(refusal<leapp::InputError>([&] { fixed.reset_batch(2); }).find("fixed sizes") != std::string::npos);
}

void the_samples_are_replayed() {
  for (const auto& entry : std::filesystem::directory_iterator(bundles)) {
    if (!entry.is_directory()) continue;
    auto pipeline = leapp::open(entry.path());
    const leapp::State before = pipeline.state();
    const leapp::Verification found = pipeline.verify();
    EXPECT(found.passed() && found.passes > 0 && found.random.empty());
    EXPECT(pipeline.state() == before);
  }
  leapp::Options options;
  options.fused = true;
  EXPECT(leapp::open(bundles / "fused", options).verify().passed());
  Wrapped wrong;
  wrong.adds = 0.5f;
  leapp::Pipeline pipeline(bundles / "state", wrong);
  const leapp::Verification found = pipeline.verify();
  EXPECT(!found.passed() && found.problems[0].find("policy/y, sample 0: ") == 0);
  EXPECT(found.problems[0].find("out of tolerance, by up to 0.5") != std::string::npos);
}

void the_catalogue_says_what_ports_mean() {
  auto pipeline = leapp::open(bundles / "quadruped");
  EXPECT(pipeline.frequency() == 50.0 && pipeline.graph() == "quadruped" && pipeline.digest());
  const auto found = pipeline.ports_by_kind("output", "target/joint/position");
  EXPECT(found.size() == 1 && found[0].key == "act/targets" && found[0].element_names[11] == "RR_calf");
  EXPECT(found[0].units && found[0].units->is_text("rad") && found[0].shape == (leapp::Shape{1, 12}));
  leapp::Options options;
  options.expect_digest = *pipeline.digest();
  leapp::open(bundles / "quadruped", options);
  EXPECT(refusal<leapp::BundleError>([&] {
           leapp::open(bundles / "chain", options);
         }).find("chain.yaml: expected the bundle with digest " + *pipeline.digest()) == 0);
}

/// This program is built without leapp::signatures.
void a_signature_that_cannot_be_checked_is_refused() {
  leapp::Options options;
  options.trust = {"key.pub"};
  EXPECT(refusal<leapp::InputError>([&] {
           leapp::open(bundles / "quadruped", options);
         }) == "Signatures need OpenSSL: link the CMake target leapp::signatures, or do not ask for a signature.");
  options.trust = leapp::Keys{};
  EXPECT(refusal<leapp::InputError>([&] {
           leapp::open(bundles / "quadruped", options);
         }) == "trust names no key. Give the file of a public key.");
}

void timing_leaves_no_trace() {
  auto pipeline = leapp::open(bundles / "quadruped");
  const std::string first = stepped(pipeline, 1);
  pipeline.reset();
  pipeline.warm_up();
  const leapp::Latency found = pipeline.bench(200), paced = pipeline.bench(20, 1000.0);
  EXPECT(found.steps == 200 && found.p50 > 0 && found.p50 <= found.p99 && found.p99 <= found.p999 &&
         found.p999 <= found.longest);
  EXPECT(!found.misses && paced.misses && paced.noise_misses && *paced.rate == 1000.0);
  EXPECT(stepped(pipeline, 1) == first);
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) return 2;
  bundles = words[1];
  const std::pair<const char*, void (*)()> tests[] = {
#define TEST(name) {#name, name}
      TEST(names_put_elements_into_the_robots_order),
      TEST(a_failed_step_leaves_the_state_as_it_was),
      TEST(a_step_allocates_nothing),
      TEST(state_can_be_reset_kept_and_given),
      TEST(inputs_are_checked),
      TEST(integers_and_truth_values_have_their_types),
      TEST(a_batch_has_any_number_of_rows),
      TEST(the_samples_are_replayed),
      TEST(the_catalogue_says_what_ports_mean),
      TEST(a_signature_that_cannot_be_checked_is_refused),
      TEST(timing_leaves_no_trace),
  };
  int failed = 0;
  for (const auto& [name, test] : tests) {
    try {
      test();
      std::cout << "passed " << name << "\n";
    } catch (const std::exception& error) {
      std::cout << "FAILED " << name << ": " << error.what() << "\n";
      ++failed;
    }
  }
  return failed;
}
