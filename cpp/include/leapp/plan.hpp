// The order and the wiring of a pipeline, decided once from its contract. Knows no file and no engine.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "description.hpp"
#include "errors.hpp"

namespace leapp {

/// How one step runs. Keys are `node/port`.
struct Plan {
  std::vector<const Node*> order;
  std::vector<std::string> inputs;                            ///< Keys the caller gives.
  std::vector<std::string> outputs;                           ///< Keys the caller receives.
  std::map<std::string, std::string> edges;                   ///< Input to the output that feeds it within a step.
  std::vector<std::pair<std::string, std::string>> feedback;  ///< Input and the output of the step before that it reads.
  std::vector<std::string> missing;                           ///< Nodes without a model.
  std::optional<std::int64_t> batch;                          ///< The traced number of rows, if any is taken.

  const std::string* feeds_back(const std::string& key) const {
    for (const auto& [target, source] : feedback) {
      if (target == key) return &source;
    }
    return nullptr;
  }
};

namespace detail {

/// One cycle among nodes that all wait for another, along its edges.
inline std::vector<std::string> cycle_of(const std::map<std::string, std::set<std::string>>& waits) {
  std::vector<std::string> path = {waits.begin()->first};
  for (;;) {
    const std::string source = *waits.at(path.back()).begin();
    const auto seen = std::find(path.begin(), path.end(), source);
    if (seen == path.end()) {
      path.push_back(source);
      continue;
    }
    std::vector<std::string> cycle(seen, path.end());
    std::reverse(cycle.begin(), cycle.end());
    std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
    return cycle;
  }
}

inline std::vector<const Node*> order_of(const Contract& contract, const std::map<std::string, std::string>& edges) {
  std::map<std::string, std::set<std::string>> waits;
  for (const Node& node : contract.nodes) waits[node.name];
  for (const auto& [target, source] : edges) waits[split_key(target).first].insert(split_key(source).first);
  std::vector<const Node*> order;
  std::optional<std::string> backend;
  while (!waits.empty()) {
    const Node *chosen = nullptr, *first = nullptr;
    for (const auto& [name, sources] : waits) {
      if (!sources.empty()) continue;
      const Node* node = contract.find(name);
      if (first == nullptr) first = node;
      if (chosen == nullptr && node->model.backend == backend) chosen = node;
    }
    if (first == nullptr) {
      std::string through;
      for (const std::string& name : cycle_of(waits)) through += (through.empty() ? "" : ", ") + repr_text(name);
      throw BundleError("data_flow has a cycle through " + through + ".");
    }
    if (chosen == nullptr) chosen = first;
    backend = chosen->model.backend;
    order.push_back(chosen);
    waits.erase(chosen->name);
    for (auto& [name, sources] : waits) sources.erase(chosen->name);
  }
  return order;
}

inline std::optional<std::int64_t> batch_of(const Contract& contract) {
  std::optional<std::int64_t> rows;
  std::string one;
  for (const bool inputs : {true, false}) {
    for (const Node& node : contract.nodes) {
      for (const Port& port : inputs ? node.inputs : node.outputs) {
        if (!port.batch_axis) continue;
        const std::string key = key_of(node.name, port.name);
        const std::int64_t found = port.shape[*port.batch_axis];
        if (!rows) rows = found, one = key;
        if (*rows != found) {
          throw BundleError(repr_text(one) + " has a batch of " + std::to_string(*rows) + " rows and " + repr_text(key) +
                            " of " + std::to_string(found) + ": a pipeline has one batch.");
        }
      }
    }
  }
  return rows;
}

}  // namespace detail

/// Decide the execution order of a contract, whose wiring `contract_of` has checked.
///
/// @param backends The backends that the engine runs.
inline Plan make_plan(const Contract& contract, const std::vector<std::string>& backends) {
  Plan plan;
  for (const auto& [source, targets] : contract.data_flow) {
    for (const std::string& target : targets) plan.edges[target] = source;
  }
  for (const auto& [source, targets] : contract.feedback_flow) {
    for (const std::string& target : targets) plan.feedback.emplace_back(target, source);
  }
  for (const auto& [node, ports] : contract.inputs) {
    for (const std::string& port : ports) plan.inputs.push_back(key_of(node, port));
  }
  for (const auto& [node, ports] : contract.outputs) {
    for (const std::string& port : ports) plan.outputs.push_back(key_of(node, port));
  }
  plan.order = detail::order_of(contract, plan.edges);
  for (const Node& node : contract.nodes) {
    if (!node.model.path) {
      plan.missing.push_back(node.name);
    } else if (std::find(backends.begin(), backends.end(), node.model.backend.value_or("")) == backends.end()) {
      std::string runs;
      for (const std::string& backend : backends) runs += (runs.empty() ? "" : ", ") + backend;
      throw BundleError("Node " + detail::repr_text(node.name) + " has the backend " +
                        (node.model.backend ? detail::repr_text(*node.model.backend) : "None") + "; this runtime runs " + runs +
                        ".");
    }
  }
  plan.batch = detail::batch_of(contract);
  return plan;
}

}  // namespace leapp
