// A bundle that runs in a control loop. The semantics are those of leapp.runtime.Pipeline.
//
// Everything is decided when it is opened. A step allocates nothing: inputs are written into memory of the pipeline, engines
// read and write it, outputs are read from it. One pipeline belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bundle.hpp"
#include "compare.hpp"
#include "engine.hpp"
#include "latency.hpp"
#include "plan.hpp"
#include "ports.hpp"

namespace leapp {

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
  std::optional<Keys> trust;                ///< Refuse a bundle that none of these public keys signed. Needs leapp::signatures.
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
      : options_(std::move(options)), bundle_(open_bundle(path, options_.allow_outside, options_.expect_digest, options_.trust)) {
    plan_ = make_plan(bundle_.contract, engine.backends());
    batch_ = plan_.batch;
    initial_ = read_initial_values(bundle_);
    make_slots();
    check_sum();
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
    for (const std::string& key : plan_.inputs) found.push_back(detail::info(*inputs_.at(key), "input"));
    for (const auto& [key, source] : plan_.feedback) found.push_back(detail::info(*inputs_.at(key), "feedback"));
    for (const std::string& key : plan_.outputs) found.push_back(detail::info(*outputs_.at(key), "output"));
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
    const bool enters = detail::is_listed(plan_.inputs, key), leaves = detail::is_listed(plan_.outputs, key);
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
        if (!detail::is_listed(keys, key)) {
          throw UnknownPortError(detail::repr_text(key) + " cannot be bound; there are " + detail::list_text(keys) + ".");
        }
        detail::Slot& slot = *(entering ? inputs_ : outputs_).at(key);
        try {
          orders.emplace_back(&slot, detail::reordering(key, slot.port, names, entering));
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
    for (const auto& [key, raw] : initial_) detail::spread(key, raw, at_rows(inputs_.at(key)->port, rows));
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
    for (detail::Slot* slot : entering_) detail::randomize(*slot, generator);
    return detail::measure(steps, rate, [this] { give_all(), step(); });
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

  /// Refuse a description whose ports are more than a machine that runs policies has memory for.
  void check_sum() const {
    constexpr double largest = 4294967296.0;
    double size = 0;
    for (const auto* slots : {&inputs_, &outputs_}) {
      for (const auto& [key, slot] : *slots) {
        size += static_cast<double>(detail::bytes_needed(slot->port.shape, slot->port.dtype->size));
      }
    }
    if (size > largest) {
      char text[40];
      std::snprintf(text, sizeof text, "%.0f", size);
      throw BundleError(std::string("One value of each port needs ") + text +
                        " bytes in all; this runtime stops at 4294967296.");
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
        slot->initial = stored == initial_.end() ? detail::Memory(size) : detail::spread(key, stored->second, slot->port);
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

  // Values.

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
    if (!detail::is_listed(plan_.outputs, key)) {
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

  // Steps.

  void check_given() const {
    for (const detail::Slot* slot : entering_) {
      if (!slot->given && !slot->held && !options_.sticky) refuse_missing();
      if (options_.nonfinite == NonFinite::raise && slot->given) detail::check_finite(*slot);
    }
    if (options_.nonfinite == NonFinite::ignore) return;
    for (const detail::Slot* slot : states_) {
      if (slot->given) detail::check_finite(*slot);
    }
  }

  [[noreturn]] void refuse_missing() const {
    std::string names;
    for (const detail::Slot* slot : entering_) {
      if (!slot->given && !slot->held) names += (names.empty() ? "" : ", ") + detail::repr_text(slot->key);
    }
    throw InputError("Missing input " + names + ". A step takes " + detail::list_text(plan_.inputs) + ".");
  }

  void give_all() {
    for (detail::Slot* slot : entering_) slot->given = true;
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
          if (!detail::is_listed(found.random, slot.key)) found.random.push_back(slot.key);
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
