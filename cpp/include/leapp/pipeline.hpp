// A bundle that runs in a control loop. The semantics are those of leapp.runtime.Pipeline.
//
// Everything is decided when it is opened. A step allocates nothing: inputs are written into memory of the pipeline, engines
// read and write it, outputs are read from it. One pipeline belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <complex>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bundle.hpp"
#include "compare.hpp"
#include "engine.hpp"
#include "plan.hpp"

namespace leapp {

// Port dtypes without a C++ type of their own, as their bits.
struct float16 {
  std::uint16_t bits;
};
struct bfloat16 {
  std::uint16_t bits;
};
struct float8_e4m3fn {
  std::uint8_t bits;
};
struct float8_e4m3fnuz {
  std::uint8_t bits;
};
struct float8_e5m2 {
  std::uint8_t bits;
};
struct float8_e5m2fnuz {
  std::uint8_t bits;
};
struct float8_e8m0fnu {
  std::uint8_t bits;
};

namespace detail {

template <class T>
constexpr int code_of = 0;
template <>
inline constexpr int code_of<float> = 1;
template <>
inline constexpr int code_of<std::uint8_t> = 2;
template <>
inline constexpr int code_of<std::int8_t> = 3;
template <>
inline constexpr int code_of<std::uint16_t> = 4;
template <>
inline constexpr int code_of<std::int16_t> = 5;
template <>
inline constexpr int code_of<std::int32_t> = 6;
template <>
inline constexpr int code_of<std::int64_t> = 7;
template <>
inline constexpr int code_of<bool> = 9;
template <>
inline constexpr int code_of<float16> = 10;
template <>
inline constexpr int code_of<double> = 11;
template <>
inline constexpr int code_of<std::uint32_t> = 12;
template <>
inline constexpr int code_of<std::uint64_t> = 13;
template <>
inline constexpr int code_of<std::complex<float>> = 14;
template <>
inline constexpr int code_of<std::complex<double>> = 15;
template <>
inline constexpr int code_of<bfloat16> = 16;
template <>
inline constexpr int code_of<float8_e4m3fn> = 17;
template <>
inline constexpr int code_of<float8_e4m3fnuz> = 18;
template <>
inline constexpr int code_of<float8_e5m2> = 19;
template <>
inline constexpr int code_of<float8_e5m2fnuz> = 20;
template <>
inline constexpr int code_of<float8_e8m0fnu> = 24;

template <class T>
const Dtype& dtype_of() {
  static_assert(code_of<T> != 0, "no port has this element type");
  return *std::find_if(std::begin(dtypes), std::end(dtypes), [](const Dtype& known) { return known.code == code_of<T>; });
}

/// Zeroed memory, aligned as engines like it.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t size)
      : data_(static_cast<unsigned char*>(::operator new(std::max<std::size_t>(size, 1), std::align_val_t{64}))), size_(size) {
    std::memset(data_.get(), 0, std::max<std::size_t>(size, 1));
  }
  unsigned char* get() const { return data_.get(); }
  std::size_t size() const { return size_; }
  void copy_from(const Memory& other) { std::memcpy(get(), other.get(), size_); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  struct Free {
    void operator()(unsigned char* data) const { ::operator delete(data, std::align_val_t{64}); }
  };
  std::unique_ptr<unsigned char, Free> data_;
  std::size_t size_ = 0;
};

/// Elements of one axis put into another order.
struct Reordering {
  std::size_t axis = 0;
  std::vector<std::size_t> places;  // element i of the result is element places[i] of the source

  void apply(const Port& port, const unsigned char* from, unsigned char* to) const {
    std::size_t inner = port.dtype->size, outer = 1;
    for (std::size_t i = 0; i < port.shape.size(); ++i) {
      if (i < axis) outer *= static_cast<std::size_t>(port.shape[i]);
      if (i > axis) inner *= static_cast<std::size_t>(port.shape[i]);
    }
    const std::size_t row = inner * places.size();
    for (std::size_t block = 0; block < outer; ++block) {
      for (std::size_t i = 0; i < places.size(); ++i) {
        std::memcpy(to + block * row + i * inner, from + block * row + places[i] * inner, inner);
      }
    }
  }
};

/// The memory of one port, and what a caller did to it since the last step.
struct Slot {
  std::string key;
  Port port;       // with the present number of rows
  Memory memory;   // what engines read and write
  Memory face;     // what the caller sees, if it is in another order or a state to come
  Memory initial;  // of a state
  Memory before;   // of a state, while a step runs on one that was given
  Reordering order;
  bool bound = false;
  bool state = false;
  bool given = false;
  bool held = false;

  unsigned char* visible() const { return face ? face.get() : memory.get(); }
};

}  // namespace detail

/// An input of a pipeline: memory to write before a step. Get it once, use it in every step.
template <class T>
class Input {
 public:
  std::size_t size() const { return slot_->port.elements(); }

  /// The memory, for all `size()` elements to be written. Counts as given for the next step.
  T* write() {
    slot_->given = true;
    return reinterpret_cast<T*>(slot_->visible());
  }

  /// Copy values. Their number must be that of the port.
  void set(const T* values, std::size_t count) {
    if (count != size()) {
      throw InputError("Input " + detail::repr_text(slot_->key) + ": expected " + form(slot_->port) + ", got " +
                       slot_->port.dtype->name + " [" + std::to_string(count) + "].");
    }
    if (count != 0) std::memcpy(write(), values, count * sizeof(T));
    slot_->given = true;
  }
  template <class Container>
  void set(const Container& values) {
    set(values.data(), values.size());
  }

 private:
  friend class Pipeline;
  explicit Input(detail::Slot* slot) : slot_(slot) {}
  detail::Slot* slot_;
};

/// An output of a pipeline: memory to read after a step. The next step overwrites it.
template <class T>
class Output {
 public:
  std::size_t size() const { return slot_->port.elements(); }
  const T* data() const { return reinterpret_cast<const T*>(slot_->visible()); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  const T& operator[](std::size_t index) const { return data()[index]; }

 private:
  friend class Pipeline;
  explicit Output(const detail::Slot* slot) : slot_(slot) {}
  const detail::Slot* slot_;
};

/// One port as a deployer sees it.
struct PortInfo {
  std::string key, node, name;
  std::string role;  ///< `input`, `output` or `feedback`.
  std::optional<std::string> kind;
  std::vector<std::string> element_names;  ///< Without temporal and unnamed axes.
  std::optional<Value> units, limits;
  Shape shape;
  std::string dtype;
  std::optional<double> temporal_period_ms;
  std::optional<std::size_t> batch_axis;
  std::vector<std::pair<std::string, Value>> extra;
};

/// Times of a run, in microseconds.
struct Latency {
  std::size_t steps = 0;
  double p50 = 0, p99 = 0, p999 = 0, longest = 0, jitter = 0;
  std::optional<double> rate;            ///< The rate the steps were started at, in hertz.
  std::optional<std::size_t> misses;     ///< Steps that were not done one period after they were due.
  double noise_p50 = 0, noise_p999 = 0;  ///< The same loop around nothing: the clock and the machine.
  std::optional<std::size_t> noise_misses;
};

/// What replaying the samples of a bundle showed.
struct Verification {
  std::size_t passes = 0;             ///< How many samples were run, over all nodes.
  std::vector<std::string> problems;  ///< One sentence for each output that is not what was traced.
  std::vector<std::string> random;    ///< Outputs that change from run to run; their values were not compared.
  bool passed() const { return problems.empty(); }
};

enum class NonFinite { ignore, raise };

struct Options {
  bool sticky = false;                      ///< Reuse the last value of an input that is not given (zeros before the first).
  NonFinite nonfinite = NonFinite::ignore;  ///< What to do about NaN and infinity in inputs.
  bool fused = false;                       ///< Run the bundle's fused file (`compile_graph(fuse=True)`) instead of its nodes.
  bool allow_outside = false;               ///< Let files of an unsealed bundle lie outside its directory.
  std::string expect_digest;                ///< Refuse any bundle but the one with this digest.
};

/// The values of all states, for `load_state`.
using State = std::map<std::string, std::vector<unsigned char>>;

class Pipeline {
 public:
  /// Open a bundle: check every file, plan the steps, load the models, put the state to its initial values.
  ///
  /// @param path The bundle's YAML file or its directory.
  /// @param engine What runs the models. It is used while opening only.
  Pipeline(const std::filesystem::path& path, Engine& engine, Options options = {})
      : options_(std::move(options)), bundle_(open_bundle(path, options_.allow_outside, options_.expect_digest)) {
    plan_ = make_plan(bundle_.contract, engine.backends());
    batch_ = plan_.batch;
    initial_ = read_initial_values(bundle_);
    make_slots();
    if (!plan_.missing.empty()) return;
    if (options_.fused) {
      open_fused(engine);
    } else {
      for (const Node* node : plan_.order) units_.push_back(open_unit(*node, engine));
    }
    allocate();
    reset();
  }
  Pipeline(Pipeline&&) = default;
  Pipeline& operator=(Pipeline&&) = default;

  // What can be asked without running.

  const std::vector<std::string>& inputs() const { return plan_.inputs; }
  const std::vector<std::string>& outputs() const { return plan_.outputs; }
  std::vector<std::string> feedback_inputs() const {
    std::vector<std::string> keys;
    for (const auto& [target, source] : plan_.feedback) keys.push_back(target);
    return keys;
  }
  const Bundle& bundle() const { return bundle_; }
  const std::optional<std::string>& digest() const { return bundle_.digest; }
  std::string graph() const { return bundle_.graph(); }
  const Value& configs() const { return bundle_.contract.configs; }
  /// The rate in hertz the pipeline was made for, if the bundle says.
  std::optional<double> frequency() const {
    const Value* found = configs().find("frequency");
    return found != nullptr ? found->number() : std::nullopt;
  }
  /// The number of rows that memory and state are made for; nothing for a pipeline of fixed sizes.
  std::optional<std::int64_t> batch() const { return batch_; }

  /// The whole catalogue: inputs, feedback, outputs.
  std::vector<PortInfo> ports() const {
    std::vector<PortInfo> found;
    for (const std::string& key : plan_.inputs) found.push_back(info(*inputs_.at(key), "input"));
    for (const auto& [key, source] : plan_.feedback) found.push_back(info(*inputs_.at(key), "feedback"));
    for (const std::string& key : plan_.outputs) found.push_back(info(*outputs_.at(key), "output"));
    return found;
  }

  /// All ports of a role and a kind, such as `state/joint/position`.
  std::vector<PortInfo> ports_by_kind(const std::string& role, const std::string& kind) const {
    std::vector<PortInfo> found;
    for (PortInfo& port : ports()) {
      if (port.role == role && port.kind == kind) found.push_back(std::move(port));
    }
    return found;
  }

  // Values.

  /// An input, or a state to replace in the next step only. `h` stands for `h_in` when an export renamed the port so.
  template <class T>
  Input<T> input(const std::string& name) {
    detail::Slot& slot = input_slot(name);
    check_type<T>("Input", slot);
    return Input<T>(&slot);
  }

  template <class T>
  Output<T> output(const std::string& key) const {
    const detail::Slot& slot = output_slot(key);
    check_type<T>("Output", slot);
    return Output<T>(&slot);
  }

  /// The memory of an input as bytes, whatever its dtype. Counts as given for the next step.
  unsigned char* write_bytes(const std::string& name) {
    detail::Slot& slot = input_slot(name);
    slot.given = true;
    return slot.visible();
  }
  const unsigned char* read_bytes(const std::string& key) const { return output_slot(key).visible(); }
  std::size_t input_bytes(const std::string& name) { return input_slot(name).port.bytes(); }
  std::size_t output_bytes(const std::string& key) const { return output_slot(key).port.bytes(); }

  /// Take and return the elements of a port in the robot's order from now on, by their names.
  void bind(const std::string& key, const std::vector<std::string>& names) {
    const bool enters = is_listed(plan_.inputs, key), leaves = is_listed(plan_.outputs, key);
    if (enters && leaves) {
      throw InputError(detail::repr_text(key) + " is an input and an output. Call bind_input or bind_output.");
    }
    if (leaves) return bind_output(key, names);
    bind_input(key, names);
  }
  void bind_input(const std::string& key, const std::vector<std::string>& names) { bind({{key, names}}, {}); }
  void bind_output(const std::string& key, const std::vector<std::string>& names) { bind({}, {{key, names}}); }

  using Names = std::map<std::string, std::vector<std::string>>;

  /// The same for several ports. If some names do not fit, the error lists the missing and the extra ones of every port.
  void bind(const Names& inputs, const Names& outputs) {
    check_runnable();
    std::vector<std::pair<detail::Slot*, detail::Reordering>> orders;
    std::string problems;
    for (const bool entering : {true, false}) {
      const auto& keys = entering ? plan_.inputs : plan_.outputs;
      for (const auto& [key, names] : entering ? inputs : outputs) {
        if (!is_listed(keys, key)) {
          throw UnknownPortError(detail::repr_text(key) + " cannot be bound; there are " + detail::list_text(keys) + ".");
        }
        detail::Slot& slot = *(entering ? inputs_ : outputs_).at(key);
        try {
          orders.emplace_back(&slot, reordering(key, slot.port, names, entering));
        } catch (const InputError& error) {
          problems += (problems.empty() ? "" : "\n") + std::string(error.what());
        }
      }
    }
    if (!problems.empty()) throw InputError(problems);
    for (auto& [slot, order] : orders) {
      slot->order = std::move(order);
      slot->bound = true;
      if (!slot->face) slot->face = detail::Memory(slot->port.bytes());
    }
    prepare();
  }

  /// Keep a value for an input that later steps do not give, until `reset()`; or set a state.
  template <class T>
  void hold(const std::string& name, const T* values, std::size_t count) {
    Input<T> port = input<T>(name);
    detail::Slot& slot = input_slot(name);
    const bool was = slot.given;
    port.set(values, count);
    slot.given = was;
    if (slot.state) {
      slot.memory.copy_from(slot.face);
    } else {
      if (slot.bound) slot.order.apply(slot.port, slot.face.get(), slot.memory.get());
      slot.held = true;
    }
  }
  template <class T, class Container>
  void hold(const std::string& name, const Container& values) {
    hold<T>(name, values.data(), values.size());
  }

  // Steps and state.

  /// Run one step on the inputs that were given.
  ///
  /// A step that is refused or fails leaves the state as it was. Inputs have to be given again after a step.
  void step() {
    check_runnable();
    check_given();
    for (detail::Slot* slot : entering_) {
      if (slot->bound && slot->given) slot->order.apply(slot->port, slot->face.get(), slot->memory.get());
    }
    for (detail::Slot* slot : states_) {
      if (slot->given) slot->before.copy_from(slot->memory), slot->memory.copy_from(slot->face);
    }
    const Unit* at = nullptr;
    try {
      for (const Unit& unit : units_) at = &unit, unit.session->run();
    } catch (const std::exception& error) {
      for (detail::Slot* slot : states_) {
        if (slot->given) slot->memory.copy_from(slot->before);
      }
      throw BundleError("Node " + detail::repr_text(at->node->name) + " failed: " + error.what());
    }
    // From here on nothing can fail.
    for (const auto& [to, from] : handed_) to->memory.copy_from(from->memory);
    for (detail::Slot* slot : leaving_) slot->order.apply(slot->port, slot->memory.get(), slot->face.get());
    for (detail::Slot* slot : entering_) slot->given = false;
    for (detail::Slot* slot : states_) slot->given = false;
  }

  /// Put all state back to its initial values and forget held inputs.
  void reset() {
    check_runnable();
    for (detail::Slot* slot : states_) slot->memory.copy_from(slot->initial), slot->given = false;
    for (detail::Slot* slot : entering_) slot->held = false;
  }

  /// Put the state of one node back.
  void reset(const std::string& node) {
    check_runnable();
    if (bundle_.contract.find(node) == nullptr) {
      std::vector<std::string> names;
      for (const Node& known : bundle_.contract.nodes) names.push_back(known.name);
      std::sort(names.begin(), names.end());
      throw UnknownPortError("There is no node " + detail::repr_text(node) + "; there are " + detail::list_text(names) + ".");
    }
    for (detail::Slot* slot : states_) {
      if (split_key(slot->key).first == node) slot->memory.copy_from(slot->initial);
    }
  }

  /// Put some rows of every state back. Rows are along the batch axis, the first axis in a pipeline of fixed sizes.
  void reset_rows(const std::vector<bool>& rows) {
    check_runnable();
    std::vector<std::size_t> axes;
    for (const detail::Slot* slot : states_) {
      if (batch_ && !slot->port.batch_axis) {
        throw InputError("State " + detail::repr_text(slot->key) + " has no batch axis, so single rows of it cannot be reset.");
      }
      axes.push_back(batch_ ? *slot->port.batch_axis : 0);
      if (slot->port.shape.empty() || slot->port.shape[axes.back()] != static_cast<std::int64_t>(rows.size())) {
        throw InputError("The mask has the shape [" + std::to_string(rows.size()) + "], but state " +
                         detail::repr_text(slot->key) + " " + detail::sizes_text(slot->port.shape) + ".");
      }
    }
    for (std::size_t i = 0; i < states_.size(); ++i) {
      detail::Slot& slot = *states_[i];
      std::size_t inner = slot.port.dtype->size;
      for (std::size_t axis = axes[i] + 1; axis < slot.port.shape.size(); ++axis) {
        inner *= static_cast<std::size_t>(slot.port.shape[axis]);
      }
      for (std::size_t at = 0, row = 0; at < slot.memory.size(); at += inner, ++row) {
        if (rows[row % rows.size()]) std::memcpy(slot.memory.get() + at, slot.initial.get() + at, inner);
      }
    }
  }

  /// Make memory and state for another number of rows, in a pipeline that takes any. All state is put back.
  void reset_batch(std::int64_t rows) {
    check_runnable();
    const std::string call = "reset_batch(" + std::to_string(rows) + "): ";
    if (!batch_) throw InputError(call + "the bundle has fixed sizes.");
    if (rows < 1) throw InputError("A batch has one row or more, not " + std::to_string(rows) + ".");
    for (const auto* slots : {&inputs_, &outputs_}) {
      for (const auto& [key, slot] : *slots) check_size(at_rows(slot->port, rows));
    }
    for (const auto& [key, raw] : initial_) spread(key, raw, at_rows(inputs_.at(key)->port, rows));
    for (const auto* slots : {&inputs_, &outputs_}) {
      for (const auto& [key, slot] : *slots) slot->port = at_rows(slot->port, rows);
    }
    batch_ = rows;
    allocate();
    reset();
  }

  /// A copy of all state.
  State state() const {
    State copy;
    for (const detail::Slot* slot : states_)
      copy[slot->key].assign(slot->memory.get(), slot->memory.get() + slot->memory.size());
    return copy;
  }

  /// Restore what `state` returned. Nothing is changed if it does not fit.
  void load_state(const State& values) {
    check_runnable();
    bool fits = values.size() == states_.size();
    for (const detail::Slot* slot : states_) {
      const auto found = values.find(slot->key);
      fits = fits && found != values.end() && found->second.size() == slot->memory.size();
    }
    if (!fits) {
      throw UnknownPortError("The state is not one of this pipeline, which has " + detail::list_text(feedback_inputs()) + ".");
    }
    for (detail::Slot* slot : states_) {
      if (slot->memory.size() != 0) std::memcpy(slot->memory.get(), values.at(slot->key).data(), slot->memory.size());
    }
  }

  /// Run a few steps on zeros, so that engines finish their preparations, and put the state back.
  void warm_up(std::size_t steps = 3) {
    check_runnable();
    Keep keep(*this);
    for (detail::Slot* slot : entering_) std::memset(slot->visible(), 0, slot->port.bytes());
    for (std::size_t i = 0; i < steps; ++i) give_all(), step();
  }

  /// Time steps on random inputs and put the state back. With a rate, in hertz, steps start when they are due.
  Latency bench(std::size_t steps = 1000, std::optional<double> rate = std::nullopt) {
    check_runnable();
    if (steps < 1 || (rate && !(*rate > 0))) throw InputError("bench takes at least one step and a positive rate.");
    warm_up();
    Keep keep(*this);
    std::mt19937 generator(std::random_device{}());
    for (detail::Slot* slot : entering_) randomize(*slot, generator);
    const auto [times, misses] = timed(steps, rate, [this] { give_all(), step(); });
    const auto [noise, late] = timed(steps, rate, [] {});
    double mean = 0, square = 0;
    for (const double time : times) mean += time / static_cast<double>(steps);
    for (const double time : times) square += (time - mean) * (time - mean) / static_cast<double>(steps);
    Latency made{steps,
                 percentile(times, 50),
                 percentile(times, 99),
                 percentile(times, 99.9),
                 times.back(),
                 std::sqrt(square),
                 rate,
                 {},
                 percentile(noise, 50),
                 percentile(noise, 99.9),
                 {}};
    if (rate) made.misses = misses, made.noise_misses = late;
    return made;
  }

  /// Replay the bundle's recorded samples on this machine: every node alone, then the whole pipeline with its own state.
  Verification verify(double rtol = 1e-3, double atol = 1e-5) {
    check_runnable();
    Verification found;
    if (batch_ != plan_.batch) {
      throw InputError("verify needs the traced batch: call reset_batch(" + std::to_string(*plan_.batch) + ").");
    }
    const auto samples = read_samples(bundle_);
    Keep keep(*this);
    for (const Unit& unit : units_) {
      const auto passes = whole_ ? samples.end() : samples.find(unit.node->name);
      if (passes != samples.end()) verify_node(unit, passes->second, rtol, atol, found);
    }
    if (found.random.empty()) verify_loop(samples, rtol, atol, found);
    return found;
  }

 private:
  struct Unit {
    const Node* node;
    std::unique_ptr<Session> session;
    std::vector<detail::Slot*> inputs, outputs;  // an input that an edge feeds is the slot of its source
  };
  using Slots = std::map<std::string, std::unique_ptr<detail::Slot>>;

  /// Puts state, inputs and what counts as given back when it goes.
  struct Keep {
    struct Kept {
      detail::Slot* slot;
      std::vector<unsigned char> memory, face;
      bool given;
    };
    std::vector<Kept> kept;
    explicit Keep(Pipeline& pipeline) {
      const auto copy = [](const detail::Memory& from) {
        return std::vector<unsigned char>(from.get(), from.get() + (from ? from.size() : 0));
      };
      for (const auto* slots : {&pipeline.entering_, &pipeline.states_}) {
        for (detail::Slot* slot : *slots) kept.push_back({slot, copy(slot->memory), copy(slot->face), slot->given});
      }
    }
    Keep(const Keep&) = delete;
    Keep& operator=(const Keep&) = delete;
    ~Keep() {
      for (const Kept& one : kept) {
        if (!one.memory.empty()) std::memcpy(one.slot->memory.get(), one.memory.data(), one.memory.size());
        if (!one.face.empty()) std::memcpy(one.slot->face.get(), one.face.data(), one.face.size());
        one.slot->given = one.given;
      }
    }
  };

  static bool is_listed(const std::vector<std::string>& keys, const std::string& key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }

  void check_runnable() const {
    if (plan_.missing.empty()) return;
    std::string names;
    for (const std::string& name : plan_.missing) names += (names.empty() ? "" : ", ") + detail::repr_text(name);
    throw BundleError("The bundle has no model for node " + names + ", so it can be inspected but not run.");
  }

  // Opening.

  void make_slots() {
    for (const Node& node : bundle_.contract.nodes) {
      for (const bool entering : {true, false}) {
        for (const Port& port : entering ? node.inputs : node.outputs) {
          auto slot = std::make_unique<detail::Slot>();
          slot->key = key_of(node.name, port.name);
          slot->port = port;
          slot->state = entering && plan_.feeds_back(slot->key) != nullptr;
          (entering ? inputs_ : outputs_)[slot->key] = std::move(slot);
        }
      }
    }
    for (const std::string& key : plan_.inputs) entering_.push_back(inputs_.at(key).get());
    for (const auto& [target, source] : plan_.feedback) {
      states_.push_back(inputs_.at(target).get());
      handed_.emplace_back(states_.back(), outputs_.at(source).get());
    }
  }

  static std::unique_ptr<Session> open_session(const Model& model, const Node& node, Engine& engine) {
    std::unique_ptr<Session> session;
    try {
      session = engine.open(model, node);
    } catch (const std::exception& error) {
      throw BundleError("The ONNX model of node " + detail::repr_text(node.name) + " cannot be opened: " + error.what());
    }
    check_side(node, "input", node.inputs, session->inputs());
    check_side(node, "output", node.outputs, session->outputs());
    return session;
  }

  /// The fused file is one node whose ports are called by their keys: inputs and states in, outputs and next states out.
  void open_fused(Engine& engine) {
    whole_ = std::make_unique<Node>();
    whole_->name = bundle_.graph();
    Unit unit{whole_.get(), nullptr, {}, {}};
    const auto take = [](detail::Slot* slot, std::vector<detail::Slot*>& slots, std::vector<Port>& ports) {
      if (std::find(slots.begin(), slots.end(), slot) != slots.end()) return;
      slots.push_back(slot);
      ports.push_back(slot->port);
      ports.back().name = slot->key;
    };
    for (const auto* slots : {&entering_, &states_}) {
      for (detail::Slot* slot : *slots) take(slot, unit.inputs, whole_->inputs);
    }
    for (const std::string& key : plan_.outputs) take(outputs_.at(key).get(), unit.outputs, whole_->outputs);
    for (const auto& [to, from] : handed_) take(from, unit.outputs, whole_->outputs);
    unit.session = open_session(read_fused(bundle_), *whole_, engine);
    units_.push_back(std::move(unit));
  }

  Unit open_unit(const Node& node, Engine& engine) {
    Unit unit{&node, open_session(read_model(bundle_, node), node, engine), {}, {}};
    for (const Port& port : node.inputs) {
      const std::string key = key_of(node.name, port.name);
      const auto edge = plan_.edges.find(key);
      unit.inputs.push_back(edge == plan_.edges.end() ? inputs_.at(key).get() : outputs_.at(edge->second).get());
    }
    for (const Port& port : node.outputs) unit.outputs.push_back(outputs_.at(key_of(node.name, port.name)).get());
    return unit;
  }

  static void check_side(const Node& node, const std::string& side, const std::vector<Port>& ports,
                         const std::vector<ModelPort>& found) {
    std::vector<std::string> names, wanted;
    for (const ModelPort& port : found) names.push_back(port.name);
    for (const Port& port : ports) wanted.push_back(port.name);
    std::sort(names.begin(), names.end());
    std::sort(wanted.begin(), wanted.end());
    const std::string label = detail::repr_text(node.name);
    if (names != wanted) {
      throw BundleError("The ONNX model of node " + label + " has the " + side + "s " + detail::list_text(names) +
                        ", the bundle says " + detail::list_text(wanted) + ".");
    }
    for (const Port& port : ports) {
      const ModelPort& model =
          *std::find_if(found.begin(), found.end(), [&](const ModelPort& one) { return one.name == port.name; });
      std::string shape;
      for (const auto& size : model.shape) {
        const std::string open = size.symbol.empty() ? "None" : detail::repr_text(size.symbol);
        shape += (shape.empty() ? "" : ", ") + (size.value >= 0 ? std::to_string(size.value) : open);
      }
      bool fits = model.shape.size() == port.shape.size();
      for (std::size_t axis = 0; fits && axis < port.shape.size(); ++axis) {
        fits = model.shape[axis].value < 0 || model.shape[axis].value == port.shape[axis];
      }
      const std::string what = "The " + side + " " + detail::repr_text(port.name) + " of node " + label;
      if (fits && port.batch_axis && model.shape[*port.batch_axis].value >= 0) {
        throw BundleError(what + " takes any batch according to the bundle, but its ONNX model has the fixed shape [" + shape +
                          "].");
      }
      if (!fits || model.type != std::string("tensor(") + port.dtype->onnx + ")") {
        throw BundleError(what + " is " + form(port) + " in the bundle, but " + model.type + " [" + shape +
                          "] in its ONNX model.");
      }
    }
  }

  static void check_size(const Port& port) {
    constexpr std::int64_t largest = std::int64_t{1} << 30;
    const std::int64_t needed = detail::bytes_needed(port.shape, port.dtype->size);
    if (needed > largest) {
      throw BundleError("Port " + detail::repr_text(port.name) + " needs " + std::to_string(needed) +
                        " bytes for one value; this runtime stops at " + std::to_string(largest) + ".");
    }
  }

  static Port at_rows(Port port, std::int64_t rows) {
    if (port.batch_axis) port.shape[*port.batch_axis] = rows;
    return port;
  }

  /// Memory for the present number of rows, given to the engines.
  void allocate() {
    for (const auto* slots : {&inputs_, &outputs_}) {
      for (const auto& [key, slot] : *slots) {
        check_size(slot->port);
        const std::size_t size = slot->port.bytes();
        if (slots == &inputs_ && plan_.edges.count(key) != 0) continue;  // it reads the memory of its source
        slot->memory = detail::Memory(size);
        if (slot->face || slot->state) slot->face = detail::Memory(size);
        slot->given = slot->held = false;
        if (!slot->state) continue;
        slot->before = detail::Memory(size);
        const auto stored = initial_.find(key);
        slot->initial = stored == initial_.end() ? detail::Memory(size) : spread(key, stored->second, slot->port);
      }
    }
    for (Unit& unit : units_) unit.session->bind(tensors(unit.inputs), tensors(unit.outputs));
    prepare();
  }

  void prepare() {
    leaving_.clear();
    for (const auto& [key, slot] : outputs_) {
      if (slot->bound) leaving_.push_back(slot.get());
    }
  }

  static std::vector<Tensor> tensors(const std::vector<detail::Slot*>& slots) {
    std::vector<Tensor> made;
    for (const detail::Slot* slot : slots) {
      made.push_back({slot->port.dtype, slot->port.shape, slot->memory.get(), slot->port.bytes()});
    }
    return made;
  }

  /// The initial value of a state for the number of rows of its port.
  static detail::Memory spread(const std::string& key, const RawTensor& initial, const Port& port) {
    detail::Memory made(port.bytes());
    if (initial.shape == port.shape || !port.batch_axis) {
      if (!initial.data.empty()) std::memcpy(made.get(), initial.data.data(), initial.data.size());
      return made;
    }
    std::size_t inner = port.dtype->size, outer = 1;
    for (std::size_t axis = 0; axis < port.shape.size(); ++axis) {
      if (axis < *port.batch_axis) outer *= static_cast<std::size_t>(port.shape[axis]);
      if (axis > *port.batch_axis) inner *= static_cast<std::size_t>(port.shape[axis]);
    }
    const auto had = static_cast<std::size_t>(initial.shape[*port.batch_axis]);
    const auto rows = static_cast<std::size_t>(port.shape[*port.batch_axis]);
    for (std::size_t block = 0; block < outer && inner != 0; ++block) {
      const unsigned char* first = initial.data.data() + block * had * inner;
      for (std::size_t row = 1; row < had; ++row) {
        if (std::memcmp(first, first + row * inner, inner) != 0) {
          throw InputError("State " + detail::repr_text(key) + " begins with a different value in each of " +
                           std::to_string(had) + " rows, so a batch of " + std::to_string(rows) + " rows is not possible.");
        }
      }
      for (std::size_t row = 0; row < rows; ++row) std::memcpy(made.get() + (block * rows + row) * inner, first, inner);
    }
    return made;
  }

  // Values.

  static PortInfo info(const detail::Slot& slot, const std::string& role) {
    const auto [node, name] = split_key(slot.key);
    const Port& port = slot.port;
    PortInfo made{
        slot.key,        node,      name, role, port.kind, {}, {}, {}, port.shape, port.dtype->name, port.temporal_period_ms,
        port.batch_axis, port.extra};
    for (const Value& axis : port.element_names) {
      for (const Value& element : axis.items) made.element_names.push_back(detail::str(element));
    }
    if (const Value* units = port.find("units")) made.units = *units;
    if (const Value* limits = port.find("limits")) made.limits = *limits;
    return made;
  }

  /// The name by which a caller knows an input: the one that it was declared with.
  std::string callers_name(const std::string& node, const std::string& port) const {
    if (port.size() < 3 || port.compare(port.size() - 3, 3, "_in") != 0) return port;
    const std::string name = port.substr(0, port.size() - 3);
    const std::string* source = plan_.feeds_back(key_of(node, port));
    return source != nullptr && *source == key_of(node, name + "_out") ? name : port;
  }

  detail::Slot& input_slot(const std::string& name) {
    check_runnable();
    auto found = inputs_.find(name);
    if (found == inputs_.end()) found = inputs_.find(name + "_in");
    if (found == inputs_.end()) {
      const auto [node, port] = split_key(name);
      if (node.empty() || port.empty()) throw InputError("Inputs are named 'node/port', got " + detail::repr_text(name) + ".");
      std::vector<std::string> there;
      const Node* known = bundle_.contract.find(node);
      if (known == nullptr) {
        for (const Node* one : plan_.order) there.push_back(one->name);
        throw UnknownPortError("Input " + detail::repr_text(name) + ": there is no node " + detail::repr_text(node) +
                               "; there are " + detail::list_text(there) + ".");
      }
      for (const Port& one : known->inputs) there.push_back(callers_name(node, one.name));
      throw UnknownPortError("Input " + detail::repr_text(name) + ": node " + detail::repr_text(node) + " has no input " +
                             detail::repr_text(port) + "; it has " + detail::list_text(there) + ".");
    }
    const auto edge = plan_.edges.find(found->first);
    if (edge != plan_.edges.end()) {
      throw InputError("Input " + detail::repr_text(found->first) + " is fed by " + detail::repr_text(edge->second) +
                       " and cannot be given.");
    }
    return *found->second;
  }

  const detail::Slot& output_slot(const std::string& key) const {
    check_runnable();
    if (!is_listed(plan_.outputs, key)) {
      throw UnknownPortError("There is no output " + detail::repr_text(key) + "; there are " +
                             detail::list_text(plan_.outputs) + ".");
    }
    return *outputs_.at(key);
  }

  template <class T>
  static void check_type(const std::string& side, const detail::Slot& slot) {
    if (slot.port.dtype == &detail::dtype_of<T>()) return;
    throw InputError(side + " " + detail::repr_text(slot.key) + ": expected " + form(slot.port) + ", got " +
                     detail::dtype_of<T>().name + ".");
  }

  /// The axis of a port whose elements have the given names, and the order that takes values to it (`entering`) or from it.
  static detail::Reordering reordering(const std::string& key, const Port& port, const std::vector<std::string>& given,
                                       bool entering) {
    const std::size_t entries = port.element_names.size();
    std::vector<std::pair<std::ptrdiff_t, std::vector<std::string>>> axes;
    for (std::size_t i = 0; i < entries; ++i) {
      if (!port.element_names[i].is(Value::Kind::list) || port.element_names[i].items.empty()) continue;
      std::vector<std::string> names;
      for (const Value& name : port.element_names[i].items) names.push_back(detail::str(name));
      axes.emplace_back(static_cast<std::ptrdiff_t>(port.shape.size() + i) - static_cast<std::ptrdiff_t>(entries), names);
    }
    if (axes.empty()) {
      throw InputError(detail::repr_text(key) + " has no element names. Leave it out of bind, or give them when exporting.");
    }
    if (axes.size() > 1) {
      std::string known;
      for (const auto& [axis, names] : axes) known += (known.empty() ? "" : ", ") + detail::list_text(names);
      const std::set<std::string> wanted(given.begin(), given.end());
      const auto other = [&](const auto& axis) {
        return std::set<std::string>(axis.second.begin(), axis.second.end()) != wanted;
      };
      axes.erase(std::remove_if(axes.begin(), axes.end(), other), axes.end());
      if (axes.size() != 1) {
        throw InputError("The names bound to " + detail::repr_text(key) +
                         " are those of no axis, or of several. Its axes have [" + known + "].");
      }
    }
    const auto& [axis, names] = axes[0];
    if (axis < 0 || port.shape[static_cast<std::size_t>(axis)] != static_cast<std::int64_t>(names.size())) {
      throw BundleError(detail::repr_text(key) + " has " + std::to_string(names.size()) + " element names for its shape " +
                        detail::sizes_text(port.shape) + ".");
    }
    check_names(key, names, given);
    detail::Reordering made{static_cast<std::size_t>(axis), std::vector<std::size_t>(names.size())};
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto there = static_cast<std::size_t>(std::find(given.begin(), given.end(), names[i]) - given.begin());
      (entering ? made.places[i] : made.places[there]) = entering ? there : i;
    }
    return made;
  }

  static void check_names(const std::string& key, const std::vector<std::string>& wanted,
                          const std::vector<std::string>& given) {
    std::vector<std::string> missing, extra, twice;
    for (const std::string& name : wanted) {
      if (!is_listed(given, name)) missing.push_back(name);
    }
    for (const std::string& name : given) {
      if (!is_listed(wanted, name)) extra.push_back(name);
      if (std::count(given.begin(), given.end(), name) > 1 && !is_listed(twice, name)) twice.push_back(name);
    }
    std::sort(twice.begin(), twice.end());
    std::string parts;
    for (const auto& [what, names] : {std::pair{"missing ", &missing}, {"extra ", &extra}, {"twice ", &twice}}) {
      if (!names->empty()) parts += (parts.empty() ? "" : ", ") + (what + detail::list_text(*names));
    }
    if (parts.empty() && given.size() != wanted.size()) parts = "twice";  // two elements of the port share a name
    if (!parts.empty()) {
      throw InputError("The names bound to " + detail::repr_text(key) + " do not fit its elements: " + parts + ".");
    }
  }

  // Steps.

  void check_given() const {
    for (const detail::Slot* slot : entering_) {
      if (!slot->given && !slot->held && !options_.sticky) refuse_missing();
      if (options_.nonfinite == NonFinite::raise && slot->given) check_finite(*slot);
    }
    if (options_.nonfinite == NonFinite::ignore) return;
    for (const detail::Slot* slot : states_) {
      if (slot->given) check_finite(*slot);
    }
  }

  [[noreturn]] void refuse_missing() const {
    std::string names;
    for (const detail::Slot* slot : entering_) {
      if (!slot->given && !slot->held) names += (names.empty() ? "" : ", ") + detail::repr_text(slot->key);
    }
    throw InputError("Missing input " + names + ". A step takes " + detail::list_text(plan_.inputs) + ".");
  }

  static void check_finite(const detail::Slot& slot) {
    const Dtype& dtype = *slot.port.dtype;
    if (!detail::is_float(dtype)) return;
    for (std::size_t i = 0; i < slot.port.elements() * detail::parts_of(dtype); ++i) {
      if (!std::isfinite(detail::as_double(dtype, slot.visible(), i))) {
        throw InputError("Input " + detail::repr_text(slot.key) + " holds NaN or infinity.");
      }
    }
  }

  void give_all() {
    for (detail::Slot* slot : entering_) slot->given = true;
  }

  /// Normal floats, integers from 0 to 63, random truth values.
  static void randomize(detail::Slot& slot, std::mt19937& generator) {
    std::normal_distribution<double> normal;
    unsigned char* to = slot.visible();
    for (std::size_t i = 0; i < slot.port.elements() * detail::parts_of(*slot.port.dtype); ++i) {
      switch (slot.port.dtype->code) {
        case 1:
        case 14: reinterpret_cast<float*>(to)[i] = static_cast<float>(normal(generator)); break;
        case 11:
        case 15: reinterpret_cast<double*>(to)[i] = normal(generator); break;
        case 9: to[i] = generator() & 1u; break;
        default:
          std::memset(to + i * slot.port.dtype->size, 0, slot.port.dtype->size);
          to[i * slot.port.dtype->size] = generator() & 63u;
      }
    }
  }

  template <class Work>
  static std::pair<std::vector<double>, std::size_t> timed(std::size_t steps, std::optional<double> rate, Work work) {
    using Clock = std::chrono::steady_clock;
    using Microseconds = std::chrono::duration<double, std::micro>;
    std::vector<double> times(steps);
    std::size_t misses = 0;
    const std::chrono::duration<double> seconds(rate ? 1.0 / *rate : 0.0);
    const auto period = std::chrono::duration_cast<Clock::duration>(seconds);
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < steps; ++i) {
      const auto due = begin + period * static_cast<Clock::rep>(i);
      // Sleeping overshoots by about as much as it takes to wake up, so the last stretch is waited for awake.
      while (rate && Clock::now() < due) {
        const auto rest = due - Clock::now();
        if (rest > std::chrono::microseconds(200)) std::this_thread::sleep_for(rest - std::chrono::microseconds(100));
      }
      const auto start = Clock::now();
      work();
      const auto end = Clock::now();
      times[i] = std::chrono::duration_cast<Microseconds>(end - start).count();
      misses += rate && end > due + period;
    }
    std::sort(times.begin(), times.end());
    return {times, misses};
  }

  static double percentile(const std::vector<double>& sorted, double percent) {
    const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
    const auto low = static_cast<std::size_t>(at);
    const std::size_t high = std::min(low + 1, sorted.size() - 1);
    return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
  }

  // Proving.

  static void put(detail::Slot& slot, const RawTensor& value) {
    if (!value.data.empty()) std::memcpy(slot.memory.get(), value.data.data(), value.data.size());
  }

  static void report(Verification& found, const detail::Slot& slot, std::size_t number, const RawTensor& want, double rtol,
                     double atol) {
    const auto wrong = detail::difference(slot.port, slot.memory.get(), want.data.data(), rtol, atol);
    if (wrong) found.problems.push_back(slot.key + ", sample " + std::to_string(number) + ": " + *wrong);
  }

  static void run_node(const Unit& unit, const Sample& sample) {
    for (std::size_t i = 0; i < unit.inputs.size(); ++i) put(*unit.inputs[i], sample.inputs.at(unit.node->inputs[i].name));
    try {
      unit.session->run();
    } catch (const std::exception& error) {
      throw BundleError("Node " + detail::repr_text(unit.node->name) + " failed: " + error.what());
    }
  }

  static void verify_node(const Unit& unit, const std::vector<Sample>& samples, double rtol, double atol, Verification& found) {
    for (std::size_t number = 0; number < samples.size(); ++number, ++found.passes) {
      run_node(unit, samples[number]);
      std::vector<std::vector<unsigned char>> once;
      for (const detail::Slot* slot : unit.outputs)
        once.emplace_back(slot->memory.get(), slot->memory.get() + slot->memory.size());
      run_node(unit, samples[number]);
      for (std::size_t i = 0; i < unit.outputs.size(); ++i) {
        const detail::Slot& slot = *unit.outputs[i];
        if (!once[i].empty() && std::memcmp(once[i].data(), slot.memory.get(), once[i].size()) != 0) {
          if (!is_listed(found.random, slot.key)) found.random.push_back(slot.key);
        } else {
          report(found, slot, number, samples[number].outputs.at(unit.node->outputs[i].name), rtol, atol);
        }
      }
    }
  }

  void verify_loop(const std::map<std::string, std::vector<Sample>>& samples, double rtol, double atol, Verification& found) {
    std::size_t passes = SIZE_MAX;
    for (const Node& node : bundle_.contract.nodes) {
      const auto recorded = samples.find(node.name);
      passes = std::min(passes, recorded == samples.end() ? 0 : recorded->second.size());
    }
    if (bundle_.contract.nodes.empty()) passes = 0;
    for (detail::Slot* slot : states_) slot->memory.copy_from(slot->initial), slot->given = false;
    for (std::size_t number = 0; number < passes; ++number) {
      if (number != 0 && was_reset(samples, number)) {
        for (detail::Slot* slot : states_) slot->memory.copy_from(slot->initial);
      }
      for (detail::Slot* slot : entering_) {
        const auto [node, port] = split_key(slot->key);
        put(*slot, samples.at(node)[number].inputs.at(port));
        // What is bound is in the port's order here: the samples know no other.
        slot->given = false;
      }
      for (const Unit& unit : units_) unit.session->run();
      for (const auto& [to, from] : handed_) to->memory.copy_from(from->memory);
      for (const std::string& key : plan_.outputs) {
        const auto [node, port] = split_key(key);
        report(found, *outputs_.at(key), number, samples.at(node)[number].outputs.at(port), rtol, atol);
      }
      if (whole_) ++found.passes;
    }
  }

  /// Whether every fed-back input of a pass has its initial value again, though its source says otherwise.
  bool was_reset(const std::map<std::string, std::vector<Sample>>& samples, std::size_t number) const {
    bool moved = false;
    for (const auto& [target, source] : plan_.feedback) {
      const auto [node, port] = split_key(target);
      const auto [origin, name] = split_key(source);
      const Bytes& now = samples.at(node)[number].inputs.at(port).data;
      if (now != samples.at(node)[0].inputs.at(port).data) return false;
      moved = moved || now != samples.at(origin)[number - 1].outputs.at(name).data;
    }
    return moved;
  }

  Options options_;
  Bundle bundle_;
  Plan plan_;
  std::optional<std::int64_t> batch_;
  std::map<std::string, RawTensor> initial_;
  Slots inputs_, outputs_;
  std::vector<detail::Slot*> entering_, states_, leaving_;
  std::vector<std::pair<detail::Slot*, detail::Slot*>> handed_;
  std::unique_ptr<Node> whole_;  // the fused file, if that is run
  std::vector<Unit> units_;
};

}  // namespace leapp
